"""The precise prefix cache: what each engine says that it holds, and what of it a prompt finds.

- `prefix_cache`: what does a request find where? Start here.
- `parameters`: how is it configured?
- `kv_intake`: which publishers are listened to, and what is fetched when messages were missed?
- `event_sources`: where does a server say that it publishes?
- `kv_sockets`: who is dialled, who may dial, and when is it done again?
- `kv_zmtp`: what does a publisher say on its connection, and how much of it may be kept?
- `kv_addresses`: where is that?
- `kv_replay`: how are messages fetched that were missed?
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
