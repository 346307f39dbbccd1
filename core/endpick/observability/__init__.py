"""What endpick reports about itself: metrics, logs and faults.

- `telemetry`: what do the request path and the data layer report?
- `recorder`: how does a serving process turn these reports into metrics and log lines?
- `metrics`: which metrics are there, under which names, labels and buckets?
- `circuits`: what do the boundaries around plugins do with circuit breakers, and who is left out now?
- `exposition`: what does `/metrics` show, including the metrics of plugins and of the pool?
- `registry_in_parts`: how are metrics read in parts, and each collector by itself?
- `text_page`: how are metrics written for a scraper, without holding up requests?
- `legacy`: which old names of llm-d's metrics does `/metrics` repeat for dashboards that ask for them?
- `logs`: how does a log line look, as text and as JSON?
- `log_values`: what of a value that was logged does it show, however much that is?
- `log_lines`: where do log lines go, when what reads them is slow or has no room?
- `throttle`: how often is the same thing told?
- `uncaught`: what do plugins do where no call of endpick's stands?

`cli`, `serve`, `testing`, `planning`, `extproc`, `requests`, `scheduling` and `datalayer` call it. It may import `plugins`, `config`,
`diagnostics` and `api`.
"""
