"""The size of `/metrics`, and the time to write it, after requests under many made-up names.

`python -m benchmarks.metrics_page`: one line per number of combinations of model and fairness id.
"""

from __future__ import annotations

import argparse
import time
from types import SimpleNamespace

from prometheus_client import CollectorRegistry, generate_latest

from endpick.api import Endpoint
from endpick.api.request import Usage
from endpick.api.request_control import ResponseEnd, TerminationCause
from endpick.serve.metrics import EndpickMetrics
from endpick.serve.recorder import MAX_COMBINATIONS, Recorder

STREAM = SimpleNamespace(request_id="0f9c2a5e-0d1b-4c8e-9d5f-3f6f0a1c2b7e", streaming=True, processing_seconds=0.0, gaps=None)
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metrics_page", description=__doc__.splitlines()[0])
    parser.add_argument("--names", default="5,250,3000", help="requests under made-up names")
    options = parser.parse_args()
    print("| made-up names | limit | page, MB | writing, ms |\n|---|---|---|---|")
    for names in map(int, options.names.split(",")):
        for limit in (MAX_COMBINATIONS, names) if names > MAX_COMBINATIONS else (MAX_COMBINATIONS,):
            registry = filled(names, limit)
            began = time.perf_counter()
            page = generate_latest(registry)
            seconds = time.perf_counter() - began
            print(f"| {names} | {limit} | {len(page) / 1e6:.2f} | {seconds * 1e3:.0f} |")


if __name__ == "__main__":
    main()
