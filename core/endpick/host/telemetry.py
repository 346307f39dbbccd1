"""Receives timings, faults and requests; limits repeated log lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

from endpick.api.access import AccessScope
from endpick.api.endpoint import Endpoint
from endpick.api.fast_metrics import Distribution
from endpick.api.request_control import ResponseEnd
from endpick.host.breaker import BreakerState
from endpick.host.instance import Instance

ITL_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0)


class ResponsePace(Protocol):
    """Timings of a response."""

    request_id: str
    streaming: bool  # server-sent events
    processing_seconds: float  # in endpick
    gaps: Distribution | None  # seconds between chunks


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """A plugin raised or returned an invalid answer during a decision."""

    instance: str
    extension_point: str
    problem: str


class Telemetry:
    """Receives measurements; by default discards them. Methods are cheap and never raise."""

    listener: list[FaultRecord] | None = None  # faults of the recorded decision that runs now

    @contextmanager
    def listening(self, faults: list[FaultRecord]) -> Iterator[None]:
        """Add the faults of a decision to its record. The block must not await."""
        before, self.listener = self.listener, faults
        try:
            yield
        finally:
            self.listener = before

    def plugin_timer(self, extension_point: str, instance: Instance) -> Distribution:
        """Histogram of call durations."""
        return Distribution(())

    def fault(self, instance: Instance, extension_point: str, problem: BaseException | str) -> None:
        """An instance raised or returned something invalid."""

    def late(self, instance: Instance, extension_point: str, seconds: float) -> None:
        """A call exceeded its budget."""

    def left_out(self, instance: Instance, extension_point: str) -> None:
        """An instance was not called: its circuit is open."""

    def circuit_changed(self, instance: Instance, before: BreakerState) -> None:
        """A circuit left the state `before`."""

    def clamped(self, instance: Instance, count: int) -> None:
        """A scorer left 0..1 for `count` endpoints."""

    def undeclared_access(self, scope: AccessScope, key: str, access: Literal["read", "write"]) -> None:
        """An instance used an undeclared data key."""

    def poll_error(self, source: Instance, endpoint: str, problem: BaseException | str) -> None:
        """A source got no payload; `endpoint` is "" for a pool source."""

    def collect_error(self, source: Instance, collector: Instance, endpoint: str, problem: BaseException | str) -> None:
        """A collector failed on a payload."""

    def gateway_body_modes(self, request_bodies: bool, response_bodies: bool, losses: Sequence[str]) -> None:
        """The gateway changed body modes; `losses` are sentences about missing data."""

    def unread_response(self, encoding: str, lost: str) -> None:
        """The `usage` or `model name` of a compressed response could not be read or restored."""

    def request_decided(self, model: str, target_model: str, fairness_id: str, priority: int, size_bytes: int, seconds: float) -> None:
        """A request goes to a model server."""

    def request_refused(self, model: str, target_model: str, fairness_id: str, priority: int, code: str) -> None:
        """A request was refused; `code` as in `Refused.code`."""

    def request_scheduled(self, seconds: float, endpoint: Endpoint | None, target_model: str) -> None:
        """Scheduling picked `endpoint` first."""

    def request_ended(self, model: str, target_model: str, fairness_id: str, priority: int, end: ResponseEnd, pace: ResponsePace) -> None:
        """A decided request is over."""

    def bodiless_ended(self, fairness_id: str, seconds: float) -> None:
        """A request without a body is over."""


class NullTelemetry(Telemetry):
    """For tests, simulations and single decisions."""


_MAX_TOPICS = 10_000


class Throttle:
    """Admits each topic once per interval; counts suppressed lines."""

    def __init__(self, clock: Callable[[], float], interval_seconds: float) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._last: dict[str, tuple[float, int]] = {}

    def admit(self, topic: str) -> int | None:
        """Lines suppressed since the last admitted one; None to suppress."""
        now = self._clock()
        last = self._last.get(topic)
        if last is not None and now - last[0] < self._interval_seconds:
            self._last[topic] = (last[0], last[1] + 1)
            return None
        if len(self._last) >= _MAX_TOPICS:
            self._last.clear()
        self._last[topic] = (now, 0)
        return 0 if last is None else last[1]
