"""Compare endpick with llm-d's endpoint picker in Go: python -m benchmarks.go --epp /path/to/epp, or `make bench-go GO_EPP=/path/to/epp`.

All of them read the same configuration and the same file of endpoints, and collect the same page of metrics. They take turns, each in a
process of its own on one core, and the gateway and the model servers are on another. What scraping takes is measured before the load and
subtracted, so that a figure is the cost of a request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from benchmarks.extproc.load import cpu_seconds, resident_mebibytes
from benchmarks.extproc.plan import CONFIG, endpoints_file
from benchmarks.extproc.served import COMPILED_PYTHON
from benchmarks.go.driver import LOADS, first_decision
from benchmarks.model_server import model_server

GO = "Go"
_LIMIT_SECONDS = 60.0


@dataclass(frozen=True)
class Sample:
    """One window of one load on one picker."""

    requests: int
    failed: int
    microseconds: float
    """CPU per request, without what scraping takes."""
    picks_ms: tuple[float, ...]


@dataclass
class Contestant:
    """A picker, and what was measured of it."""

    name: str
    command: Sequence[str]
    samples: dict[tuple[int, str], list[Sample]] = field(default_factory=dict)
    idle_shares: dict[int, list[float]] = field(default_factory=dict)
    resident: dict[int, list[float]] = field(default_factory=dict)

    def cost(self, case: tuple[int, str]) -> float:
        """Median CPU microseconds per request."""
        return statistics.median(sample.microseconds for sample in self.samples[case])


def main() -> int:
    """Measure and print; 1 when a request failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.go", description=__doc__.splitlines()[0])
    parser.add_argument("--epp", default="", help="the Go binary")
    parser.add_argument("--endpoints", default="4,16", help="how many, one pool after the other (%(default)s)")
    parser.add_argument("--only", default="", help="loads whose name contains this")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a window")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each picker for each pool")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--streams", type=int, default=4, help="per connection")
    parser.add_argument("--picker-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    options = parser.parse_args()
    if not options.epp:
        print("skipped: no Go endpoint picker is given; build one of llm-d's, then `make bench-go GO_EPP=/path/to/epp`")
        return 0
    contestants = contestants_of(options.epp)
    loads = [name for name in LOADS if options.only in name]
    pools = [int(count) for count in options.endpoints.split(",")]
    with model_server(options.load_core, long_page=True) as port:
        for endpoints in pools:
            for number in range(options.rounds):
                turn = number % len(contestants)
                for contestant in (*contestants[turn:], *contestants[:turn]):
                    _measure(contestant, endpoints, port, loads, options)
    _report(contestants, pools, loads)
    return int(any(sample.failed for each in contestants for samples in each.samples.values() for sample in samples))


def contestants_of(epp: str) -> tuple[Contestant, ...]:
    own = {"interpreted": sys.executable} | ({"compiled": str(COMPILED_PYTHON.absolute())} if COMPILED_PYTHON.exists() else {})
    quiet = (
        "--metrics-endpoint-auth=false",
        "--tracing=false",
        "--enable-pprof=false",
        "--pool-namespace=bench",
        "-v=1",
        "--zap-devel=false",
    )
    endpicks = (Contestant(name, (python, "-m", "endpick", "serve", "--host=127.0.0.1")) for name, python in own.items())
    return (Contestant(GO, (epp, *quiet)), *endpicks)


def _measure(contestant: Contestant, endpoints: int, model_server_port: int, loads: Sequence[str], options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder, started(contestant, Path(folder), endpoints, model_server_port, options) as (port, pid):
        _drive(port, loads[0], options.seconds / 3, options)  # until it is warm
        idle = idle_share(pid, options.seconds / 2)
        contestant.idle_shares.setdefault(endpoints, []).append(idle)
        for load in loads:
            began, spent = time.monotonic(), cpu_seconds(pid)
            found = _drive(port, load, options.seconds, options)
            used = cpu_seconds(pid) - spent - idle * (time.monotonic() - began)
            cost = used / max(1, found["requests"]) * 1e6
            sample = Sample(found["requests"], found["failed"], cost, tuple(found["picks_ms"]))
            contestant.samples.setdefault((endpoints, load), []).append(sample)
        contestant.resident.setdefault(endpoints, []).append(resident_mebibytes(pid))


@contextmanager
def started(
    contestant: Contestant, folder: Path, endpoints: int, model_server_port: int, options: argparse.Namespace
) -> Iterator[tuple[int, int]]:
    """Port and process id of a picker that decides."""
    files = {name: folder / f"{name}.yaml" for name in ("endpoints", "config")}
    files["endpoints"].write_text(endpoints_file(endpoints, model_server_port))
    files["config"].write_text(CONFIG.replace("endpoints.yaml", str(files["endpoints"])))
    ports = dict(zip(("--grpc-port", "--grpc-health-port", "--metrics-port"), _free_ports(3), strict=True))
    command = ["taskset", "-c", str(options.picker_core), *contestant.command, f"--config-file={files['config']}", "--secure-serving=false"]
    command += ["--pool-name=bench", "--refresh-metrics-interval=50ms", *(f"{flag}={port}" for flag, port in ports.items())]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            uvloop.run(_in_time(process, ports["--grpc-port"]))
            yield ports["--grpc-port"], process.pid
        except (RuntimeError, TimeoutError) as problem:
            raise SystemExit(f"{contestant.name}: {problem}\n{(folder / 'log').read_text()[-2000:]}") from problem
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


async def _in_time(process: subprocess.Popen[bytes], port: int) -> None:
    await asyncio.wait_for(first_decision(process, port), _LIMIT_SECONDS)


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _drive(port: int, load: str, seconds: float, options: argparse.Namespace) -> Mapping[str, object]:
    command = [sys.executable, "-m", "benchmarks.go.driver", str(port), "--load", load, "--seconds", str(seconds)]
    command += ["--connections", str(options.connections), "--streams", str(options.streams), "--core", str(options.load_core)]
    found: Mapping[str, object] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=seconds + 60).stdout)
    return found


def idle_share(pid: int, seconds: float) -> float:
    began, spent = time.monotonic(), cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - spent) / (time.monotonic() - began)


def _report(contestants: Sequence[Contestant], pools: Sequence[int], loads: Sequence[str]) -> None:
    """Ratios first: how many times what endpick takes the Go picker takes."""
    go, *ours = contestants
    print(
        f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, Linux {platform.release()}, Python {platform.python_version()}\n"
    )
    names = ", ".join(each.name for each in contestants)
    print(f"| load | endpoints | {' | '.join(f'Go : {each.name}' for each in ours)} | CPU µs: {names} | p99 of the pick, ms | failed |")
    print("|---" * (5 + len(ours)) + "|")
    for load in loads:
        for endpoints in pools:
            case = (endpoints, load)
            ratios = " | ".join(f"{go.cost(case) / each.cost(case):.2f}" for each in ours)
            costs = ", ".join(f"{each.cost(case):.0f}" for each in contestants)
            slowest = ", ".join(f"{_p99(each.samples[case]):.2f}" for each in contestants)
            failed = ", ".join(str(sum(sample.failed for sample in each.samples[case])) for each in contestants)
            print(f"| {load} | {endpoints} | {ratios} | {costs} | {slowest} | {failed} |")
    print()
    for endpoints in pools:
        idle = ", ".join(f"{statistics.median(each.idle_shares[endpoints]) * 100:.1f} %" for each in contestants)
        held = ", ".join(f"{statistics.median(each.resident[endpoints]):.0f} MiB" for each in contestants)
        print(f"{endpoints} endpoints, {names}: {idle} of the core when idle, {held} after the load")


def _p99(samples: Sequence[Sample]) -> float:
    ordered = sorted(pick for sample in samples for pick in sample.picks_ms) or [0.0]
    return ordered[int(len(ordered) * 0.99)]


if __name__ == "__main__":
    sys.exit(main())
