"""The plugins that come with endpick; they reach the host through entry points, as all plugins do.

One folder, or module, for each kind:

- `parsers`: how are request and response bodies read?
- `admission`: is a request served at all, and which endpoints are out of the question for every request?
- `flow_control`: which of the requests that wait goes next, and how full may the pool become by it?
- `producers`: what is found out about a request before it is scheduled?
- `handlers`: which scheduling profiles run, and what do their results mean?
- `filters`: which endpoints may serve a request?
- `scorers`: how good would each endpoint be for a request, from 0 to 1?
- `pairs`: what stands behind plugins that are a filter and a scorer of one idea, such as session affinity?
- `pickers`: to which of the scored endpoints does a request go?
- `picker_parameters`: what may their configuration say?
- `observers`: what is reported of a response?
- `discovery`: which endpoints are there?
- `addresses`: which text is the IP address of an endpoint?
- `kubernetes`: which endpoints does the Kubernetes API know?
- `collection`: what is fetched from each endpoint, and what does it say?
- `recency`: what is forgotten first, of all that several of them remember?

No module of endpick imports it: the plugin host loads it through its entry points. It may import `endpick.api`.
"""
