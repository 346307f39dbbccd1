"""What sharing costs a picker per request: its own deltas, and those of another one as busy; without the socket and the store.

Windows of both take turns in one process.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from dataclasses import replace

from benchmarks.extproc.messages import conversations
from benchmarks.extproc.phased import phases
from benchmarks.extproc.plan import PROFILE
from benchmarks.request import Rounds, deployed, microseconds
from endpick.config import LoadedConfig, load_config
from endpick.fleet.exchange import Exchange
from endpick.host.discovery import discover
from endpick.host.planning.plan import FleetPlan, Plan
from endpick.host.planning.planner import make_plan
from endpick.host.telemetry import NullTelemetry

WINDOW = 240
WINDOWS = 60
CONFIGS = {"llm-d's default": PROFILE, "predicted-latency": None}


class Picker:
    """One picker, in a fleet or alone."""

    def __init__(self, plan: Plan, endpoints: int, size: str, name: str = "") -> None:
        fleet = FleetPlan("store") if name else None
        deployment, sessions = asyncio.run(deployed(replace(plan, fleet=fleet), endpoints))
        [conversation] = [each for each in conversations() if each.name == size]
        self.rounds = Rounds(sessions, phases(conversation, "plan"))
        self.exchange = Exchange(name, time.monotonic, NullTelemetry())
        self.exchange.follow(deployment.instances.values())
        self.rounds.run(400)
        self.sent = 0

    def told(self, requests: int) -> bytes:
        """Serve so many requests; the message about them."""
        self.rounds.run(requests)
        message = self.exchange.drain()
        assert message is not None
        self.sent += len(message)
        return message


def measure(config: str, endpoints: int, size: str, batch: int) -> str:
    """A row of the table; a message is sent for each `batch` of requests."""
    loaded: LoadedConfig = load_config() if CONFIGS[config] is None else load_config(text=CONFIGS[config])
    plan = make_plan(loaded, discover()).plan
    assert plan is not None
    alone, one, other = (Picker(plan, endpoints, size, name) for name in ("", "one", "other"))
    other.exchange.receive(one.told(batch))
    gc.collect()
    gc.freeze()
    gc.disable()
    alone_us, shared_us, one.sent = [], [], 0
    for _ in range(WINDOWS):
        alone_us.append(microseconds(alone.rounds, WINDOW))
        theirs = [other.told(batch) for _ in range(WINDOW // batch)]
        began = time.process_time()
        for message in theirs:
            one.told(batch)
            one.exchange.receive(message)
        shared_us.append((time.process_time() - began) / WINDOW * 1e6)
        gc.collect()
    ratio = statistics.median(with_it / without - 1 for without, with_it in zip(alone_us, shared_us, strict=True))
    bytes_each = one.sent / WINDOW / WINDOWS
    return f"| {config} | {endpoints} | {size} | {ratio:+.1%} | {statistics.median(alone_us):.0f} | {bytes_each:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.sharing", description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=20, help="requests per message: 20 are 1000 a second every 20 ms (%(default)s)")
    options = parser.parse_args()
    print("| policy | endpoints | request | CPU | µs alone | bytes per request |\n|---|---|---|---|---|---|")
    for config in CONFIGS:
        for endpoints, size in ((4, "1 KB"), (16, "1 KB"), (16, "16 KB")):
            print(measure(config, endpoints, size, options.batch), flush=True)


if __name__ == "__main__":
    main()
