"""The plugins that come with endpick; they reach the host through entry points, as all plugins do.

Around scheduling:

- `openai`: `openai-parser` and `passthrough-parser`: how are request and response bodies read?
- `openai_prompts`: does a request to an OpenAI API have a prompt, and which bytes stand for it?
- `openai_usage`: how many tokens does an answer of an OpenAI API say it took?
- `candidate_filters`: `silent-endpoint-screener`: which endpoints have fallen silent?
- `detectors`: `utilization-detector`: how full is the pool?
- `prefix_cache`: `approx-prefix-cache-producer`: how much of a prompt does each endpoint have cached?
- `prefix_index`: which endpoint was sent which beginning of a prompt?
- `inflight_load`: `inflight-load-producer`: how much work is each endpoint still doing for this picker?

In a scheduling profile:

- `filters`: which endpoints may serve a request, by their labels and roles?
- `scorers`: how good would each endpoint be for a request, from 0 to 1?
- `choosing`: which profile runs, and which of the scored endpoints does a request go to?

In the data layer:

- `file_discovery`: `file-discovery`: which endpoints does a file list, now that it has changed?
- `endpoint_file`: what does a file of endpoints say, and what is wrong with it?
- `sources`: which pages are fetched from each endpoint, and which models does it say it serves?
- `http_pages`: how is a page fetched, over connections that are kept?
- `core_metrics`: `core-metrics-extractor`: what does a metrics page say about queue, load, KV cache and LoRA adapters?
- `engines`: under which names does each model-server engine report this?

No module of endpick imports it: the plugin host loads it through its entry points. It may import `endpick.api`.
"""
