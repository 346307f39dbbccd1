"""One request through everything but the socket, over and over: for profilers and instruction counters.

Prints what a request costs for pools of 1 to 1000 endpoints. `perf stat -e instructions:u` counts alike however busy the machine is.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import math
import pstats
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from prometheus_client import CollectorRegistry

from benchmarks.extproc.messages import Conversation, conversations
from benchmarks.extproc.phased import Phase, encoded_requests, phases
from benchmarks.extproc.plan import PROFILE
from benchmarks.extproc.serve import sessions
from endpick.api import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, Endpoint
from endpick.api.keys import CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS
from endpick.config import load_config
from endpick.engine.picker import Deployment, Picker, PickerSettings
from endpick.extproc.session import session_factory
from endpick.extproc.stream import SessionFactory
from endpick.host.breaker import BreakerSettings
from endpick.host.discovery import discover
from endpick.host.planning.plan import Plan
from endpick.host.planning.planner import make_plan
from endpick.serve.metrics import EndpickMetrics
from endpick.serve.recorder import Recorder
from endpick.transport.h2 import frames
from endpick.transport.h2.connection import Connection
from endpick.transport.h2.frames import DATA, FRAME_HEAD, ErrorCode
from endpick.transport.limits import Limits, TransportCounters
from endpick.transport.methods import ext_proc_methods

STREAMS = 4
"""Streams whose phases arrive together, as under load."""


async def planned_sessions(endpoints: int, without: Sequence[str] = ()) -> SessionFactory:
    """The sessions of `endpick serve` with llm-d's default profile, metrics included, over endpoints that have all just reported.

    Time stands still, or they would fall silent during a long count: nothing reports again.
    """
    plan = make_plan(load_config(text=PROFILE), discover()).plan
    assert plan is not None
    on_request = {kind: tuple(name for name in names if name not in without) for kind, names in plan.on_request.items()}
    _, sessions = await deployed(replace(plan, on_request=on_request), endpoints)
    return sessions


async def deployed(plan: Plan, endpoints: int) -> tuple[Deployment, SessionFactory]:
    """A deployment of the plan, and its sessions."""
    registry = CollectorRegistry()
    clock = partial(float, time.monotonic())  # a function of C, as `time.monotonic` is
    # Under valgrind, or on a machine that others use, calls may be late, and an instance that is left out costs nothing.
    settings = PickerSettings(is_offline=True, breaker=BreakerSettings(budget_seconds=math.inf))
    picker = Picker(plan, settings, clock=clock, telemetry=Recorder(EndpickMetrics(registry), clock))
    await picker.start()
    table = picker.table
    table.replace_all(Endpoint(f"bench/e{row}", f"10.0.{row >> 8}.{row & 255}", 8000) for row in range(endpoints))
    for row, endpoint in enumerate(table.generation.endpoints):
        values = {WAITING_QUEUE_SIZE: row % 7, KV_CACHE_USAGE: row % 10 / 10, CACHE_BLOCK_SIZE: 16, CACHE_NUM_BLOCKS: 4096}
        for key, value in values.items():
            table.write(key, endpoint, float(value))
    return picker.deployment, partial(session_factory(picker.director), clock=clock)


class Rounds:
    """A connection that is told the same story again and again."""

    def __init__(self, open_session: SessionFactory, script: Sequence[Phase]) -> None:
        limits = Limits()
        self._connection = Connection(ext_proc_methods(open_session), limits, TransportCounters(), lambda *_: None, time.monotonic())
        first, self._block = encoded_requests()
        self._script = script
        self._next = 1
        self._connection.receive(frames.PREFACE + frames.settings({4: 2**30}) + frames.window_update(0, 2**30), time.monotonic())
        self._connection.outbox.take()
        self._run(1, first)

    def run(self, count: int) -> None:
        """That many requests, rounded up to whole batches."""
        for _ in range(0, count, STREAMS):
            self._run(STREAMS, self._block)

    def _run(self, streams: int, block: bytes) -> None:
        ids = range(self._next, self._next + 2 * streams, 2)
        self._next += 2 * streams
        written = 0
        for position, phase in enumerate(self._script):
            parts = []
            for stream_id in ids:
                if not position:
                    parts.append(frames.headers(stream_id, block, end_stream=False))
                parts += [FRAME_HEAD.pack(len(piece) >> 8, len(piece) & 0xFF, DATA, 0, stream_id) + piece for piece in phase.payloads]
            written += self._receive(b"".join(parts))
        written += self._receive(b"".join(frames.rst_stream(stream_id, ErrorCode.NO_ERROR) for stream_id in ids))
        # All that was written counts as read, or the windows would close.
        self._receive(frames.window_update(0, written))

    def _receive(self, data: bytes) -> int:
        self._connection.receive(data, time.monotonic())
        output = self._connection.outbox.take()
        if self._connection.lifetime.closing:
            raise RuntimeError(f"the connection ended: {output[-200:]!r}")
        return len(output)


def microseconds(rounds: Rounds, count: int) -> float:
    """CPU time of one request."""
    started = time.process_time()
    rounds.run(count)
    return (time.process_time() - started) / count * 1e6


def profiled(rounds: Rounds, count: int) -> None:
    """Print where the time goes; times are inflated by the profiler, so read shares and calls."""
    profiler = cProfile.Profile()
    profiler.runcall(rounds.run, count)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.request", description=__doc__.splitlines()[0])
    parser.add_argument("--session", choices=("echo", "trivial", "plan"), default="plan")
    parser.add_argument("--only", default="", help="the conversation of this name, or those whose names contain it")
    parser.add_argument("--endpoints", default="1,4,16,100,1000", help="for plan: sizes of the pool")
    parser.add_argument("--requests", type=int, default=1000, help="in each of five windows")
    parser.add_argument("--without", action="append", default=[], help="a plugin that is taken off the request path")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    chosen: list[Conversation] = [each for each in conversations() if each.name == options.only] or [
        each for each in conversations() if options.only in each.name
    ]
    sizes = [int(size) for size in options.endpoints.split(",")] if options.session == "plan" else [1]
    pools = [
        asyncio.run(planned_sessions(size, options.without)) if options.session == "plan" else sessions(options.session) for size in sizes
    ]
    gc.collect()
    gc.freeze()
    print("| µs CPU per request | " + " | ".join(f"{size} endpoints" for size in sizes) + " |\n|---|" + "---|" * len(sizes))
    for conversation in chosen:
        costs = []
        for open_session in pools:
            rounds = Rounds(open_session, phases(conversation, options.session))
            rounds.run(options.requests // 4)
            if options.profile:
                profiled(rounds, options.requests)
            costs.append(min(microseconds(rounds, options.requests) for _ in range(5)))
        print(f"| {conversation.name} | " + " | ".join(f"{cost:.1f}" for cost in costs) + " |")


if __name__ == "__main__":
    main()
