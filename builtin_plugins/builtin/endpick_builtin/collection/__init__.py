"""Sources and collectors: what is fetched from each endpoint, and what does it say?

- `sources`: which pages are fetched from each endpoint, and which models does it say it serves?
- `exporters`: what do GPU exporters and the endpoint pickers of other clusters report?
- `endpoint_events`: what do collectors learn when an endpoint joins, changes or leaves?
- `answers`: what do model servers say of their load in the headers of their answers?
- `pool_data`: what is known of the whole pool from a document on a server or in a file?
- `otlp`: how do metrics reach endpick that are pushed over OTLP?
- `otlp_ports`: on which ports, over HTTP and gRPC, with which certificates?
- `push_server`: how many connections may clients that push hold open, and for how long?
- `otlp_messages`: what does such a push say of which server?
- `http_pages`: how is a page fetched, over connections that are kept?
- `over_tls`: how is it spoken to a server over TLS, in turns?
- `http_answer`: what is kept of an answer while it comes?
- `page_limits`: what may an answer take, and what does the log say when one takes more?
- `long_answers`: when are answers received and read that take long?
- `read_budget`: how much of answers that come together is received and read in each turn?
- `json_answers`: when is an answer too much JSON?
- `connection_room`: how many connections may all sources together have open?
- `core_metrics`: `core-metrics-extractor`: what does a metrics page say about queue, load, KV cache and LoRA adapters?
- `engines`: under which names does each model-server engine report this?

The plugin host loads them through their entry points. They may import `endpick.api`.
"""
