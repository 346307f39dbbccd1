"""Parsers: how are request and response bodies read?

- `openai`: `openai-parser` and `passthrough-parser`: what does a request to an OpenAI API ask for?
- `openai_prompts`: does a request to an OpenAI API have a prompt, and which bytes stand for it?
- `openai_usage`: how many tokens does an answer of an OpenAI API say it took?
- `anthropic`: `anthropic-parser`: what does a request to Anthropic's Messages API ask for?
- `generate`: `vllmhttp-parser` and `sglanghttp-parser`: what does a request to an engine's own API ask for?
- `vllm_grpc`: `vllmgrpc-parser`: what does a request to vLLM's gRPC API ask for?
- `vertexai`: `vertexai-parser`: what does a request to Vertex AI's prediction service ask for?
- `json_bodies`: how is any JSON body read, within limits?
- `structure`: how much structure has a body, and how deep is it?
- `model_field`: how is the model exchanged, and nothing else?
- `token_prompts`: how do token ids and the media among them become a prompt?
- `grpc_bodies`: how are gRPC frames and their messages read?

The plugin host loads them through their entry points. They may import `endpick.api`.
"""
