"""Parsers: how are request and response bodies read?

- `openai`: `openai-parser` and `passthrough-parser`: what does a request to an OpenAI API ask for?
- `openai_prompts`: does a request to an OpenAI API have a prompt, and which bytes stand for it?
- `openai_usage`: how many tokens does an answer of an OpenAI API say it took?

The plugin host loads them through their entry points. They may import `endpick.api`.
"""
