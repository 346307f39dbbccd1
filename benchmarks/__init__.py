"""Benchmarks: each prints ratios first, and every one is one command. `python -m benchmarks` runs them all."""
