"""Scorers: how good would each endpoint be for a request, from 0 to 1?

- `load`: how busy is an endpoint?
- `affinity`: what has an endpoint loaded for a request: LoRA adapters and prompts in its cache?

The plugin host loads them through their entry points. They may import `endpick.api`.
"""
