"""Scorers: how good would each endpoint be for a request, from 0 to 1?

- `load`: how busy is an endpoint?
- `affinity`: what has an endpoint for a request: LoRA adapters, prompts and media in its caches, a label of its own?
- `latency`: `latency-scorer`: how quick will it probably be?
- `no_hit_lru`: `no-hit-lru-scorer`: whose turn is it with a prompt that none has cached?
- `multicluster`: how busy is a cluster, and what was it sent, where endpoints stand for clusters?
- `precise_prefix_cache`: how much of a prompt does an endpoint's engine say it has cached?

The plugin host loads them through their entry points. They may import `endpick.api` and `filters`.
"""
