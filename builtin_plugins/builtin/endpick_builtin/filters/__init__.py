"""Filters: which endpoints may serve a request?

- `labels`: `label-selector-filter`, `by-label` and the filters by role: what do the labels of an endpoint say?
- `thresholds`: `utilization-filter`: which endpoints are too busy?
- `tiers`: `prefix-cache-affinity-filter` and `slo-headroom-tier-filter`: which endpoints are the better ones, if any are?
- `addresses`: `header-based-testing-filter`: which endpoints does a test ask for?

The plugin host loads them through their entry points. They may import `endpick.api`.
"""
