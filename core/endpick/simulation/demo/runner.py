"""Runs `endpick demo`: sends the same load under two configurations and reports how they compare."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np

from endpick.simulation.demo.load import ChatOutcome, WorkloadSettings, make_workload
from endpick.simulation.demo.trial import Configuration, LiveTable, Trial, built_in, run_trial

PICKER = (sys.executable, "-m", "endpick", "serve")
_LAST_ANSWERS_SECONDS = 1.0
"""How long before the end of each half the last request is due, so that its answer arrives within the half."""

_GRACE_SECONDS = 10.0
"""How long answers may be late before the load ends without them."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What the demo runs."""

    envoy: Path
    """Envoy's binary."""
    duration_seconds: float = 30.0
    """Duration of the load under both configurations together, without starting and stopping."""
    requests_per_second: float = 20.0
    servers: int = 4
    seed: int = 1
    tried: Configuration = field(default_factory=lambda: built_in("prefix-aware"))
    """The configuration to compare with random picks."""


async def run_demo(settings: DemoSettings, output: TextIO) -> bool:
    """Run both trials and write the comparison; True when no request failed.

    Raises:
        ChildFailed: a process did not start, or ended during the load.
        OSError: a process cannot be started.
    """
    configurations = (settings.tried, built_in("random-picker"))
    half_seconds = settings.duration_seconds / len(configurations)
    span = max(half_seconds - _LAST_ANSWERS_SECONDS, 1.0)
    workload = make_workload(WorkloadSettings(span, settings.requests_per_second), settings.seed)
    turns = sum(len(chat.turns) for chat in workload)
    output.write(
        f"{turns} requests of {len(workload)} chats, through Envoy to {settings.servers} simulated model servers,"
        f" twice: {' and '.join(each.name for each in configurations)}\n\n"
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
    """One configuration's results."""

    requests: int
    errors: tuple[tuple[str, int], ...]
    """Each error and how often it occurred, most frequent first."""
    ttft_seconds: tuple[float, ...]
    """At each of `PERCENTILES`; NaN without a single answer."""
    prefix_hit_ratio: float
    """Cached prompt tokens / prompt tokens, over all answered requests; 0 to 1."""
    served: tuple[tuple[str, int], ...]
    """Answered requests by model server, by name."""

    @property
    def failed(self) -> int:
        """Requests without a complete answer."""
        return sum(count for _, count in self.errors)


def summarize(outcomes: Sequence[ChatOutcome]) -> Summary:
    """Percentiles and rates of a load; the time to first token counts even if the request failed later."""
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
    """The comparison as text, ending in a newline; each configuration is given as its name and its results."""
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
