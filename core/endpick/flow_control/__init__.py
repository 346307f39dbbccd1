"""Where requests wait while the pool is full, and what says which of them goes next.

- `settings`: what does a configuration say of queues: limits, times, and policies by name?
- `policies`: which methods of the policies are called that the settings name?
- `calls`: what is made of their answers, and what happens where they fail?
- `states`: which states does a request go through, and how is each end counted?
- `queues`: how do the requests of one flow and of one priority stand in order?
- `bands`: which priorities are there, and what waits in all?
- `limits`: what may wait, and for how long?
- `saturation`: how full is the pool, and when is that worked out again?
- `reclaim`: which requests in flight are evicted, and when?
- `controller`: who goes, who waits, who is told what? Start here.
- `report`, `metrics`: what is told of all that, and under which names of metrics?

`planning` and `requests` call it. It may import `scheduling` and every layer below it.
"""
