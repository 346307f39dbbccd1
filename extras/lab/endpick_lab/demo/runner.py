"""Runs the demo: the same load under two configurations, each with fresh processes."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TextIO

import aiohttp
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from endpick.host.planning.plan import Plan
from endpick_lab.demo.load import Chat, ChatOutcome, WorkloadSettings, make_workload, run_load
from endpick_lab.demo.processes import Children
from endpick_lab.demo.stack import ENDPOINTS_FILE, start_stack

PICKER = (sys.executable, "-m", "endpick", "serve")
_LAST_ANSWERS_SECONDS = 1.0  # from the last request to the end of each half

_GRACE_SECONDS = 10.0  # for late answers


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Settings of `endpick demo` without `--saturated`."""

    envoy: Path  # the binary
    duration_seconds: float = 30.0  # both loads, without starting and stopping
    requests_per_second: float = 20.0
    servers: int = 4
    seed: int = 1
    tried: Configuration = field(default_factory=lambda: built_in("prefix-aware"))  # compared with random picks


async def run_demo(settings: DemoSettings, output: TextIO) -> bool:
    """Run both trials and print the comparison; True if no request failed. Raises ChildFailed, OSError."""
    configurations = (settings.tried, built_in("random-picker"))
    half_seconds = settings.duration_seconds / len(configurations)
    span = max(half_seconds - _LAST_ANSWERS_SECONDS, 1.0)
    workload = make_workload(WorkloadSettings(span, settings.requests_per_second), settings.seed)
    turns = sum(len(chat.turns) for chat in workload)
    output.write(
        f"{turns} requests of {len(workload)} chats, through Envoy to {settings.servers} simulated model servers,"
        f" twice: {' and '.join(config.name for config in configurations)}\n\n"
    )
    results: list[tuple[str, Summary]] = []
    with tempfile.TemporaryDirectory(prefix="endpick-demo-") as folder:
        for config in configurations:
            limit = half_seconds + _GRACE_SECONDS
            trial = Trial(config, settings.servers, settings.envoy, workload, limit, PICKER)
            trial_folder = Path(tempfile.mkdtemp(dir=folder))
            outcomes = await run_trial(trial, trial_folder, LiveTable(output))
            results.append((config.name, summarize(outcomes)))
            output.write("\n")
    output.write(render_report(*results))
    return not any(summary.failed for _, summary in results)


PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of a load under one configuration."""

    requests: int
    errors: tuple[tuple[str, int], ...]  # with counts, most frequent first
    ttft_seconds: tuple[float, ...]  # at `PERCENTILES`; NaN without answers
    prefix_hit_ratio: float  # cached / all prompt tokens of answered requests
    served: tuple[tuple[str, int], ...]  # answered requests by server, sorted

    @property
    def failed(self) -> int:
        """Requests without a complete answer."""
        return sum(count for _, count in self.errors)


def summarize(outcomes: Sequence[ChatOutcome]) -> Summary:
    """Summarise a load; the time to first token counts even if the request failed later."""
    ttft = [outcome.ttft_seconds for outcome in outcomes if outcome.ttft_seconds is not None]
    prompt_tokens = sum(outcome.prompt_tokens for outcome in outcomes)
    errors = Counter(outcome.error for outcome in outcomes if outcome.error is not None)
    served = Counter(outcome.served_by for outcome in outcomes if outcome.served_by and outcome.error is None)
    return Summary(
        requests=len(outcomes),
        errors=tuple(errors.most_common()),
        ttft_seconds=tuple(float(np.percentile(ttft, q)) if ttft else float("nan") for q in PERCENTILES),
        prefix_hit_ratio=sum(outcome.cached_tokens for outcome in outcomes) / prompt_tokens if prompt_tokens else 0.0,
        served=tuple(sorted(served.items())),
    )


def render_report(tried: tuple[str, Summary], baseline: tuple[str, Summary]) -> str:
    """Format the comparison of two configurations as text."""
    return "\n".join((*_ratios(tried, baseline), "", *_figures(tried, baseline), *_errors(tried, baseline), ""))


def _ratios(tried: tuple[str, Summary], baseline: tuple[str, Summary]) -> list[str]:
    (name, ours), (other_name, theirs) = tried, baseline
    lines = [f"{name} against {other_name}, same load:"]
    for percentile, mine, other in zip(PERCENTILES, ours.ttft_seconds, theirs.ttft_seconds, strict=True):
        lines.append(f"  time to first token p{percentile}  {_faster(mine, other)}")
    if theirs.prefix_hit_ratio:
        lines.append(f"  prompt tokens from cache  {ours.prefix_hit_ratio / theirs.prefix_hit_ratio:.1f} x as many")
    return lines


def _faster(mine: float, other: float) -> str:
    if not (mine > 0 and other > 0):
        return "not comparable: no answers"
    return f"{other / mine:.1f} x shorter" if other >= mine else f"{mine / other:.1f} x longer"


def _figures(*results: tuple[str, Summary]) -> list[str]:
    width = max(len(name) for name, _ in results)
    header = "".join(f"{f'TTFT p{percentile}':>11}" for percentile in PERCENTILES)
    lines = [f"{'':{width}}{'requests':>10}{'failed':>8}{header}{'prefix hits':>13}   served by"]
    for name, summary in results:
        times = "".join(f"{seconds * 1000:>8.0f} ms" for seconds in summary.ttft_seconds)
        hits = f"{summary.prefix_hit_ratio * 100:.0f} %"
        served = " ".join(f"{server}:{count}" for server, count in summary.served)
        lines.append(f"{name:{width}}{summary.requests:>10}{summary.failed:>8}{times}{hits:>13}   {served}")
    return lines


def _errors(*results: tuple[str, Summary]) -> list[str]:
    lines = [f"  {count} x under {name}: {error}" for name, summary in results for error, count in summary.errors[:5]]
    return ["", "failed requests:", *lines] if lines else []


MODEL = "sim-model"
CONFIG_FILE = "config.yaml"
_REFRESH_SECONDS = 0.5
# the cache holds about seven conversations, so only some tenants fit
_SERVER_OPTIONS = (
    *("--model", MODEL, "--max-num-seqs", "16", "--max-model-len", "8192"),
    *("--kv-blocks", "1024", "--block-size", "16"),
    *("--prefill-ms-per-token", "0.15", "--decode-ms", "8"),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration with its servers and load."""

    config: Configuration
    servers: int
    envoy: Path
    workload: Sequence[Chat]
    limit_seconds: float  # end of the load
    picker: tuple[str, ...]  # command that serves a configuration


async def run_trial(trial: Trial, folder: Path, table: LiveTable) -> list[ChatOutcome]:
    """Run one trial in the empty `folder`. Raises ChildFailed, OSError."""
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
        load = asyncio.create_task(run_load(stack.gateway, trial.workload, MODEL, trial.limit_seconds))
        refresh = asyncio.create_task(_refresh(trial.config.name, stack.servers, table))
        watch = asyncio.create_task(children.watch())
        try:
            await asyncio.wait((load, watch), return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
            return await load
        finally:
            for task in (load, watch, refresh):
                task.cancel()
            await asyncio.gather(load, watch, refresh, return_exceptions=True)


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
    """A configuration and its name in the report."""

    name: str
    text: str


def built_in(name: str) -> Configuration:
    """Return a configuration of the demo by its name."""
    return Configuration(name, (resources.files("endpick_lab.demo") / f"{name}.yaml").read_text())


def why_unfit(plan: Plan) -> str | None:
    """Return the reason why a plan cannot find the demo's model servers; None if it can."""
    discovery = None if plan.discovery is None else plan.by_name[plan.discovery]
    if discovery is not None and discovery.type == "file-discovery" and getattr(discovery.parameters, "path", "") == ENDPOINTS_FILE:
        return None
    return (
        f"the demo lists its model servers in '{ENDPOINTS_FILE}'; name a file-discovery with that path under dataLayer.discovery.endpoints"
    )


@dataclass(frozen=True, slots=True)
class EndpointStats:
    """Figures of one server, read from its metrics page."""

    requests: int  # answered
    running: int
    waiting: int
    kv_cache_usage: float
    prefix_hit_ratio: float  # 0 to 1


Rows = Mapping[str, EndpointStats | None]  # by endpoint name; None if it does not answer

_CLEAR_LINE = "\x1b[2K"


class LiveTable:
    """The endpoints' state, in place on a terminal, else as lines."""

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
    """Format a title, a header, and a line per endpoint."""
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
    """Format the state of all endpoints in one line."""
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
    """Fetch a server's figures; returns None if it does not answer."""
    try:
        async with client.get(f"{url}/metrics") as response:
            return parse_stats(await response.text())
    except (aiohttp.ClientError, TimeoutError):
        return None


def parse_stats(page: str) -> EndpointStats:
    """Parse the figures on a server's metrics page; missing metrics are 0."""
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
