"""One trial of the demo: starts fresh model servers and endpick with one configuration, sends a load, and shows a live table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TextIO

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from endpick.host.planning.plan import Plan
from endpick.simulation.demo.load import Chat, ChatOutcome, run_load
from endpick.simulation.demo.processes import Children
from endpick.simulation.demo.stack import ENDPOINTS_FILE, Stack, start_stack

MODEL = "sim-model"
CONFIG_FILE = "config.yaml"
_REFRESH_SECONDS = 0.5
_SERVER_OPTIONS = (
    *("--model", MODEL, "--max-num-seqs", "16", "--max-model-len", "8192"),
    *("--kv-blocks", "1024", "--block-size", "16"),
    *("--prefill-ms-per-token", "0.15", "--decode-ms", "8"),
)
"""A cache of about seven of the workload's conversations: room for a share of the tenants, not for all of them."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration to try, and the servers and the load to try it with."""

    config: Configuration
    servers: int
    envoy: Path
    workload: Sequence[Chat]
    limit_seconds: float
    """When the load ends, answered or not."""
    picker: tuple[str, ...]
    """The command that serves a configuration, without the configuration and its options."""


async def run_trial(trial: Trial, folder: Path, table: LiveTable) -> list[ChatOutcome]:
    """Start everything in `folder`, which must be empty, run the load, stop everything; nothing is left running.

    Raises:
        ChildFailed: a process did not start, or ended during the load.
        OSError: a process cannot be started.
    """
    config = folder / CONFIG_FILE
    config.write_text(trial.config.text)
    async with Children(folder) as children:
        stack = await start_stack(
            children,
            folder,
            server_options=_SERVER_OPTIONS,
            servers=trial.servers,
            picker=trial.picker,
            config=config,
            envoy=trial.envoy,
        )
        load = asyncio.create_task(_load_with_table(trial, stack, table))
        watch = asyncio.create_task(children.watch())
        try:
            await asyncio.wait((load, watch), return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
            return await load
        finally:
            for task in (load, watch):
                task.cancel()
            await asyncio.gather(load, watch, return_exceptions=True)


async def _load_with_table(trial: Trial, stack: Stack, table: LiveTable) -> list[ChatOutcome]:
    async with _refreshing(trial.config.name, stack.servers, table):
        return await run_load(stack.gateway, trial.workload, MODEL, trial.limit_seconds)


@asynccontextmanager
async def _refreshing(title: str, servers: Mapping[str, str], table: LiveTable) -> AsyncIterator[None]:
    task = asyncio.create_task(_refresh(title, servers, table))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _refresh(title: str, servers: Mapping[str, str], table: LiveTable) -> None:
    clock = asyncio.get_running_loop().time
    start = clock()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as client:
        while True:
            stats = await asyncio.gather(*(read_stats(client, url) for url in servers.values()))
            table.show(title, clock() - start, dict(zip(servers, stats, strict=True)))
            await asyncio.sleep(_REFRESH_SECONDS)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration for `endpick serve`."""

    name: str
    """Its name in the report."""
    text: str


def built_in(name: str) -> Configuration:
    """A configuration that comes with the demo: `prefix-aware` or `random-picker`."""
    return Configuration(name, (resources.files("endpick.simulation.demo") / f"{name}.yaml").read_text())


def why_unfit(plan: Plan) -> str | None:
    """Why a plan cannot find the demo's model servers; None when it can."""
    discovery = None if plan.discovery is None else plan.by_name[plan.discovery]
    if discovery is not None and discovery.type == "file-discovery" and getattr(discovery.parameters, "path", "") == ENDPOINTS_FILE:
        return None
    return f"the demo lists its model servers in '{ENDPOINTS_FILE}'; name a file-discovery with that path under dataLayer.discovery"


@dataclass(frozen=True, slots=True)
class EndpointStats:
    """One model server at one moment."""

    requests: int
    """Answered since it started."""
    running: int
    waiting: int
    kv_cache_usage: float
    """0 to 1."""
    prefix_hit_ratio: float
    """0 to 1, over the server's life."""


Rows = Mapping[str, EndpointStats | None]
"""State by endpoint name; None for an endpoint that does not answer."""

_CLEAR_LINE = "\x1b[2K"


class LiveTable:
    """Shows successive states of the endpoints on a stream."""

    def __init__(self, stream: TextIO, *, plain_interval_seconds: float = 5.0) -> None:
        self._stream = stream
        self._in_place = stream.isatty()
        self._plain_interval_seconds = plain_interval_seconds
        self._drawn_lines = 0
        self._next_plain_seconds = plain_interval_seconds

    def show(self, title: str, elapsed_seconds: float, rows: Rows) -> None:
        """Show the state `elapsed_seconds` into the load."""
        if self._in_place:
            self._redraw(table_lines(title, elapsed_seconds, rows))
        elif elapsed_seconds >= self._next_plain_seconds:
            self._next_plain_seconds = elapsed_seconds + self._plain_interval_seconds
            self._stream.write(plain_line(title, elapsed_seconds, rows) + "\n")
            self._stream.flush()

    def _redraw(self, lines: list[str]) -> None:
        up = f"\x1b[{self._drawn_lines}A" if self._drawn_lines else ""
        self._stream.write(up + "".join(f"{_CLEAR_LINE}{line}\n" for line in lines))
        self._stream.flush()
        self._drawn_lines = len(lines)


def table_lines(title: str, elapsed_seconds: float, rows: Rows) -> list[str]:
    """A title, a header, and a line per endpoint."""
    width = max((len(name) for name in rows), default=0)
    header = f"  {'endpoint':{max(width, 8)}}{'requests':>10}{'running':>9}{'queue':>7}{'KV use':>8}{'prefix hits':>13}"
    lines = [f"{title}  {elapsed_seconds:.0f} s", header]
    for name, stats in rows.items():
        start = f"  {name:{max(width, 8)}}"
        if stats is None:
            lines.append(f"{start}  does not answer")
            continue
        kv, hits = f"{stats.kv_cache_usage * 100:.0f} %", f"{stats.prefix_hit_ratio * 100:.0f} %"
        lines.append(f"{start}{stats.requests:>10}{stats.running:>9}{stats.waiting:>7}{kv:>8}{hits:>13}")
    return lines


def plain_line(title: str, elapsed_seconds: float, rows: Rows) -> str:
    """The same in one line, for logs."""
    parts = [
        f"{name} down"
        if stats is None
        else f"{name} {stats.requests} requests, queue {stats.waiting}, KV {stats.kv_cache_usage * 100:.0f} %,"
        f" hits {stats.prefix_hit_ratio * 100:.0f} %"
        for name, stats in rows.items()
    ]
    return f"{title} {elapsed_seconds:.0f} s: " + "; ".join(parts)


_WANTED = frozenset(
    {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:request_success_total",
    }
)


async def read_stats(client: aiohttp.ClientSession, url: str) -> EndpointStats | None:
    """The server's state; None when it does not answer."""
    try:
        async with client.get(f"{url}/metrics") as response:
            return parse_stats(await response.text())
    except (aiohttp.ClientError, TimeoutError):
        return None


def parse_stats(page: str) -> EndpointStats:
    """The figures of a metrics page; those missing are 0."""
    lines = (line for line in page.splitlines() if line.partition("{")[0] in _WANTED)
    values = dict.fromkeys(_WANTED, 0.0)
    for family in text_string_to_metric_families("\n".join((*lines, ""))):
        for sample in family.samples:
            values[sample.name] += sample.value
    queried = values["vllm:prefix_cache_queries_total"]
    return EndpointStats(
        requests=int(values["vllm:request_success_total"]),
        running=int(values["vllm:num_requests_running"]),
        waiting=int(values["vllm:num_requests_waiting"]),
        kv_cache_usage=values["vllm:kv_cache_usage_perc"],
        prefix_hit_ratio=values["vllm:prefix_cache_hits_total"] / queried if queried else 0.0,
    )
