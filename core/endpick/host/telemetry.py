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
    """The timings of a response, in seconds."""

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
    """Receives measurements, and discards them by default. Methods must be cheap and never raise."""

    listener: list[FaultRecord] | None = None  # faults of the recorded decision that runs now

    @contextmanager
    def listening(self, faults: list[FaultRecord]) -> Iterator[None]:
        """Add the faults of a decision to `faults` for its record. The block must not await."""
        before, self.listener = self.listener, faults
        try:
            yield
        finally:
            self.listener = before

    def plugin_timer(self, extension_point: str, instance: Instance) -> Distribution:
        """Return the histogram of an instance's call durations, in seconds."""
        return Distribution(())

    def fault(self, instance: Instance, extension_point: str, problem: BaseException | str) -> None:
        """Called after an instance raised or returned an invalid answer."""

    def late(self, instance: Instance, extension_point: str, seconds: float) -> None:
        """Called after a call that exceeded its time budget."""

    def left_out(self, instance: Instance, extension_point: str) -> None:
        """Called when an instance is skipped because its circuit is open."""

    def circuit_changed(self, instance: Instance, before: BreakerState) -> None:
        """Called after a circuit changed from the state `before`."""

    def clamped(self, instance: Instance, count: int) -> None:
        """Called when a scorer's answer is outside 0 to 1 for `count` endpoints."""

    def undeclared_access(self, scope: AccessScope, key: str, access: Literal["read", "write"]) -> None:
        """Called when an instance uses an undeclared data key."""

    def poll_error(self, source: Instance, endpoint: str, problem: BaseException | str) -> None:
        """Called when a source returns no payload; `endpoint` is "" for a pool source."""

    def collect_error(self, source: Instance, collector: Instance, endpoint: str, problem: BaseException | str) -> None:
        """Called when a collector fails on a payload."""

    def gateway_body_modes(self, request_bodies: bool, response_bodies: bool, losses: Sequence[str]) -> None:
        """Called when the gateway changes body modes; `losses` are sentences about missing data."""

    def unread_response(self, encoding: str, lost: str) -> None:
        """Called when the `usage` or `model name` of a compressed response cannot be read or restored."""

    def request_decided(self, model: str, target_model: str, fairness_id: str, priority: int, size_bytes: int, seconds: float) -> None:
        """Called when a request is routed; `seconds` is the duration of the decision."""

    def request_refused(self, model: str, target_model: str, fairness_id: str, priority: int, code: str) -> None:
        """Called when a request is refused; `code` as in `Refused.code`."""

    def request_scheduled(self, seconds: float, endpoint: Endpoint | None, target_model: str) -> None:
        """Called after scheduling, which took `seconds`; `endpoint` is the first pick."""

    def request_ended(self, model: str, target_model: str, fairness_id: str, priority: int, end: ResponseEnd, pace: ResponsePace) -> None:
        """Called when a routed request ends."""

    def bodiless_ended(self, fairness_id: str, seconds: float) -> None:
        """Called when a request without a body ends."""


class NullTelemetry(Telemetry):
    """Discards all measurements, in tests, simulations and single decisions."""


_MAX_TOPICS = 10_000


class Throttle:
    """Admits each topic once per interval, and counts the suppressed lines. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float], interval_seconds: float) -> None:
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._last: dict[str, tuple[float, int]] = {}

    def admit(self, topic: str) -> int | None:
        """Return the lines suppressed since the last admitted one, or None to suppress this one."""
        now = self._clock()
        last = self._last.get(topic)
        if last is not None and now - last[0] < self._interval_seconds:
            self._last[topic] = (last[0], last[1] + 1)
            return None
        if len(self._last) >= _MAX_TOPICS:
            self._last.clear()
        self._last[topic] = (now, 0)
        return 0 if last is None else last[1]
