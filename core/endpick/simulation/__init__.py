"""A simulated model server: a pure model of an inference engine, and an OpenAI-compatible server around it.

- `server`: how does `endpick sim-server` answer requests and show metrics? Start here: `serve`.
- `openai`: which requests does it understand, what does it answer, and in which form?
- `engine`: when does each token of each request appear?
- `caches`: which KV blocks and LoRA adapters are in memory?
- `sidecar`: what is done elsewhere before a server decodes, and how do servers tell one another?
- `kv_events`: how does it publish which KV blocks it has?
- `settings`: how large and how fast is the engine, and what does the server offer?

`cli` and `demo` call it. It imports no other package of endpick.
"""
