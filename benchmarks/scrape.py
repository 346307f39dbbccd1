"""What collecting metrics costs, over loopback: `python -m benchmarks.scrape`.

Prints microseconds of CPU per scrape of pages of 2 and 60 KB with the core metrics read off them, and the share of a core that a pool
takes at the default interval. Each page differs from the one before, as a busy server's does, unless it is called idle. The server runs in
a process of its own and is not counted.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from time import perf_counter, process_time
from typing import cast

import uvloop
from prometheus_client.parser import text_string_to_metric_families

from endpick.api import Endpoint, MetricsPage, Parameters, Plugin, PluginContext, Subscriptions
from endpick.data.collection import Collection, CollectionLoop, CollectionSettings
from endpick.data.polling import PayloadDispatcher, PollCounts, PolledSource, PollSchedule, SourceBinding
from endpick.data.table import EndpointTable
from endpick.host.instance import Instance, scope_of
from endpick.host.kinds import OnFault, kinds_of
from endpick.host.telemetry import NullTelemetry
from endpick_builtin.collection.core_metrics import CORE_KEYS, CoreMetricsExtractor, CoreMetricsParameters
from endpick_builtin.collection.sources import MetricsDataSource, MetricsSourceParameters

LONG_PAGE_BYTES = 60_000
SCRAPES = 2_000
POOLS = ((16, 2), (10, 60), (100, 60))
"""Endpoints, and kilobytes of their pages."""
POOL_SECONDS = 4.0
INTERVAL_SECONDS = 0.05
SETTLE_SECONDS = 3.0
"""Until idle endpoints are asked as seldom as they will be."""
TOLERATED_AGE_SECONDS = 2.0
"""As the default profile has it."""
SEND_BYTES = 512 * 1024
"""An answer leaves in one write."""
LABELS = 'engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"'
WANTED = (
    f"vllm:num_requests_running{{{LABELS}}} 7.0",
    f"vllm:num_requests_waiting{{{LABELS}}} 3.0",
    f"vllm:kv_cache_usage_perc{{{LABELS}}} 0.4217",
    'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters="c"} 1.7e9',
    'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="27000"} 1.0',
)


def short_page() -> bytes:
    """A page with little but the five families that count."""
    lines = [line for wanted in WANTED for line in (f"# TYPE {wanted.split('{')[0]} gauge", wanted)]
    return "\n".join([*lines, *_histogram(0)]).encode() + b"\n"


def long_page() -> bytes:
    """A page as vLLM writes it: the five families that count, spread among histograms that do not."""
    lines: list[str] = []
    share, size = LONG_PAGE_BYTES // len(WANTED), 0
    while size < LONG_PAGE_BYTES:
        family = _histogram(len(lines))
        if size // share < (size + 2200) // share:
            wanted = WANTED[size // share]
            family += [f"# TYPE {wanted.split('{')[0]} gauge", wanted]
        lines += family
        size += sum(map(len, family)) + len(family)
    return "\n".join(lines).encode() + b"\n"


def _histogram(number: int) -> list[str]:
    name = f"vllm:latency_{number}_seconds"
    head = [f"# HELP {name} How long it takes.", f"# TYPE {name} histogram"]
    return head + [f'{name}_bucket{{{LABELS},le="{bound / 8}"}} {bound}.0' for bound in range(20)]


class PageServer(asyncio.Protocol):
    """Answers every request with one of the pages in turn; as little of a server as HTTP allows, so that it keeps up."""

    answers: Iterator[bytes] = iter(())
    given: Synchronized[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(b"\r\n\r\n")):
            self.transport.write(next(self.answers))
            if self.given is not None:
                self.given.value += 1


def serve(port: Connection, pages: tuple[bytes, ...], core: int | None, given: Synchronized[int]) -> None:
    """The server process; ends when it is terminated."""
    if core is not None:
        os.sched_setaffinity(0, {core})

    async def run() -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\n\r\n"
        PageServer.given = given
        PageServer.answers = itertools.cycle([head % len(page) + page for page in pages])
        server = await asyncio.get_running_loop().create_server(PageServer, "0.0.0.0", 0)  # 127/8 is a lot of addresses
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())


@contextmanager
def serving(*pages: bytes, core: int | None = None) -> Iterator[int]:
    """The port of a server in another process, which keeps to that core if one is given."""
    with counted(*pages, core=core) as (port, _):
        yield port


@contextmanager
def counted(*pages: bytes, core: int | None = None) -> Iterator[tuple[int, Synchronized[int]]]:
    """The same, and how many pages it has given."""
    context = multiprocessing.get_context("spawn")
    given = context.Value("Q", lock=False)
    here, there = multiprocessing.Pipe()
    process = context.Process(target=serve, args=(there, pages, core, given), daemon=True)
    process.start()
    try:
        yield here.recv(), given
    finally:
        process.terminate()
        process.join()


class Strict(NullTelemetry):
    """Instruments that end the benchmark when a scrape fails: what fails is cheap."""

    def poll_error(self, source: Instance, endpoint: str, problem: BaseException | str) -> None:
        raise SystemExit(f"{endpoint}: {problem}")

    def collect_error(self, source: Instance, collector: Instance, endpoint: str, problem: BaseException | str) -> None:
        raise SystemExit(f"{endpoint}: {problem}")


def instance(plugin: Plugin[Parameters]) -> Instance:
    """A built plugin as the host holds it."""
    subscriptions = Subscriptions(produces=plugin.produces)
    scope = scope_of(plugin.name, subscriptions)
    return Instance(plugin.name, plugin.name, "endpick", "0", kinds_of(type(plugin)), plugin, subscriptions, OnFault.SKIP, scope)


def parse_microseconds(page: bytes) -> tuple[float, float]:
    """Reading the core metrics off the page, and what parsing it whole takes."""
    extractor = instance(CoreMetricsExtractor("core", CoreMetricsParameters(), PluginContext()))
    table = EndpointTable(perf_counter, CORE_KEYS)
    endpoint = Endpoint("default/a", "127.0.0.1", 1)
    table.upsert(endpoint)
    writer = table.writer(extractor.scope, endpoint)
    began = process_time()
    for _ in range(SCRAPES):
        extractor.plugin.collect(MetricsPage(page), writer)  # type: ignore[attr-defined]
    ours = (process_time() - began) / SCRAPES
    began = process_time()
    for _ in range(10):
        list(text_string_to_metric_families(page.decode()))
    return ours * 1e6, (process_time() - began) / 10 * 1e6


async def scrape_microseconds(port: int) -> float:
    """One endpoint, one scrape after the other: fetch, read, write."""
    source, collector, table = await ready()
    endpoint = Endpoint("default/a", "127.0.0.1", port)
    table.upsert(endpoint)
    delivery = PayloadDispatcher(SourceBinding(source, (collector,)), table, Strict())
    polled = PolledSource(
        source.plugin,  # type: ignore[arg-type]
        delivery,
        table,
        PollCounts(),
        refresh_seconds=INTERVAL_SECONDS,
        idle_seconds=INTERVAL_SECONDS,
        tolerated_age_seconds=TOLERATED_AGE_SECONDS,
    )
    schedule = PollSchedule(INTERVAL_SECONDS, INTERVAL_SECONDS)
    for _ in range(100):
        await polled.poll(endpoint, schedule)
    began = process_time()
    for _ in range(SCRAPES):
        await polled.poll(endpoint, schedule)
    spent = process_time() - began
    await source.plugin.stop()
    return spent / SCRAPES * 1e6


async def pool_load(port: int, endpoints: int) -> tuple[float, float]:
    """Cores taken and scrapes made per second by the collection loop over a pool."""
    source, collector, table = await ready()
    table.replace_all(Endpoint(f"default/e{number}", "127.0.0.1", port) for number in range(endpoints))
    plugin = source.plugin
    polls = 0
    fetch = plugin.fetch  # type: ignore[attr-defined]

    async def counted(endpoint: Endpoint) -> bytes:
        nonlocal polls
        body: bytes = await fetch(endpoint)
        polls += 1
        return body

    plugin.fetch = counted  # type: ignore[attr-defined]
    loop = CollectionLoop(
        table, Collection((SourceBinding(source, (collector,)),), TOLERATED_AGE_SECONDS), CollectionSettings(INTERVAL_SECONDS), Strict()
    )
    loop.start()
    await asyncio.sleep(SETTLE_SECONDS)
    polls, cpu, wall = 0, process_time(), perf_counter()
    await asyncio.sleep(POOL_SECONDS)
    spent, elapsed = process_time() - cpu, perf_counter() - wall
    await loop.stop()
    await plugin.stop()
    return spent / elapsed, polls / elapsed


async def ready() -> tuple[Instance, Instance, EndpointTable]:
    """A started source, a collector and an empty table."""
    source = instance(MetricsDataSource("metrics", MetricsSourceParameters(), PluginContext()))
    collector = instance(CoreMetricsExtractor("core", CoreMetricsParameters(), PluginContext()))
    await source.plugin.start()
    return source, collector, EndpointTable(perf_counter, CORE_KEYS)


def busy(page: bytes) -> tuple[bytes, ...]:
    """The page as it was and as it is, often enough that a pool never sees the same one twice in a row."""
    return tuple(page + b"# at %d\n" % moment for moment in range(7))


def main() -> None:
    pages = {len(page) // 1000: page for page in (short_page(), long_page())}
    ours, whole = parse_microseconds(long_page())
    print(
        f"read the core metrics off a page of 60 KB {ours:6.1f} µs   ({whole / ours:.0f} times less than parsing it whole: {whole:.0f} µs)"
    )
    for size, page in pages.items():
        for name, answers in (("busy", busy(page)), ("idle", (page,))):
            with serving(*answers) as port:
                print(f"one scrape of {size} KB, all told, {name}    {uvloop.run(scrape_microseconds(port)):10.1f} µs")
    for endpoints, size in POOLS:
        page = min(pages.items(), key=lambda each: abs(each[0] - size))[1]
        for name, answers in (("busy", busy(page)), ("idle", (page,))):
            with serving(*answers) as port:
                cores, rate = uvloop.run(pool_load(port, endpoints))
            print(f"{endpoints:4} endpoints of {size:2} KB every 50 ms, {name} {cores:11.4f} cores at {rate:.0f} scrapes a second")


if __name__ == "__main__":
    main()
