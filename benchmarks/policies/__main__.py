"""`python -m benchmarks.policies`: see `study`, which child processes import under its own name."""

from benchmarks.policies.study import main

if __name__ == "__main__":
    raise SystemExit(main())
