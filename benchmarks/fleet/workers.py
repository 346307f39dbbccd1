"""What a request costs 1, 2 and 4 workers, divided by what it costs a single process.

Each worker gets as many requests a second as the single process, at the same time and on the same core. The gateways have the other one.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.extproc.load import cpu_seconds, resident_mebibytes
from benchmarks.extproc.plan import CONFIG, ON_LOOPBACK, endpoints_file, ports_of
from benchmarks.fleet.paced import PROMPTS, Pace, PacedGateway, awake
from benchmarks.model_server import model_server

ENDPOINTS = 4
WORKER_CORE, GATEWAY_CORE = 0, 1
_prompts = itertools.count(0, PROMPTS)


@contextmanager
def supervised(python: str, workers: int, port: int, endpoints: int = ENDPOINTS) -> Iterator[tuple[int, int]]:
    """The port and the process of a supervisor."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.yaml").write_text(CONFIG)
        Path(folder, "endpoints.yaml").write_text(endpoints_file(endpoints, port))
        command = [
            "taskset",
            "-c",
            str(WORKER_CORE),
            python,
            "-m",
            "endpick",
            "serve",
            "config.yaml",
            *ON_LOOPBACK,
            f"--workers={workers}",
            "--drain-timeout=100ms",
        ]
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


def processes(workers: int, supervisor: int) -> tuple[list[int], list[int]]:
    """The workers, and their supervisor."""
    return ([supervisor], []) if workers == 1 else (children(supervisor), [supervisor])


class Serving:
    """A picker of one or several workers, and its gateway."""

    def __init__(self, stack: ExitStack, python: str, workers: int, port: int, options: argparse.Namespace) -> None:
        served, supervisor = stack.enter_context(supervised(python, workers, port))
        pace = Pace(options.rate * workers, options.seconds, 4 * workers, 1024, GATEWAY_CORE)
        self.gateway = PacedGateway(served, pace, next(_prompts))
        stack.callback(self.gateway.stop)
        self.workers, others = processes(workers, supervisor)
        self._all = (*self.workers, *others)
        self._used = 0.0

    def begin(self) -> None:
        """Begin a window."""
        self._used = sum(map(cpu_seconds, self._all))
        self.gateway.begin()

    def cost(self) -> float:
        """CPU seconds per request of the window, of the workers and their supervisor."""
        requests = self.gateway.requests()
        return (sum(map(cpu_seconds, self._all)) - self._used) / requests


def compared(workers: int, port: int, options: argparse.Namespace) -> tuple[list[float], float, float]:
    """The cost in each window, divided by that of a single process; its median in seconds; MiB per worker."""
    with ExitStack() as stack:
        one, many = (Serving(stack, options.python, count, port, options) for count in (1, workers))
        found = []
        for number in range(options.rounds + 1):
            for serving in (one, many)[:: (-1) ** number]:
                serving.begin()
            alone, cost = one.cost(), many.cost()
            if number:  # the first is for warming up
                found.append((cost / alone, cost))
        memory = sum(map(resident_mebibytes, many.workers)) / workers
    return [ratio for ratio, _ in found], statistics.median(cost for _, cost in found), memory


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.workers", description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the interpreter for which endpick is installed")
    parser.add_argument("--rate", type=float, default=250.0, help="requests a second of each worker (%(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    print("| workers | CPU, divided by that of one process | µs per request | MiB per worker |\n|---|---|---|---|")
    with model_server(GATEWAY_CORE) as port, awake(WORKER_CORE):
        for workers in (1, 2, 4):
            ratios, cost, memory = compared(workers, port, options)
            low, middle, high = statistics.quantiles(ratios)
            print(f"| {workers} | {middle:.2f} ({low:.2f} to {high:.2f}) | {cost * 1e6:.0f} | {memory:.0f} |", flush=True)


if __name__ == "__main__":
    main()
