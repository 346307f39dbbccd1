"""Data producers, which attach data to a request before it is scheduled."""
