"""Policies of flow control: which of the requests that wait goes next, and how full may the pool become by it?

- `fairness`: which flow of a band is served next, by the order of requests or in turn?
- `program_aware`: `program-aware-fairness`: which flow has had least, and has waited longest?
- `ordering`: which request of a flow goes first?
- `usage_limits`: up to which saturation of the pool is each priority served?
- `eviction`: which requests in flight may be evicted, and which of them first?

The plugin host loads them through their entry points. They may import `endpick.api` and `producers`.
"""
