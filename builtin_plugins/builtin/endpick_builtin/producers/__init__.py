"""Data producers: what is found out about a request before it is scheduled?

- `prefix_cache`: `approx-prefix-cache-producer`: how much of a prompt does each endpoint have cached?
- `prefix_parameters`: what may its configuration say?
- `precise_prefix_cache`: `precise-prefix-cache-producer`: how much of a prompt does each engine say it has cached?
- `precise/`: what that is made of
- `prefix_promises`: what does a broken promise say of everything else that was sent there?
- `self_check`: was what an index promised true?
- `prompt_blocks`: of which blocks is a prompt made?
- `prefix_tree`: which endpoint was sent which beginning of a prompt?
- `endpoint_slots`: which endpoints are meant by the bits of a set?
- `inflight_load`: `inflight-load-producer`: how much work is each endpoint still doing for this picker?
- `token_producer`: `token-producer`: of which tokens is the prompt made?
- `token_estimate`: what stands for tokens where no tokenizer is asked?
- `media_tokens`: how many tokens are a picture, a film, a sound?
- `image_size`: how large is a picture?
- `render`: what is a vLLM asked that renders prompts, and what does it answer?
- `json_service`: how is a service beside the picker asked?
- `session`: `session-id-producer` and `agent-identity`: whose request is it?
- `media_cache`: `mm-embeddings-cache-producer`: which media does each endpoint have encoded?
- `item_index`: which endpoint was sent which items?
- `p2p_source`: `p2p-source-producer`: from which endpoint can cached blocks be pulled?
- `burst_prefix`: `burst-prefix-cache-producer`: which requests come at once with the same prompt?
- `burst_groups`: where does each of them go?
- `predicted_latency`: `predicted-latency-producer`: how long would each endpoint take?
- `latency_service`: what is said to the servers that predict and learn?
- `latency_ledger`: what do requests ask for, and what is each endpoint streaming?
- `latency_metrics`: what is counted of predictions?

The plugin host loads them through their entry points. They may import `endpick.api`.
"""
