"""`predicted-latency`: sends a request where it is expected to cost the least time."""
