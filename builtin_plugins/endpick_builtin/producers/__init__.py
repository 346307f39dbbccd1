"""Data producers: what is found out about a request before it is scheduled?

- `prefix_cache`: `approx-prefix-cache-producer`: how much of a prompt does each endpoint have cached?
- `prefix_index`: which endpoint was sent which beginning of a prompt?
- `inflight_load`: `inflight-load-producer`: how much work is each endpoint still doing for this picker?

The plugin host loads them through their entry points. They may import `endpick.api`.
"""
