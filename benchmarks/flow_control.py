"""Flow control: what it costs a request that need not wait, and what ten thousand that wait cost each, in time, memory and delay.

`python -m benchmarks.flow_control`. Everything is as `endpick serve` makes it, but for the sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import time
import tracemalloc
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles

from prometheus_client import CollectorRegistry

from endpick.api import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, Endpoint
from endpick.api.request import InferenceRequest
from endpick.config import load_config
from endpick.data.table import EndpointTable
from endpick.engine.picker import Picker, PickerSettings
from endpick.host.breaker import BreakerSettings
from endpick.host.discovery import discover
from endpick.host.planning.planner import make_plan
from endpick.requests.director import Director
from endpick.requests.model import BodyModes, CloseCause, IncomingRequest, Refused, Routed
from endpick.requests.waiting import FlowGate
from endpick.serve.metrics import EndpickMetrics
from endpick.serve.pool_metrics import FlowControlMetrics
from endpick.serve.recorder import Recorder

PROFILE = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: prefix-cache-scorer}
- {type: round-robin-fairness-policy}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
objectives: [{name: high, priority: 10}, {name: low, priority: -1}]
"""
GATED = """\
featureGates: [flowControl]
flowControl:
  defaultPriorityBand: {maxRequests: 20000, fairnessPolicyRef: FAIRNESS}
"""
MODES = BodyModes()


@dataclass
class Bench:
    """A director with its pool and, where the gate is on, its queues."""

    director: Director
    table: EndpointTable
    gate: FlowGate

    def load(self, queue: float) -> None:
        """Have every model server report a queue of that length."""
        for endpoint in self.table.generation.endpoints:
            self.table.write(WAITING_QUEUE_SIZE, endpoint, queue)
            self.table.write(KV_CACHE_USAGE, endpoint, 0.1)


async def bench_of(text: str, endpoints: int) -> Bench:
    """Time stands still for the plugins while requests are counted: nothing reports again."""
    plan = make_plan(load_config(text=text), discover()).plan
    assert plan is not None
    registry = CollectorRegistry()
    clock = partial(float, time.monotonic())
    metrics = EndpickMetrics(registry)
    picker = Picker(
        plan,
        PickerSettings(is_offline=True, breaker=BreakerSettings(budget_seconds=60.0)),
        clock=clock,
        telemetry=Recorder(metrics, clock),
        report=lambda: FlowControlMetrics(registry, "bench", 250, metrics.overflows.inc),
    )
    await picker.start()
    picker.table.replace_all(Endpoint(f"bench/e{row}", f"10.0.{row >> 8}.{row & 255}", 8000) for row in range(endpoints))
    bench = Bench(picker.director, picker.table, picker.gate)
    bench.load(0.0)
    return bench


def incoming(number: int, tenant: str) -> IncomingRequest:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"{number} " + "x" * 900}]}).encode()
    headers = {":path": "/v1/chat/completions", ":method": "POST", "x-llm-d-inference-fairness-id": tenant, "x-request-id": str(number)}
    return IncomingRequest(headers, body, None, 0.0, MODES)


def decided(bench: Bench, requests: list[IncomingRequest]) -> float:
    """Microseconds of CPU for one of these requests, each over at once."""
    started = time.process_time()
    for request in requests:
        decision = bench.director.decide(request)
        assert isinstance(decision, Routed)
        decision.exchange.finish(CloseCause.RESET)
    return (time.process_time() - started) / len(requests) * 1e6


async def nothing_waits(endpoints: int) -> None:
    plain = await bench_of(PROFILE, endpoints)
    gated = await bench_of(PROFILE + GATED.replace("FAIRNESS", "global-strict-fairness-policy"), endpoints)
    requests = [incoming(number, "a") for number in range(100)]
    without, with_it = [], []
    gc.collect()
    gc.disable()
    for _ in range(200):
        without.append(decided(plain, requests))
        with_it.append(decided(gated, requests))
    controller, asked = gated.gate.controller, []
    request = InferenceRequest("r", "m", "m", size_bytes=1000)
    for _ in range(15):
        started = time.process_time()
        for _ in range(1000):
            assert controller.may_pass(request)
        asked.append((time.process_time() - started) * 1e3)
    gc.enable()
    on_top = median(b - a for a, b in zip(without, with_it, strict=True))
    print(f"nothing waits, {endpoints} endpoints: a decision takes {median(without):.1f} µs, and {on_top:.1f} µs more with flow control")
    least = min(with_it) - min(without)
    print(
        f"  least of each {min(without):.1f} and {min(with_it):.1f} µs, so {least:.1f} µs more; the question alone {median(asked):.1f} µs"
    )


def _ignore(*_: object) -> None:
    pass


async def many_wait(count: int, flows: int, fairness: str) -> None:
    bench = await bench_of(PROFILE + GATED.replace("FAIRNESS", fairness), 16)
    bench.load(100.0)
    requests = [incoming(number, f"tenant-{number % flows}") for number in range(count)]
    bodies = sum(len(request.body or b"") for request in requests) / count
    controller = bench.gate.controller
    # Pure queues first: what is put in and let go there, without director and plugins of the request path.
    asked = [
        InferenceRequest(request.headers["x-request-id"], "m", "m", fairness_id=f"tenant-{number % flows}", size_bytes=1000)
        for number, request in enumerate(requests)
    ]
    gc.collect()
    gc.disable()
    started = time.process_time()
    for request in asked:
        controller.offer(request, _ignore)
    enqueued = (time.process_time() - started) / count * 1e6
    bench.load(0.0)
    started = time.process_time()
    while controller.dispatch():
        pass
    dispatched = (time.process_time() - started) / count * 1e6
    gc.enable()
    assert not controller.waiting
    bench.load(100.0)

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    later = [bench.director.decide(request) for request in requests]
    held = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()
    waiting = [asyncio.ensure_future(each) for each in later if not isinstance(each, Routed | Refused)]
    assert len(waiting) == count

    loop = asyncio.get_running_loop()
    delays, busy = [], []
    done = asyncio.Event()

    def tick(due: float, spent: float) -> None:
        """The second list is what the process itself did between two ticks: other load on the machine does not count."""
        delays.append(loop.time() - due)
        busy.append(time.process_time() - spent)
        if not done.is_set():
            loop.call_at(loop.time() + 0.001, tick, loop.time() + 0.001, time.process_time())

    tick(loop.time(), time.process_time())
    bench.load(0.0)
    bench.gate.something_changed()
    began = time.perf_counter()
    for decision in await asyncio.gather(*waiting):
        assert isinstance(decision, Routed), decision
        decision.exchange.finish(CloseCause.RESET)
    done.set()
    seconds = time.perf_counter() - began
    cuts, own = quantiles(delays, n=100), quantiles(busy, n=100)
    print(f"{count} wait in {flows} flows, {fairness}:")
    print(f"  put in {enqueued:.1f} µs, let go {dispatched:.1f} µs each; {held:.0f} bytes each beside a body of {bodies:.0f}")
    print(f"  all gone in {seconds:.1f} s; delay of the event loop p50 {cuts[49] * 1e3:.2f}, p99 {cuts[98] * 1e3:.2f} ms")
    print(f"  CPU between two of its ticks, 1 ms apart: p50 {own[49] * 1e3:.2f}, p99 {own[98] * 1e3:.2f}, most {max(busy) * 1e3:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=10_000)
    options = parser.parse_args()

    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")

    async def run() -> None:
        for endpoints in (4, 16):
            await nothing_waits(endpoints)
        for flows, fairness in (
            (1, "global-strict-fairness-policy"),
            (10_000, "global-strict-fairness-policy"),
            (10_000, "round-robin-fairness-policy"),
        ):
            await many_wait(options.waiting, flows, fairness)

    asyncio.run(run())


if __name__ == "__main__":
    main()
