"""Latency objectives of requests, and the requests that each endpoint is streaming."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count

from endpick_builtin.producers.latency_service import Features, Prediction

TTFT_HEADERS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TPOT_HEADERS = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
_SLACK = 64


@dataclass(frozen=True, slots=True)
class Objectives:
    """A request's latency objectives in seconds; 0 if it has none."""

    ttft: float = 0.0
    tpot: float = 0.0

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Objectives:
        """Read from headers in milliseconds; invalid and negative values count as absent."""
        return cls(_milliseconds(headers, TTFT_HEADERS) / 1000, _milliseconds(headers, TPOT_HEADERS) / 1000)


def _milliseconds(headers: Mapping[str, str], names: tuple[str, ...]) -> float:
    text = next((headers[name] for name in names if headers.get(name)), "")
    try:
        value = float(text) if text else 0.0
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and value > 0 else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """One request in flight; `prefill_row` has the features of a separate prefill endpoint."""

    endpoint: str
    row: Features
    prediction: Prediction | None
    objectives: Objectives
    prefill_row: Features | None = None

    def samples(self, ttft_ms: float, tpot_ms: float, timestamp: str) -> list[Features]:
        """Training samples; a separate prefill endpoint gets the time to the first token."""

        def sample(row: Features, ttft: float, tpot: float) -> Features:
            return {**row, "actual_ttft_ms": ttft, "actual_tpot_ms": tpot, "timestamp": timestamp}

        if self.prefill_row is None:
            return [sample(self.row, ttft_ms, tpot_ms)]
        prefill, decode = sample(self.prefill_row, ttft_ms, 0.0), sample(self.row, 0.0, tpot_ms)
        return [prefill, decode] if tpot_ms > 0 else [prefill]


class _Running:
    __slots__ = ("objectives", "requests", "tokens")

    def __init__(self) -> None:
        self.requests: dict[Served, int] = {}
        """Prompt tokens of each request whose answer has begun, else 0."""
        self.tokens = 0
        self.objectives: list[tuple[float, int, Served]] = []
        """A heap by objective per token; ended requests are removed lazily."""

    def strictest(self) -> float:
        while self.objectives and self.objectives[0][2] not in self.requests:
            heappop(self.objectives)
        return self.objectives[0][0] if self.objectives else math.inf

    def tidy(self) -> None:
        if len(self.objectives) > 2 * len(self.requests) + _SLACK:
            self.objectives = [each for each in self.objectives if each[2] in self.requests]
            heapify(self.objectives)


class DecodeLedger:
    """Requests at each endpoint, and the prompt tokens of those whose answer has begun."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}
        self._numbers = count()

    def begin(self, served: Served) -> None:
        """Add a request, whose prompt is processed first."""
        running = self._running.setdefault(served.endpoint, _Running())
        running.requests[served] = 0
        if served.objectives.tpot > 0:
            heappush(running.objectives, (served.objectives.tpot, next(self._numbers), served))

    def decode(self, served: Served) -> None:
        """Record that its answer begins."""
        running = self._running.get(served.endpoint)
        if running is not None and served in running.requests:
            tokens = int(served.row["input_token_length"])
            running.tokens += tokens - running.requests[served]
            running.requests[served] = tokens

    def end(self, served: Served) -> None:
        """Remove it; idempotent."""
        running = self._running.get(served.endpoint)
        if running is not None:
            running.tokens -= running.requests.pop(served, 0)
            running.tidy()
            if not running.requests:
                del self._running[served.endpoint]

    def forget(self, endpoint: str) -> None:
        """Forget an endpoint."""
        self._running.pop(endpoint, None)

    def tokens(self, endpoint: str) -> int:
        """Prompt tokens of the requests whose answers the endpoint is streaming."""
        running = self._running.get(endpoint)
        return 0 if running is None else running.tokens

    def strictest(self, endpoint: str) -> float:
        """The shortest objective per token at the endpoint, in seconds; infinite if there is none."""
        running = self._running.get(endpoint)
        return math.inf if running is None else running.strictest()
