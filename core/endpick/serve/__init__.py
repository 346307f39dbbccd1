"""The serving process: turns a plan into ports that answer, and stops everything at the end.

- `main`: how does `endpick serve` run a process, and what does it report at start-up? Start here: `run`.
- `process`: in which order do the parts of a process start and stop, and with which settings?
- `lifecycle`: in which phase is a process, and how long does it still take requests once it is to end?
- `deployment`: how are the instances of a plan built and started, and which are carried over from the previous plan?
- `active_plan`: which deployment serves now, and how does a reload replace it?
- `pool_log`: who joined, left or changed, in few lines?
- `watchdog`: what holds the event loop when it stands still?
- `threads`: who works in threads, and how does a plugin that fills its own keep no other waiting?
- `forks`: what becomes of processes that plugins fork?
- `limit_log`: which limits are there, and what does the log say when one acts?
- `overload`: how short of memory is the process, and who forgets what?
- `free_memory`: when does the system get back what nothing uses?
- `garbage`: when is memory searched for garbage, and how much of it at once?
- `admin`: what do `/metrics` and `/healthz` answer, also in a flood?
- `admin_http`: how does a connection to the admin port speak HTTP?
- `admin_limits`: what may clients of the admin port take, and which events does it count?
- `bodies`: who parses large request bodies, so that the event loop need not?
- `decisions`: how are hook objects shown a sample of the decisions?

`cli` calls it. It may import `planning`, `transport` and every layer below them.
"""
