"""What a scrape of `/metrics` costs, and for how long it holds the event loop, after requests under many made-up names.

`python -m benchmarks.metrics_page`: each line is a number of combinations of model and fairness id; `at once` is `generate_latest`.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from types import SimpleNamespace

from prometheus_client import CollectorRegistry, generate_latest

from endpick.api import Endpoint
from endpick.api.request import Usage
from endpick.api.request_control import ResponseEnd, TerminationCause
from endpick.serve.metrics import EndpickMetrics
from endpick.serve.recorder import MAX_COMBINATIONS, Recorder
from endpick.serve.text_page import page_of

STREAM = SimpleNamespace(streaming=True, processing_seconds=0.0, gaps=None)
END = ResponseEnd(TerminationCause.NATURAL, 200, Usage(10, 20, 5), 9, 0.1, 0.1)


def filled(combinations: int, limit: int) -> CollectorRegistry:
    """The metrics after a request under each of that many names."""
    registry = CollectorRegistry()
    recorder = Recorder(EndpickMetrics(registry), time.monotonic, limit)
    for number in range(combinations):
        name, tenant = f"model-{number}", f"tenant-{number}"
        recorder.request_scheduled(0.001, Endpoint(f"default/{number % 16}", f"10.0.0.{number % 16}", 8000), name)
        recorder.request_decided(name, name, tenant, 0, 1000, 0.001)
        recorder.request_ended(name, name, tenant, 0, END, STREAM)
    return registry


async def longest_wait(registry: CollectorRegistry) -> tuple[float, float, int]:
    """Seconds that writing the page takes, the longest that a neighbour waits for its turn meanwhile, and the bytes of the page."""
    started = last = time.perf_counter()
    longest = 0.0
    writing = asyncio.ensure_future(page_of(registry))
    while not writing.done():
        await asyncio.sleep(0)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return last - started, longest, len(await writing)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metrics_page", description=__doc__.splitlines()[0])
    parser.add_argument("--names", default="5,250,3000", help="requests under made-up names")
    options = parser.parse_args()
    print("| made-up names | limit | page, MB | longest wait, ms | whole, ms | at once, ms |\n|---|---|---|---|---|---|")
    for names in map(int, options.names.split(",")):
        for limit in (MAX_COMBINATIONS, names) if names > MAX_COMBINATIONS else (MAX_COMBINATIONS,):
            registry = filled(names, limit)
            rounds = [asyncio.run(longest_wait(registry)) for _ in range(5)]
            whole, longest, size = (sorted(values)[2] for values in zip(*rounds, strict=True))
            began = time.perf_counter()
            generate_latest(registry)
            at_once = time.perf_counter() - began
            print(f"| {names} | {limit} | {size / 1e6:.2f} | {longest * 1e3:.1f} | {whole * 1e3:.0f} | {at_once * 1e3:.0f} |")


if __name__ == "__main__":
    main()
