"""What a request costs with 1, 2 and 4 workers: CPU of the workers and of their supervisor.

The workers share one core, and the gateway has the other. By default one worker after the other gets the requests of a window, so that it
and the core are as busy as with one worker, and the CPU that the others spend on what it shares is counted.
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.workers", description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the interpreter for which endpick is installed")
    parser.add_argument("--rate", type=float, default=500.0, help="requests a second (%(default)s)")
    parser.add_argument(
        "--load",
        choices=("turns", "each", "together"),
        default="turns",
        help="who gets the requests of a window: one worker, each, or all together (%(default)s)",
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a window")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    found: dict[int, list[tuple[float, float, float]]] = {}
    with model_server(GATEWAY_CORE) as port, awake(WORKER_CORE), ExitStack() as stack:
        running = []
        for workers in (1, 2, 4):
            served, supervisor = stack.enter_context(supervised(options.python, workers, port))
            rate = options.rate * workers if options.load == "each" else options.rate
            groups = workers if options.load == "turns" else 1
            pace = Pace(rate, options.seconds, 4 * workers, 1024, GATEWAY_CORE, groups)
            gateway = PacedGateway(served, pace, next(_prompts))
            stack.callback(gateway.stop)
            running.append((workers, gateway, *processes(workers, supervisor)))
        for number in range(options.rounds + 1):
            for workers, gateway, serving, others in running[:: (-1) ** number]:
                before, aside = sum(map(cpu_seconds, (*serving, *others))), sum(map(cpu_seconds, others))
                gateway.begin()
                requests = gateway.requests()
                used, beside = sum(map(cpu_seconds, (*serving, *others))) - before, sum(map(cpu_seconds, others)) - aside
                memory = sum(map(resident_mebibytes, serving)) / len(serving)
                if number:  # the first is for warming up
                    found.setdefault(workers, []).append((used / requests * 1e6, beside / requests * 1e6, memory))
    print("| workers | CPU, of that of one | µs per request | of it the supervisor | MiB per worker |\n|---|---|---|---|---|")
    for workers, samples in sorted(found.items()):
        ratios = sorted(own[0] / one[0] for own, one in zip(samples, found[1], strict=True))
        each, beside, memory = (statistics.median(column) for column in zip(*samples, strict=True))
        low, middle, high = statistics.quantiles(ratios)
        spread = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        print(f"| {workers} | {spread} | {each:.0f} | {beside:.0f} | {memory:.0f} |")


if __name__ == "__main__":
    main()
