"""Kubernetes: which endpoints, objectives and rewrites does the API server know?

- `discovery`: `kubernetes-discovery`: who asks whom, and what is told of a pool that has changed?
- `parameters`: what may its configuration say, and what must go together?
- `picture`: what does a change of the pool, of a Pod or of an objective come to?
- `replica`: which of several pickers follows the pool, and which stands by?
- `objects`: what do Pods, pools, objectives and rewrites say, and which endpoints follow from them?
- `election`: how does this replica come to lead, and how does it give that up?
- `leases`: what does a lease say, when may it be taken, and what follows from each attempt?
- `following`: how is a copy of one collection kept current, whatever the API server does?
- `watch_states`: what follows when a list or a watch ends in this way or that?
- `comeback`: how is it noticed that the API server takes connections again?
- `client`: how is the API server asked, and what do its answers mean?
- `pages`: how is a list taken apart, so that the event loop has its turns?
- `http1`: how is it asked over TLS and HTTP/1.1, in turns?
- `http2`: how does a server say on a watch that it is about to end, or that it is still there?
- `patience`: how long is the API server given, and how soon is it asked again?
- `access`: where is the API server, and who are we to it?
- `kubeconfig`: what does a kubeconfig file say of that?

The plugin host loads it through its entry point. It may import `endpick.api` and `collection`.
"""
