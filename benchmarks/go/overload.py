"""Compare the queues of endpick with those of llm-d's picker in Go: python -m benchmarks.go.overload --epp /path/to/epp.

Three tenants ask for half as much again as the model servers can answer. The pickers take turns, with the same configuration, the same
requests at the same moments and model servers of the same kind; reported are what each tenant got, how long it waited, who was refused,
how busy the servers were, and what a request cost.

Without Kubernetes the Go picker knows one priority, so there is one band. With `--pool-port` both take the pool `bench` in the namespace
`default` of the API server that `KUBECONFIG` names: its Pods have the addresses from 127.0.100.100 on and this port, and its objectives are
`high`, of priority 10, and `low`, of priority -1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from statistics import median

from benchmarks.extproc.load import cpu_seconds
from benchmarks.go.pickers import MISSING, add_options, commands, idle_share, started
from benchmarks.go.saturated import TENANTS

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {name: endpoints, type: file-discovery, parameters: {path: endpoints.yaml}}
- DEFINED
- type: FAIRNESS
- type: active-request-scorer
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins: [{pluginRef: active-request-scorer, weight: 1}, {pluginRef: max-score-picker}]
dataLayer: {discovery: {endpoints: {pluginRef: endpoints}}}
featureGates: [flowControl]
flowControl:
  saturationDetector: {pluginRef: DETECTOR}
  defaultRequestTTL: SECONDSs
  defaultPriorityBand: {maxRequests: "MOST", fairnessPolicyRef: FAIRNESS}
"""
"""The profile spreads requests evenly, so that what differs is when they go, and whose."""
COUNTED = "{type: concurrency-detector, parameters: {maxConcurrency: PLACES}}"
REPORTED = "{type: utilization-detector}"
SCENARIOS = {
    "in turn, requests counted": ("concurrency-detector", "round-robin-fairness-policy"),
    "first come, requests counted": ("concurrency-detector", "global-strict-fairness-policy"),
    "in turn, load as reported": ("utilization-detector", "round-robin-fairness-policy"),
}
"""Detector and fairness policy of each."""


@dataclass
class Seen:
    """One window of one picker."""

    microseconds: float
    """CPU for each request that came, with all that goes on beside them."""
    net_microseconds: float
    """The same without what the picker takes while nothing is asked of it."""
    busy: float
    longest_queue: int
    broken: int
    offered: Counter[str] = field(default_factory=Counter)
    held_ms: dict[str, list[float]] = field(default_factory=dict)
    """How long the picker had each request that it let go, by tenant."""
    waits_ms: dict[str, list[float]] = field(default_factory=dict)
    """How long each waited for its place, in the picker and at its server."""
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def served(self) -> int:
        """Requests that got a place."""
        return sum(map(len, self.waits_ms.values()))


def main() -> int:
    """Measure and print; 1 when a stream broke."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.go.overload", description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--pool-port", type=int, default=0, help="of the Pods of a pool in Kubernetes, whose objectives make bands")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a window")
    parser.add_argument("--warm-seconds", type=float, default=5.0, help="until the queues are full")
    parser.add_argument("--endpoints", type=int, default=4)
    parser.add_argument("--places", type=int, default=10, help="of each model server")
    parser.add_argument("--service-seconds", type=float, default=0.2, help="mean time of a request there")
    parser.add_argument("--overload", type=float, default=1.5, help="how many times what the servers can answer is asked for")
    parser.add_argument("--ttl", type=float, default=3.0)
    parser.add_argument("--most-waiting", type=int, default=300)
    options = parser.parse_args()
    if not options.epp:
        print(MISSING)
        return 0
    in_kubernetes = ("--pool-namespace=default",) if options.pool_port else ()
    pickers = {name: (*command, *in_kubernetes) for name, command in commands(options.epp).items()}
    found: dict[tuple[str, str], list[Seen]] = {}
    for scenario in (name for name in SCENARIOS if options.only in name):
        for number in range(options.rounds):
            turn = number % len(pickers)
            for name in (*pickers, *pickers)[turn : turn + len(pickers)]:
                found.setdefault((scenario, name), []).append(_measure(name, pickers[name], scenario, options))
    _report(found, list(pickers), options)
    return int(any(seen.broken for each in found.values() for seen in each))


def _config(scenario: str, options: argparse.Namespace) -> str:
    detector, fairness = SCENARIOS[scenario]
    defined = COUNTED.replace("PLACES", str(options.places)) if detector.startswith("concurrency") else REPORTED
    filled = {"DEFINED": defined, "DETECTOR": detector, "FAIRNESS": fairness}
    filled |= {"SECONDS": f"{options.ttl:g}", "MOST": str(options.most_waiting)}
    whole = CONFIG if not options.pool_port else "".join(line for line in CONFIG.splitlines(keepends=True) if "endpoints" not in line)
    return reduce(lambda text, name: text.replace(name, filled[name]), filled, whole)


def _measure(name: str, command: Sequence[str], scenario: str, options: argparse.Namespace) -> Seen:
    capacity = options.endpoints * options.places / options.service_seconds
    asked = [sys.executable, "-m", "benchmarks.go.saturated", f"--rate={capacity * options.overload}", f"--places={options.places}"]
    asked += [f"--seconds={options.seconds}", f"--warm-seconds={options.warm_seconds}", f"--service-seconds={options.service_seconds}"]
    asked += [f"--port={options.pool_port}", *(["--objectives"] if options.pool_port else [])]
    with subprocess.Popen([*asked, f"--core={options.load_core}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as world:
        assert world.stdin is not None
        assert world.stdout is not None
        servers = int(world.stdout.readline())
        with started(name, command, _config(scenario, options), options.endpoints, servers, options.picker_core) as (port, pid):
            idle = idle_share(pid, 1.0)
            world.stdin.write(f"{port}\n")
            world.stdin.flush()
            assert world.stdout.readline() == "window\n"
            began, spent = time.monotonic(), cpu_seconds(pid)
            assert world.stdout.readline() == "over\n"
            seconds, used = time.monotonic() - began, cpu_seconds(pid) - spent
            return _seen(json.loads(world.stdout.readline()), used, used - idle * seconds, options)


def _seen(found: Mapping[str, object], used: float, net: float, options: argparse.Namespace) -> Seen:
    tenants = found["tenants"]
    assert isinstance(tenants, dict)
    offered = Counter({name: each["offered"] for name, each in tenants.items()})
    refused: Counter[str] = sum((Counter(each["refused"]) for each in tenants.values()), Counter())
    each_of = 1e6 / max(1, offered.total())
    places = options.endpoints * options.places
    held, waits = ({name: each[kind] for name, each in tenants.items()} for kind in ("held_ms", "waits_ms"))
    busy, queue, broken = float(found["busy"]) / places, int(found["longest_queue"]), int(found["broken"])  # type: ignore[call-overload, arg-type]
    return Seen(used * each_of, net * each_of, busy, queue, broken, offered, held, waits, refused)


def _report(found: Mapping[tuple[str, str], Sequence[Seen]], names: Sequence[str], options: argparse.Namespace) -> None:
    """Ratios first; everything of all rounds together, costs as medians of the rounds."""
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, Linux {platform.release()}, Python {platform.python_version()}")
    print(
        f"{options.endpoints} servers of {options.places} places and {options.service_seconds:g} s; "
        f"{options.overload:g} times what they can answer; {options.most_waiting} may wait, for {options.ttl:g} s\n"
    )
    print(
        "| queues | picker | Go : it | CPU µs (without idle) | share of "
        + ", ".join(TENANTS)
        + " | wait for a place, p50, p99 ms of each | of it in the picker, p50 | busy | longest queue of a server | refused |"
    )
    print("|---" * 10 + "|")
    for scenario in dict.fromkeys(key[0] for key in found):
        go = median(seen.microseconds for seen in found[scenario, names[0]])
        for name in names:
            rounds = found[scenario, name]
            cost, net = median(seen.microseconds for seen in rounds), median(seen.net_microseconds for seen in rounds)
            served = sum(seen.served for seen in rounds)
            waits = {tenant: sorted(wait for seen in rounds for wait in seen.waits_ms[tenant]) for tenant in TENANTS}
            shares = ", ".join(f"{len(waits[tenant]) / max(1, served):.3f}" for tenant in TENANTS)
            waited = "; ".join(f"{_quantile(waits[tenant], 0.5):.0f}, {_quantile(waits[tenant], 0.99):.0f}" for tenant in TENANTS)
            held = ", ".join(f"{_quantile(sorted(ms for seen in rounds for ms in seen.held_ms[tenant]), 0.5):.0f}" for tenant in TENANTS)
            refused: Counter[str] = sum((seen.refused for seen in rounds), Counter())
            told = ", ".join(f"{count} {reason}" for reason, count in refused.most_common())
            queue, busy = max(seen.longest_queue for seen in rounds), median(seen.busy for seen in rounds)
            print(
                f"| {scenario} | {name} | {go / cost:.2f} | {cost:.0f} ({net:.0f}) | {shares} | {waited} | {held} | {busy:.3f} | {queue} "
                f"| {told} of {sum(seen.offered.total() for seen in rounds)} |"
            )


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


if __name__ == "__main__":
    sys.exit(main())
