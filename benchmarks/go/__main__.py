"""Compare endpick with llm-d's endpoint picker in Go: python -m benchmarks.go --epp /path/to/epp, or `make bench-go GO_EPP=/path/to/epp`.

All of them read the same configuration and the same file of endpoints, and collect the same page of metrics. They run beside each other
on one core and take turns under load; the gateway and the model servers are on another. What scraping takes is measured before the load
and subtracted, so that a figure is the cost of a request. A ratio is of two windows next to each other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from benchmarks.extproc.load import cpu_seconds, resident_mebibytes
from benchmarks.extproc.plan import CONFIG
from benchmarks.go.driver import LOADS
from benchmarks.go.pickers import MISSING, add_options, commands, idle_share, started
from benchmarks.model_server import model_server


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
    idle_shares: dict[int, float] = field(default_factory=dict)
    resident: dict[int, float] = field(default_factory=dict)

    def cost(self, case: tuple[int, str]) -> float:
        """Median CPU microseconds per request."""
        return statistics.median(sample.microseconds for sample in self.samples[case])

    def ratios(self, other: Contestant, case: tuple[int, str]) -> list[float]:
        """What it takes, divided by what another takes in the same turn; lowest first."""
        return sorted(own.microseconds / its.microseconds for own, its in zip(self.samples[case], other.samples[case], strict=True))


def main() -> int:
    """Measure and print; 1 when a request failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.go", description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--endpoints", default="4,16", help="how many, one pool after the other (%(default)s)")
    parser.add_argument("--only", default="", help="loads whose name contains this")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each picker for each load")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--streams", type=int, default=4, help="per connection")
    options = parser.parse_args()
    if not options.epp:
        print(MISSING)
        return 0
    contestants = [Contestant(name, command) for name, command in commands(options.epp).items()]
    loads = [name for name in LOADS if options.only in name]
    pools = [int(count) for count in options.endpoints.split(",")]
    with model_server(options.load_core, long_page=True) as port:
        for endpoints in pools:
            _compare(contestants, endpoints, port, loads, options)
    _report(contestants, pools, loads)
    return int(any(sample.failed for each in contestants for samples in each.samples.values() for sample in samples))


def _compare(
    contestants: Sequence[Contestant], endpoints: int, model_server_port: int, loads: Sequence[str], options: argparse.Namespace
) -> None:
    with ExitStack() as stack:
        running = []
        for each in contestants:
            picker = started(each.name, each.command, CONFIG, endpoints, model_server_port, options.picker_core)
            running.append((each, *stack.enter_context(picker)))
        for each, port, pid in running:
            _drive(port, loads[0], options.seconds, options)  # until it is warm
            each.idle_shares[endpoints] = idle_share(pid, options.seconds)
        for load in loads:
            for number in range(options.rounds):
                turn = number % len(running)
                for each, port, pid in (*running[turn:], *running[:turn]):
                    sample = _measure(port, pid, load, each.idle_shares[endpoints], options)
                    each.samples.setdefault((endpoints, load), []).append(sample)
        for each, _, pid in running:
            each.resident[endpoints] = resident_mebibytes(pid)


def _measure(port: int, pid: int, load: str, idle: float, options: argparse.Namespace) -> Sample:
    began, spent = time.monotonic(), cpu_seconds(pid)
    found = _drive(port, load, options.seconds, options)
    used = cpu_seconds(pid) - spent - idle * (time.monotonic() - began)
    return Sample(found["requests"], found["failed"], used / max(1, found["requests"]) * 1e6, tuple(found["picks_ms"]))


def _drive(port: int, load: str, seconds: float, options: argparse.Namespace) -> Mapping[str, Any]:
    command = [sys.executable, "-m", "benchmarks.go.driver", str(port), "--load", load, "--seconds", str(seconds)]
    command += ["--connections", str(options.connections), "--streams", str(options.streams), "--core", str(options.load_core)]
    found: Mapping[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=seconds + 60).stdout)
    return found


def _report(contestants: Sequence[Contestant], pools: Sequence[int], loads: Sequence[str]) -> None:
    """Ratios first: what endpick takes, divided by what the Go picker takes."""
    go, *ours = contestants
    print(
        f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, Linux {platform.release()}, Python {platform.python_version()}\n"
    )
    names = ", ".join(each.name for each in contestants)
    print(f"| load | endpoints | {' | '.join(each.name for each in ours)} | CPU µs: {names} | p99 of the pick, ms | failed |")
    print("|---" * (5 + len(ours)) + "|")
    for load in loads:
        for endpoints in pools:
            case = (endpoints, load)
            ratios = " | ".join(_spread(each.ratios(go, case)) for each in ours)
            costs = ", ".join(f"{each.cost(case):.0f}" for each in contestants)
            slowest = ", ".join(f"{_p99(each.samples[case]):.2f}" for each in contestants)
            failed = ", ".join(str(sum(sample.failed for sample in each.samples[case])) for each in contestants)
            print(f"| {load} | {endpoints} | {ratios} | {costs} | {slowest} | {failed} |")
    print()
    for endpoints in pools:
        idle = ", ".join(f"{each.idle_shares[endpoints] * 100:.1f} %" for each in contestants)
        held = ", ".join(f"{each.resident[endpoints]:.0f} MiB" for each in contestants)
        print(f"{endpoints} endpoints, {names}: {idle} of the core when idle, {held} after the load")


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def _p99(samples: Sequence[Sample]) -> float:
    ordered = sorted(pick for sample in samples for pick in sample.picks_ms) or [0.0]
    return ordered[int(len(ordered) * 0.99)]


if __name__ == "__main__":
    sys.exit(main())
