"""What endpoints are like right now: the endpoint table, and the tasks that keep it current.

- `table`: which endpoints are in the pool, and what was last reported of each? Start here: `EndpointTable`.
- `collection`: when is each data source asked? Start here: `CollectionLoop`.
- `polled_source`: what does one source have to say of one endpoint?
- `dispatch`: what happens to what a source brings?
- `pace`: when is each source due, at which moment of a tick, and which polls of an endpoint with nothing to do are left out?
- `time_limit`: what ends a poll that takes too long?
- `pool_poller`: when is something asked for that belongs to the whole pool?
- `told`: what do endpoints tell of themselves, so that they need not be asked?
- `announcing`: how do plugins hear of endpoints that join and leave, however many do and however long each call takes?
- `tasks`: how are tasks restarted when they end, and how are they ended?
- `model_rules`: which priorities and other models have configuration and discovery for requests?
- `registry`: what may a discovery report, and whose fault is it when that is nonsense?
- `discovery`: how does endpoint discovery start, and what happens when it fails?

`serve`, `testing` and `planning` call it. It may import `observability` and every layer below it, but not `scheduling`.
"""
