"""Before anything is produced for a request: is it served at all, and by which endpoints can it not be?

- `candidate_filters`: `silent-endpoint-screener`: which endpoints have fallen silent?
- `detectors`: `utilization-detector`: how full is the pool?

The plugin host loads them through their entry points. They may import `endpick.api`.
"""
