"""Plugins that come as a filter and a scorer with one idea behind both, or that are both at once.

- `attributes`: `endpoint-attribute-filter`, `endpoint-attribute-scorer`: what does a number say that an endpoint reports?
- `context_length`: `context-length-aware`: for which lengths of prompts is an endpoint meant?
- `topology`: `topology-affinity-filter`, `topology-affinity-scorer`: how near is an endpoint to the one of an earlier stage?
- `session_bindings`: which endpoint served the session that a request belongs to?
- `sessions`: `session-affinity-filter`, `-scorer` and `multicluster-session-affinity-filter`: how does a session stay where it is?

The plugin host loads them through their entry points. They may import `endpick.api`, `filters` and `scorers`.
"""
