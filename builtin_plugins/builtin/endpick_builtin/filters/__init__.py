"""Filters by label, load, cache affinity and predicted latency."""
