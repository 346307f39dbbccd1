"""Before anything is produced for a request: is it served at all, and by which endpoints can it not be?

- `candidate_filters`: `silent-endpoint-screener`: which endpoints have fallen silent?
- `rollout`: `disaggregatedset-rollout-screener`: which revision of a deployment serves the request?
- `detectors`: `utilization-detector`: how full is the pool by what model servers report?
- `concurrency`: `concurrency-detector`: how full is the pool by what was sent there?
- `admitters`: `probabilistic-admitter` and `latency-slo-admitter`: which requests of negative priority are not served?
- `fullness`: how full is an endpoint by its queue and KV cache?

The plugin host loads them through their entry points. They may import `endpick.api`.
"""
