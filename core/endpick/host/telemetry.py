"""The interface through which the request path and the data layer report timings, faults and requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from endpick.api.access import AccessScope
from endpick.api.endpoint import Endpoint
from endpick.api.fast_metrics import Distribution
from endpick.api.request_control import ResponseEnd
from endpick.host.breaker import BreakerState
from endpick.host.instance import Instance

ITL_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0)


class ResponsePace(Protocol):
    """How a response came, as the exchange saw it; the exchange itself says so.

    Attributes:
        streaming: It is a stream of server-sent events, whatever the client asked for.
        processing_seconds: How long endpick itself worked on it; pieces that it only noted are left out.
        gaps: Seconds between two pieces of a stream; None where there were none.
    """

    streaming: bool
    processing_seconds: float
    gaps: Distribution | None


class Telemetry(Protocol):
    """The sink for measurements. Methods are cheap and never raise; timers are bound once, when a plan is compiled."""

    def plugin_timer(self, extension_point: str, instance: Instance) -> Distribution:
        """Where the seconds that calls of the instance take are counted."""

    def fault(self, instance: Instance, extension_point: str, problem: BaseException | str) -> None:
        """An instance raised, or returned something invalid. Counted always; logged once per interval."""

    def late(self, instance: Instance, extension_point: str, seconds: float) -> None:
        """A call of an instance held the event loop for longer than it may."""

    def left_out(self, instance: Instance, extension_point: str) -> None:
        """An instance was not called, because its circuit is open."""

    def circuit_changed(self, instance: Instance, before: BreakerState) -> None:
        """The circuit of an instance was in this state, and is in another one now."""

    def clamped(self, instance: Instance, count: int) -> None:
        """A scorer left the range 0..1 for this many endpoints."""

    def undeclared_access(self, scope: AccessScope, key: str, access: Literal["read", "write"]) -> None:
        """An instance touched a data key it did not declare."""

    def poll_error(self, source: Instance, endpoint: str, problem: BaseException | str) -> None:
        """A source could not get a payload; `endpoint` is empty for a pool-wide source."""

    def collect_error(self, source: Instance, collector: Instance, endpoint: str, problem: BaseException | str) -> None:
        """A collector could not use a payload."""

    def gateway_body_modes(self, request_bodies: bool, response_bodies: bool, losses: Sequence[str]) -> None:
        """The gateway sends bodies in another way than for the request before; also called for the first request.

        `losses` says which instances see less because of it; it is empty when this was reported before.
        """

    def request_decided(self, model: str, target_model: str, fairness_id: str, priority: int, size_bytes: int, seconds: float) -> None:
        """A request goes to a model server; `seconds` is how long endpick took to say so, `size_bytes` what the server gets."""

    def request_refused(self, model: str, target_model: str, fairness_id: str, priority: int, code: str) -> None:
        """A request was answered by endpick itself; `code` as in `Refused.code`."""

    def request_scheduled(self, seconds: float, endpoint: Endpoint | None, target_model: str) -> None:
        """Scheduling took this long; `endpoint` is the first pick, None when there was none."""

    def request_ended(self, model: str, target_model: str, fairness_id: str, priority: int, end: ResponseEnd, pace: ResponsePace) -> None:
        """A request that went to a model server is over. Called exactly once for each `request_decided`."""

    def bodiless_ended(self, fairness_id: str, seconds: float) -> None:
        """The response to a request without a body, which no profile saw, is complete after this long."""


class NullTelemetry:
    """Telemetry that records nothing: for tests, simulations and single decisions."""

    def plugin_timer(self, extension_point: str, instance: Instance) -> Distribution:
        """A histogram that no page shows."""
        return Distribution(())

    def fault(self, instance: Instance, extension_point: str, problem: BaseException | str) -> None:
        """Does nothing."""

    def late(self, instance: Instance, extension_point: str, seconds: float) -> None:
        """Does nothing."""

    def left_out(self, instance: Instance, extension_point: str) -> None:
        """Does nothing."""

    def circuit_changed(self, instance: Instance, before: BreakerState) -> None:
        """Does nothing."""

    def clamped(self, instance: Instance, count: int) -> None:
        """Does nothing."""

    def undeclared_access(self, scope: AccessScope, key: str, access: Literal["read", "write"]) -> None:
        """Does nothing."""

    def poll_error(self, source: Instance, endpoint: str, problem: BaseException | str) -> None:
        """Does nothing."""

    def collect_error(self, source: Instance, collector: Instance, endpoint: str, problem: BaseException | str) -> None:
        """Does nothing."""

    def gateway_body_modes(self, request_bodies: bool, response_bodies: bool, losses: Sequence[str]) -> None:
        """Does nothing."""

    def request_decided(self, model: str, target_model: str, fairness_id: str, priority: int, size_bytes: int, seconds: float) -> None:
        """Does nothing."""

    def request_refused(self, model: str, target_model: str, fairness_id: str, priority: int, code: str) -> None:
        """Does nothing."""

    def request_scheduled(self, seconds: float, endpoint: Endpoint | None, target_model: str) -> None:
        """Does nothing."""

    def request_ended(self, model: str, target_model: str, fairness_id: str, priority: int, end: ResponseEnd, pace: ResponsePace) -> None:
        """Does nothing."""

    def bodiless_ended(self, fairness_id: str, seconds: float) -> None:
        """Does nothing."""
