"""Choosing endpoints: scheduling profiles compiled to flat tuples, and the loop of the profile handler that runs them.

- `scheduler`: which profiles run for a request, and what is the decision? Start here: `Scheduler`.
- `profile`: which candidates do the filters of a profile keep, how are these scored, and which does the picker choose?
- `step`: how is one method of a plugin called, timed and guarded against its faults?
- `trace`: what did every plugin say in one decision?

`cli`, `serve`, `testing`, `planning` and `requests` call it. It may import `observability` and every layer below it, but not `datalayer`.
"""
