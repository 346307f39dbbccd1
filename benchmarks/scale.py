"""What collecting costs at scale, and whether memory stays: `python -m benchmarks.scale`, or `make bench-scale`.

A pool whose pages change in every number from one scrape to the next, with lengths that change as well, is followed by the collection
loop of this process: CPU time of the process, of all its threads, by second; what else the machine does hardly shows in it. In between
prometheus_client reads one of the same pages, for comparison. The pages come from a process of its own, which is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import uvloop
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.scrape import TOLERATED_AGE_SECONDS, long_page, ready, serving, short_page
from endpick.api import Endpoint
from endpick.data.collection import Collection, CollectionLoop, CollectionSettings
from endpick.data.polling import SourceBinding
from endpick.host.telemetry import NullTelemetry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from endpick.host.instance import Instance

VARIANTS = 7
"""Pages, taken in turns by all endpoints together: a pool of 16, 100 or 1000 never sees the same one twice in a row."""
WINDOW_SECONDS = 5.0
SETTLE_SECONDS = 3.0
_NUMBER = re.compile(rb" [0-9.e+]+$", re.MULTILINE)


def changing(page: bytes) -> tuple[bytes, ...]:
    """The page at several moments."""
    random = Random(3)

    def moment() -> bytes:
        return _NUMBER.sub(lambda _: f" {random.uniform(0, 10 ** random.randint(0, 6)):.{random.randint(0, 4)}f}".encode(), page)

    return tuple(moment() for _ in range(VARIANTS))


class Counted(NullTelemetry):
    """How many scrapes there were, and how many had no answer in time."""

    def __init__(self) -> None:
        self.scrapes = self.failed = 0

    def poll_error(self, source: Instance, endpoint: str, problem: BaseException | str) -> None:
        self.failed += 1


@asynccontextmanager
async def collecting(port: int, endpoints: int, interval_seconds: float) -> AsyncIterator[Counted]:
    """While a pool of that size is followed."""
    source, collector, table = await ready()
    table.replace_all(Endpoint(f"default/e{number}", "127.0.0.1", port) for number in range(endpoints))
    counted, plugin = Counted(), source.plugin
    fetch = plugin.fetch  # type: ignore[attr-defined]

    async def counting(endpoint: Endpoint) -> bytes:
        body: bytes = await fetch(endpoint)
        counted.scrapes += 1
        return body

    plugin.fetch = counting  # type: ignore[attr-defined]
    collection = Collection((SourceBinding(source, (collector,)),), TOLERATED_AGE_SECONDS)
    loop = CollectionLoop(table, collection, CollectionSettings(interval_seconds), counted)
    loop.start()
    await asyncio.sleep(SETTLE_SECONDS)
    try:
        yield counted
    finally:
        await loop.stop()
        await plugin.stop()


async def windows(port: int, endpoints: int, interval_seconds: float, count: int) -> tuple[float, float, int]:
    """Cores and scrapes a second, medians of windows, and how many scrapes failed once the pool is settled."""
    cores, rates = [], []
    async with collecting(port, endpoints, interval_seconds) as counted:
        counted.failed = 0
        for _ in range(count):
            cpu, wall, before = process_time(), perf_counter(), counted.scrapes
            await asyncio.sleep(WINDOW_SECONDS)
            elapsed = perf_counter() - wall
            cores.append((process_time() - cpu) / elapsed)
            rates.append((counted.scrapes - before) / elapsed)
    return median(cores), median(rates), counted.failed


def resident_mib() -> float:
    """What this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


async def resident(port: int, endpoints: int, interval_seconds: float, minutes: float) -> list[float]:
    """MiB of this process, once each half minute."""
    found = []
    async with collecting(port, endpoints, interval_seconds):
        for _ in range(max(2, round(minutes * 2))):
            found.append(resident_mib())
            await asyncio.sleep(30)
    return found


def parse_whole_seconds(page: bytes) -> float:
    """CPU time of prometheus_client for one page."""
    text, began = page.decode(), process_time()
    for _ in range(20):
        list(text_string_to_metric_families(text))
    return (process_time() - began) / 20


POOLS = ((16, 0.05, "2 KB", short_page), (100, 0.05, "60 KB", long_page), (1000, 0.2, "60 KB", long_page))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help=f"windows of {WINDOW_SECONDS:g} s for each pool")
    parser.add_argument("--endpoints", type=int, help="only the pool of that size")
    parser.add_argument("--minutes", type=float, default=0, help="of following each pool for its memory; 0: not")
    parser.add_argument(
        "--cores", default="", help="two numbers, as `0,1`: this process keeps to the first, the server of the pages to the second"
    )
    options = parser.parse_args()
    own, servers = map(int, options.cores.split(",")) if options.cores else (None, None)
    if own is not None:
        os.sched_setaffinity(0, {own})
    for endpoints, interval, size, make in POOLS:
        if options.endpoints not in (None, endpoints):
            continue
        pages = changing(make())
        with serving(*pages, core=servers) as port:
            cores, rate, failed = uvloop.run(windows(port, endpoints, interval, options.rounds))
            whole = parse_whole_seconds(pages[0])
            parsing = whole * rate
            print(
                f"{endpoints:4} endpoints of {size} every {interval * 1000:.0f} ms: {cores:.3f} of a core, {rate:.0f} scrapes a second,",
                end="",
            )
            print(
                f" {cores / rate * 1e6:.0f} µs each, {failed} failed; only parsing with prometheus_client: {parsing / cores:.0f} times",
                end="",
            )
            print(f" as much ({parsing:.1f} cores)", flush=True)
            if options.minutes:
                found = uvloop.run(resident(port, endpoints, interval, options.minutes))
                print(f"{endpoints:4} endpoints: resident MiB, each half minute: {' '.join(f'{one:.1f}' for one in found)}", flush=True)


if __name__ == "__main__":
    main()
