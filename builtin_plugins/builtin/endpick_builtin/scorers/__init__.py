"""Scorers: rate endpoints from 0 to 1 by load, affinity and latency."""
