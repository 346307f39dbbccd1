"""Data producers: what is worked out about a request before it is scheduled."""
