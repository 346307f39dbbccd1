"""Instructions per request, counted by valgrind: the same on a busy machine, for comparisons that clocks are too restless for.

`python -m benchmarks.instructions`, with the Python of the endpick that is to be counted, in its checkout. Each figure takes two runs of
`benchmarks.request` of different length: their difference leaves out what starting costs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys

SHORT, LONG = 40, 120
WINDOWS = 5.25
"""`benchmarks.request` runs a quarter of the requests to warm up, and then five windows of them."""
_COUNTED = re.compile(r"I +refs: +([0-9,]+)")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", default="trivial,plan")
    parser.add_argument("--only", default="1 KB,80 chunks,16 KB,220 KB", help="conversations of these names, or whose names contain these")
    parser.add_argument("--endpoints", default="16", help="for plan: size of the pool")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        parser.error("valgrind is not installed: apt-get install valgrind")
    print("| session | conversation | instructions a request |\n|---|---|---|")
    for session in options.sessions.split(","):
        for conversation in options.only.split(","):
            run = ["--session", session, "--only", conversation, "--endpoints", options.endpoints]
            each = (counted(run, LONG) - counted(run, SHORT)) / ((LONG - SHORT) * WINDOWS)
            print(f"| {session} | {conversation} | {each:.0f} |", flush=True)
    return 0


def counted(run: list[str], requests: int) -> int:
    """Instructions of one whole process."""
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", sys.executable]
    command += ["-m", "benchmarks.request", "--requests", str(requests), *run]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=900).stderr
    [found] = _COUNTED.findall(told)
    return int(found.replace(",", ""))


if __name__ == "__main__":
    sys.exit(main())
