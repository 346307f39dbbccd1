"""What several pickers cost: `python -m benchmarks.fleet.sharing` and `python -m benchmarks.fleet.workers`."""
