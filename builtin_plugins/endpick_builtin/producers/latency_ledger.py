"""What requests ask of latencies, and what each endpoint is streaming because of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from endpick_builtin.producers.latency_service import Features, Prediction

TTFT_HEADERS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TPOT_HEADERS = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a request asks for, in seconds; 0 where it asks for nothing."""

    ttft: float = 0.0
    tpot: float = 0.0

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Objectives:
        """Read from the headers, in milliseconds; what is no number, not finite or negative counts as not sent."""
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
    """One request on its way: where to, what the endpoint was like, what was expected, and what the request asks for.

    `prefill_row` is what the endpoint was like that works on the prompt, where that is another one; None where it is the same.
    """

    endpoint: str
    row: Features
    prediction: Prediction | None
    objectives: Objectives
    prefill_row: Features | None = None

    def samples(self, ttft_ms: float, tpot_ms: float, timestamp: str) -> list[Features]:
        """What there is to learn; with an endpoint of its own for the prompt, that one took the time to the first token."""

        def took(row: Features, ttft: float, tpot: float) -> Features:
            return {**row, "actual_ttft_ms": ttft, "actual_tpot_ms": tpot, "timestamp": timestamp}

        if self.prefill_row is None:
            return [took(self.row, ttft_ms, tpot_ms)]
        first, further = took(self.prefill_row, ttft_ms, 0.0), took(self.row, 0.0, tpot_ms)
        return [first, further] if tpot_ms > 0 else [first]


class DecodeLedger:
    """Requests at each endpoint, and the tokens of those whose answer has begun."""

    def __init__(self) -> None:
        self._running: dict[str, dict[Served, int]] = {}

    def begin(self, served: Served) -> None:
        """A request goes to its endpoint, where its prompt is worked on first."""
        self._running.setdefault(served.endpoint, {})[served] = 0

    def decode(self, served: Served) -> None:
        """Its answer begins; nothing where the endpoint has left since."""
        running = self._running.get(served.endpoint, {})
        if served in running:
            running[served] = int(served.row["input_token_length"])

    def end(self, served: Served) -> None:
        """It is over; a second time changes nothing."""
        running = self._running.get(served.endpoint)
        if running is not None:
            running.pop(served, None)
            if not running:
                del self._running[served.endpoint]

    def forget(self, endpoint: str) -> None:
        """The endpoint has left."""
        self._running.pop(endpoint, None)

    def tokens(self, endpoint: str) -> int:
        """Prompt tokens of the requests whose answers it is streaming."""
        return sum(self._running.get(endpoint, {}).values())

    def strictest(self, endpoint: str) -> float:
        """The shortest time for a further token that a request there asks for, in seconds; infinite where none asks."""
        asked = [served.objectives.tpot for served in self._running.get(endpoint, {}) if served.objectives.tpot > 0]
        return min(asked, default=math.inf)
