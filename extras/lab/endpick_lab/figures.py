"""The figures of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from endpick_lab.run import Observed, RunResult

_SATURATED_SHARE = 0.25
_SATURATED_PER_SERVER = 4
_SATURATED_SECONDS = 60.0
_DIGITS = 6
_CLOSED = ConfigDict(extra="forbid")


@with_config(_CLOSED)
class Percentiles(TypedDict):
    """Seconds over all served requests."""

    mean: float
    p50: float
    p90: float
    p99: float


@with_config(_CLOSED)
class Figures(TypedDict):
    """One configuration of `endpick simulate`. Times are null if it could not serve the load."""

    config: str
    requests: int
    failed: int
    problems: Annotated[dict[str, int], Field(description="Failed requests by cause.")]
    saturated: Annotated[bool, Field(description="It fell behind the load.")]
    ttft_seconds: Annotated[Percentiles | None, Field(description="Time to first token.")]
    tpot_seconds: Annotated[Percentiles | None, Field(description="Time per output token after the first.")]
    e2e_seconds: Annotated[Percentiles | None, Field(description="Time to the last token.")]
    requests_per_second: float
    output_tokens_per_second: float
    hit_rate: Annotated[float, Field(description="Share of the prompt tokens that were cached.")]
    imbalance: Annotated[float, Field(description="Tokens that the busiest server computed, divided by the mean.")]
    preemptions: int
    slo_attainment: Annotated[float | None, Field(description="Share of all requests within the objectives; null without any.")]
    regret: Annotated[
        float | None, Field(description="Mean time to first token divided by the oracle's, minus 1; null without the oracle.")
    ]
    not_simulated: Annotated[list[str], Field(description="Data sources that did not run.")]
    bytes_exchanged: Annotated[int, Field(description="What all pickers sent to each other.")]


class SimulateOutput(BaseModel):
    """Output of `endpick simulate`. Names are as in the reports of load generators."""

    model_config = _CLOSED

    version: Literal[1]
    trace: str
    seed: int
    results: list[Figures]


def figures_of(config: str, result: RunResult, slo_ttft: float | None = None, slo_tpot: float | None = None) -> Figures:
    """Summarise a run. Objectives are in seconds."""
    served = [observed for observed in result.observed if observed.finished_at is not None]
    problems: dict[str, int] = {}
    for observed in result.observed:
        if observed.problem:
            problems[observed.problem] = problems.get(observed.problem, 0) + 1
    saturated = _is_saturated(result)
    seconds = max(result.seconds, 1e-9)
    tokens = np.array(result.tokens_by_server, float)
    within = [observed for observed in served if _is_within(observed, slo_ttft, slo_tpot)]
    has_objective = slo_ttft is not None or slo_tpot is not None
    return Figures(
        config=config,
        requests=len(result.observed),
        failed=len(result.observed) - len(served),
        problems=dict(sorted(problems.items())),
        saturated=saturated,
        ttft_seconds=None if saturated else percentiles([ttft(observed) for observed in served]),
        tpot_seconds=None if saturated else percentiles([tpot(observed) for observed in served if observed.request.output_tokens > 1]),
        e2e_seconds=None if saturated else percentiles([(observed.finished_at or 0.0) - observed.arrived_at for observed in served]),
        requests_per_second=round(len(served) / seconds, _DIGITS),
        output_tokens_per_second=round(sum(observed.request.output_tokens for observed in served) / seconds, _DIGITS),
        hit_rate=round(result.hit_tokens / max(result.queried_tokens, 1), _DIGITS),
        imbalance=round(float(tokens.max() / max(tokens.mean(), 1.0)), _DIGITS),
        preemptions=result.preemptions,
        slo_attainment=round(len(within) / len(result.observed), _DIGITS) if has_objective else None,
        regret=None,
        not_simulated=list(result.not_simulated),
        bytes_exchanged=result.bytes_exchanged,
    )


def ttft(observed: Observed) -> float:
    """Seconds to the first token of a served request."""
    return (observed.first_token_at or 0.0) - observed.arrived_at


def tpot(observed: Observed) -> float:
    """Seconds per further token of a served request with at least two."""
    return ((observed.finished_at or 0.0) - (observed.first_token_at or 0.0)) / (observed.request.output_tokens - 1)


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """Summarise times in seconds; returns None without values."""
    if not values:
        return None
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    rounded = [round(value, _DIGITS) for value in (float(np.mean(values)), p50, p90, p99)]
    return Percentiles(mean=rounded[0], p50=rounded[1], p90=rounded[2], p99=rounded[3])


def _is_saturated(result: RunResult) -> bool:
    """True if the servers fell behind.

    At the last arrival a quarter of all requests, and several for each server, had no first token, and it took a minute to catch up.
    """
    last_arrival = result.observed[-1].arrived_at if result.observed else 0.0
    last_token = max((observed.first_token_at or 0.0 for observed in result.observed), default=0.0)
    threshold = max(_SATURATED_SHARE * len(result.observed), _SATURATED_PER_SERVER * len(result.tokens_by_server))
    return result.unserved_at_end > threshold and last_token - last_arrival > _SATURATED_SECONDS


def _is_within(observed: Observed, slo_ttft: float | None, slo_tpot: float | None) -> bool:
    has_tpot = observed.request.output_tokens > 1
    return (slo_ttft is None or ttft(observed) <= slo_ttft) and (slo_tpot is None or not has_tpot or tpot(observed) <= slo_tpot)
