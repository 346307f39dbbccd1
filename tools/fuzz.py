"""Run the fuzz targets of `tests/fuzz` again and again for a bounded time, each round with other examples."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """The exit code is that of the first round that finds something, with the example that shows it; otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="no round begins later; the last one ends a little later")
    end = time.monotonic() + parser.parse_args().seconds
    rounds = 0
    while rounds == 0 or time.monotonic() < end:
        command = [sys.executable, "-m", "pytest", "tests/fuzz", "-q", "-n", "auto", "--timeout=600", "--hypothesis-profile=fuzz"]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if status:
            return status
        rounds += 1
    print(f"{rounds} rounds found nothing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
