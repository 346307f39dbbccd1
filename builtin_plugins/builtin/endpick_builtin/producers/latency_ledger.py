"""Latency objectives, and requests in flight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from endpick_builtin.producers.latency_service import Features, Prediction

TTFT_HEADERS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TPOT_HEADERS = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")


@dataclass(frozen=True, slots=True)
class Objectives:
    """A request's latency objectives in seconds; 0 if it has none."""

    ttft: float = 0.0
    tpot: float = 0.0

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Objectives:
        """Read from headers in milliseconds; invalid values are 0."""
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
    """One request in flight; `prefill_row` belongs to a separate prefill endpoint."""

    endpoint: str
    row: Features
    prediction: Prediction | None
    objectives: Objectives
    prefill_row: Features | None = None

    def samples(self, ttft_ms: float, tpot_ms: float, timestamp: str) -> list[Features]:
        """Training samples of all endpoints involved."""

        def sample(row: Features, ttft: float, tpot: float) -> Features:
            return {**row, "actual_ttft_ms": ttft, "actual_tpot_ms": tpot, "timestamp": timestamp}

        if self.prefill_row is None:
            return [sample(self.row, ttft_ms, tpot_ms)]
        prefill, decode = sample(self.prefill_row, ttft_ms, 0.0), sample(self.row, 0.0, tpot_ms)
        return [prefill, decode] if tpot_ms > 0 else [prefill]


@dataclass(slots=True)
class _Running:
    requests: dict[Served, int] = field(default_factory=dict)
    """Prompt tokens of each request whose answer has begun, else 0."""
    tokens: int = 0
    strictest: float = math.inf


class DecodeLedger:
    """Requests in flight by endpoint."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}

    def begin(self, served: Served) -> None:
        """Add a request."""
        running = self._running.setdefault(served.endpoint, _Running())
        running.requests[served] = 0
        running.strictest = min(running.strictest, served.objectives.tpot or math.inf)

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
        if running is None or served not in running.requests:
            return
        running.tokens -= running.requests.pop(served)
        if served.objectives.tpot == running.strictest:
            running.strictest = min((each.objectives.tpot or math.inf for each in running.requests), default=math.inf)
        if not running.requests:
            del self._running[served.endpoint]

    def forget(self, endpoint: str) -> None:
        """Forget an endpoint."""
        self._running.pop(endpoint, None)

    def tokens(self, endpoint: str) -> int:
        """Prompt tokens of the answers in progress."""
        running = self._running.get(endpoint)
        return 0 if running is None else running.tokens

    def strictest(self, endpoint: str) -> float:
        """The shortest objective per token, in seconds; infinite without any."""
        running = self._running.get(endpoint)
        return math.inf if running is None else running.strictest
