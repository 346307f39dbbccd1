"""The precise prefix cache: what each engine says that it holds, and what of it a prompt finds.

- `prefix_cache`: what does a request find where? Start here.
- `parameters`: how is it configured?
- `kv_intake`: which publishers are listened to, and what is fetched when messages were missed?
- `event_sources`: where does a server say that it publishes?
- `kv_sockets`: how do messages get from ZeroMQ to the event loop?
- `kv_turns`: when is it done what messages ask for?
- `kv_stream`: does a message follow the last one?
- `kv_wire`: how is a message read that may be huge?
- `kv_events`: what does a message say?
- `engine_blocks`: what does an event mean for the blocks of its engine?
- `speculation`: which blocks are on their way?
- `tier_index`: which endpoint holds which block in which tier?
- `block_keys`: which key has a block of tokens?
- `metrics`: what is counted?
- `limits`: how much may engines say, and what is told when they say more?
"""
