"""Workloads in YAML: traffic that is drawn at random, and failures of the servers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import merge
from itertools import count
from random import Random
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from endpick.api.plugin import Duration
from endpick.testing.host import read_document
from endpick_lab.pool import Failure, Trouble
from endpick_lab.trace import MOST_TOKENS, TraceError, TraceRequest

MOST_REQUESTS = 2_000_000


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Traffic(_Closed):
    """Conversations of one kind, which begin at random times.

    The prompt of a turn is the tenant's prefix, all earlier turns and a new question. Lengths are drawn from a gamma distribution with the
    given mean; `variation` is its standard deviation divided by the mean, 0 for constant lengths.
    """

    rate: Annotated[float, Field(gt=0, description="Conversations that begin per second.")]
    question_tokens: Annotated[int, Field(alias="questionTokens", gt=0, le=MOST_TOKENS)]
    output_tokens: Annotated[int, Field(alias="outputTokens", gt=0, le=MOST_TOKENS)]
    variation: Annotated[float, Field(ge=0, le=4)] = 0.5
    tenants: Annotated[int, Field(gt=0, description="Groups of conversations with a common prefix.")] = 1
    prefix_tokens: Annotated[int, Field(alias="prefixTokens", ge=0, le=MOST_TOKENS, description="Length of that prefix.")] = 0
    turns: Annotated[int, Field(gt=0, le=1000)] = 1
    think_time: Annotated[
        Duration, Field(alias="thinkTime", ge=0, description="Mean time from one turn to the next; answers included.")
    ] = 20.0
    burst: Annotated[
        float, Field(ge=1, description="In a burst, conversations begin so many times as often; between bursts, less often.")
    ] = 1.0
    burst_period: Annotated[Duration, Field(alias="burstPeriod", gt=0, description="A tenth of each period is a burst.")] = 60.0
    adapters: Annotated[tuple[str, ...], Field(description="LoRA adapters, each for an equal share of the conversations.")] = ()
    stream: bool = True
    headers: Annotated[dict[str, str], Field(description="Of each request; an objective's name gives it a priority.")] = {}


class FailureSpec(_Closed):
    """A failure of one server: its kind, start and duration."""

    server: Annotated[int, Field(ge=0)]
    kind: Trouble
    at: Annotated[Duration, Field(ge=0)]
    lasting: Annotated[Duration, Field(alias="for", gt=0)]


class Workload(_Closed):
    """Traffic for `duration`, in blocks of `blockTokens`."""

    duration: Annotated[Duration, Field(gt=0)]
    block_tokens: Annotated[int, Field(alias="blockTokens", ge=16, le=4096)] = 64
    traffic: Annotated[tuple[Traffic, ...], Field(min_length=1)]
    speeds: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(description="Of the first servers; others have 1.")] = ()
    failures: tuple[FailureSpec, ...] = ()

    @model_validator(mode="after")
    def _is_feasible(self) -> Self:
        requests = sum(traffic.rate * traffic.turns for traffic in self.traffic) * self.duration
        if requests > MOST_REQUESTS:
            raise ValueError(f"{requests:,.0f} requests are too many to simulate; lower the duration or a rate")
        return self

    def failure_list(self, servers: int) -> tuple[Failure, ...]:
        """Return the failures; raises TraceError for a server that does not exist."""
        for failure in self.failures:
            if failure.server >= servers:
                raise TraceError(f"failures: there is no server {failure.server} among {servers}; the first is 0")
        return tuple(Failure(failure.server, failure.kind, failure.at, failure.lasting) for failure in self.failures)

    def requests(self, seed: int) -> list[TraceRequest]:
        """Draw the requests, in order of time; the same for the same seed."""
        numbers = count()
        parts = []
        for position, traffic in enumerate(self.traffic):
            random = Random(f"{seed}/{position}")  # noqa: S311 - repeatable by design
            made = (
                request for start in _starts(traffic, self.duration, random) for request in self._turns(traffic, start, random, numbers)
            )
            parts.append(sorted((request for request in made if request.at < self.duration), key=lambda request: request.at))
        return list(merge(*parts, key=lambda request: request.at))

    def _turns(self, traffic: Traffic, start: float, random: Random, numbers: count[int]) -> Iterator[TraceRequest]:
        size = self.block_tokens
        tenant = random.randrange(traffic.tenants)
        adapter = random.choice(traffic.adapters) if traffic.adapters else None
        prefix = traffic.prefix_tokens // size
        own = next(numbers)
        # Blocks of the prefix are numbered by tenant; later blocks have numbers that no other conversation uses.
        known = [-(tenant * MOST_TOKENS + block) - 1 for block in range(prefix)]
        tokens, at = traffic.prefix_tokens, start
        for _ in range(traffic.turns):
            tokens += _draw(traffic.question_tokens, traffic.variation, random)
            answer = _draw(traffic.output_tokens, traffic.variation, random)
            blocks = -(-tokens // size)
            known += [own << 24 | block for block in range(len(known), blocks)]
            headers = {"x-llm-d-inference-fairness-id": f"tenant-{tenant}", "x-session-id": f"session-{own}", **traffic.headers}
            yield TraceRequest(at, tokens, answer, tuple(known[:blocks]), size, adapter, traffic.stream, headers)
            tokens += answer
            at += random.expovariate(1 / traffic.think_time) if traffic.think_time else 0.0


def _starts(traffic: Traffic, duration: float, random: Random) -> Iterator[float]:
    """A Poisson process, whose rate alternates if there are bursts."""
    high = traffic.rate * traffic.burst
    low = max((traffic.rate - 0.1 * high) / 0.9, 0.0)
    at = 0.0
    while True:
        at += random.expovariate(high)
        if at >= duration:
            return
        is_burst = math.fmod(at, traffic.burst_period) < traffic.burst_period / 10
        if is_burst or random.random() * high < low:
            yield at


def _draw(mean: int, variation: float, random: Random) -> int:
    if not variation:
        return mean
    shape = 1 / variation**2
    return max(1, min(round(random.gammavariate(shape, mean / shape)), MOST_TOKENS))


def read_workload(text: str) -> Workload:
    """Parse a workload from YAML; raises TraceError."""
    return read_document(Workload, text.encode(), TraceError)
