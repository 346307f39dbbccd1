"""Where requests wait while the pool is full, and what says which of them goes next.

- `settings`: what does a configuration say of queues: limits, times, and policies by name?
- `policies`: how are the policies called that the settings name?

`planning` and `requests` call it. It may import `scheduling` and every layer below it.
"""
