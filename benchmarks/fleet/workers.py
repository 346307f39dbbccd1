"""What a request costs with 1, 2 and 4 workers: CPU of the workers, of their supervisor and of the store they share.

The gateway plays on the same cores, so the throughput says little; CPU per request is what counts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.extproc.load import Load, _phased, cpu_seconds, resident_mebibytes
from benchmarks.extproc.messages import conversations
from benchmarks.extproc.plan import CONFIG, ON_LOOPBACK, endpoints_file, ports_of
from benchmarks.model_server import model_server

ENDPOINTS = 16


@contextmanager
def supervised(python: str, workers: int, port: int) -> Iterator[tuple[int, int]]:
    """The port and the process of a supervisor."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.yaml").write_text(CONFIG)
        Path(folder, "endpoints.yaml").write_text(endpoints_file(ENDPOINTS, port))
        command = [python, "-m", "endpick", "serve", "config.yaml", *ON_LOOPBACK, f"--workers={workers}", "--drain-timeout=100ms"]
        with Path(folder, "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as process:
            try:
                found, _ = ports_of(process, Path(folder, "log"))
                while Path(folder, "log").read_text().count('"worker serving"') < (workers if workers > 1 else 0):
                    time.sleep(0.1)
                yield found, process.pid
            finally:
                process.terminate()


def children(process: int) -> list[int]:
    """The processes that it has started."""
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.workers", description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the interpreter for which endpick is installed")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a window")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    [conversation] = [each for each in conversations() if each.name == "1 KB"]
    print("| workers | CPU µs per request | of it supervisor and store | requests a second | MiB per worker |\n|---|---|---|---|---|")
    with model_server(core=0) as port:
        for _ in range(options.rounds):
            for workers in (1, 2, 4):
                with supervised(options.python, workers, port) as (served, process):
                    started = children(process)
                    serving = started if workers > 1 else [process]
                    store = [pid for pid in started if "valkey" in Path(f"/proc/{pid}/comm").read_text()]
                    others = [*store, *([process] if workers > 1 else [])]
                    everyone = {*serving, *others}
                    before, overhead = sum(map(cpu_seconds, everyone)), sum(map(cpu_seconds, others))
                    time.sleep(2.0)
                    idle, idle_overhead = (sum(map(cpu_seconds, everyone)) - before) / 2, (sum(map(cpu_seconds, others)) - overhead) / 2
                    before, overhead = sum(map(cpu_seconds, everyone)), sum(map(cpu_seconds, others))
                    found = _phased(served, conversation, "plan", Load(options.seconds, 8, 4, 0))
                    used = sum(map(cpu_seconds, everyone)) - before - idle * options.seconds
                    aside = sum(map(cpu_seconds, others)) - overhead - idle_overhead * options.seconds
                    memory = [resident_mebibytes(pid) for pid in serving if pid not in store]
                    each, beside = (seconds / found.requests * 1e6 for seconds in (used, aside))
                    rate = found.requests / options.seconds
                    print(f"| {workers} | {each:.0f} | {beside:.0f} | {rate:.0f} | {sum(memory) / len(memory):.0f} |", flush=True)
                    assert not found.failed, f"{found.failed} requests failed"


if __name__ == "__main__":
    main()
