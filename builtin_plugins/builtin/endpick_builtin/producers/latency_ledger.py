"""What requests ask of latencies, and what each endpoint is streaming because of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count

from endpick_builtin.producers.latency_service import Features, Prediction

_SLACK = 64
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


class _Running:
    """The requests at one endpoint. Each new request asks about all endpoints, so nothing here looks at all that run."""

    __slots__ = ("asked", "requests", "tokens")

    def __init__(self) -> None:
        self.requests: dict[Served, int] = {}
        """Each with its tokens, once its answer has begun."""
        self.tokens = 0
        self.asked: list[tuple[float, int, Served]] = []
        """A heap of those that ask for a time for each further token; what has ended is passed over when it comes up."""

    def strictest(self) -> float:
        """The shortest time that is asked for; infinite where none is."""
        asked, requests = self.asked, self.requests
        while asked and asked[0][2] not in requests:
            heappop(asked)
        return asked[0][0] if asked else math.inf

    def tidy(self) -> None:
        """Forget what has ended and has not come up, where that is most."""
        if len(self.asked) > 2 * len(self.requests) + _SLACK:
            self.asked = [each for each in self.asked if each[2] in self.requests]
            heapify(self.asked)


class DecodeLedger:
    """Requests at each endpoint, and the tokens of those whose answer has begun."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}
        self._numbers = count()

    def begin(self, served: Served) -> None:
        """A request goes to its endpoint, where its prompt is worked on first."""
        running = self._running.get(served.endpoint)
        if running is None:
            running = self._running[served.endpoint] = _Running()
        running.requests[served] = 0
        if served.objectives.tpot > 0:
            heappush(running.asked, (served.objectives.tpot, next(self._numbers), served))

    def decode(self, served: Served) -> None:
        """Its answer begins; nothing where the endpoint has left since."""
        running = self._running.get(served.endpoint)
        if running is not None and served in running.requests:
            tokens = int(served.row["input_token_length"])
            running.tokens += tokens - running.requests[served]
            running.requests[served] = tokens

    def end(self, served: Served) -> None:
        """It is over; a second time changes nothing."""
        running = self._running.get(served.endpoint)
        if running is not None:
            running.tokens -= running.requests.pop(served, 0)
            running.tidy()
            if not running.requests:
                del self._running[served.endpoint]

    def forget(self, endpoint: str) -> None:
        """The endpoint has left."""
        self._running.pop(endpoint, None)

    def tokens(self, endpoint: str) -> int:
        """Prompt tokens of the requests whose answers it is streaming."""
        running = self._running.get(endpoint)
        return 0 if running is None else running.tokens

    def strictest(self, endpoint: str) -> float:
        """The shortest time for a further token that a request there asks for, in seconds; infinite where none asks."""
        running = self._running.get(endpoint)
        return math.inf if running is None else running.strictest()
