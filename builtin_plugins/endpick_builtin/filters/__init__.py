"""Filters: which endpoints may serve a request?

- `labels`: `label-selector-filter` and the filters by role: what do the labels of an endpoint say?

The plugin host loads them through their entry points. They may import `endpick.api`.
"""
