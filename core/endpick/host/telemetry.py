"""Where the request path and the data layer report timings, faults and requests."""

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
    """Timings of a response.

    Attributes:
        streaming: True for a stream of server-sent events, whatever the client asked for.
        processing_seconds: Time that endpick spent on the response.
        gaps: Seconds between two chunks of a stream; None if there were none.
    """

    streaming: bool
    processing_seconds: float
    gaps: Distribution | None


class Telemetry:
    """Receives measurements. Methods are cheap and never raise; the methods of this class do nothing."""

    def plugin_timer(self, extension_point: str, instance: Instance) -> Distribution:
        """The histogram of call durations; bound once, when a plan is compiled."""
        return Distribution(())

    def fault(self, instance: Instance, extension_point: str, problem: BaseException | str) -> None:
        """An instance raised or returned something invalid."""

    def late(self, instance: Instance, extension_point: str, seconds: float) -> None:
        """A call held the event loop for longer than its budget."""

    def left_out(self, instance: Instance, extension_point: str) -> None:
        """An instance was not called because its circuit is open."""

    def circuit_changed(self, instance: Instance, before: BreakerState) -> None:
        """The circuit of an instance has left the state `before`."""

    def clamped(self, instance: Instance, count: int) -> None:
        """A scorer left the range 0..1 for `count` endpoints."""

    def undeclared_access(self, scope: AccessScope, key: str, access: Literal["read", "write"]) -> None:
        """An instance used a data key that it did not declare."""

    def poll_error(self, source: Instance, endpoint: str, problem: BaseException | str) -> None:
        """A source got no payload; `endpoint` is empty for a source of the whole pool."""

    def collect_error(self, source: Instance, collector: Instance, endpoint: str, problem: BaseException | str) -> None:
        """A collector could not use a payload."""

    def gateway_body_modes(self, request_bodies: bool, response_bodies: bool, losses: Sequence[str]) -> None:
        """The gateway sends bodies in another mode than for the last request.

        `losses` has a sentence for each thing that an instance does not see in this mode; empty if reported before.
        """

    def request_decided(self, model: str, target_model: str, fairness_id: str, priority: int, size_bytes: int, seconds: float) -> None:
        """A request goes to a model server, with a body of `size_bytes`; the decision took `seconds`."""

    def request_refused(self, model: str, target_model: str, fairness_id: str, priority: int, code: str) -> None:
        """Endpick answered a request itself; `code` as in `Refused.code`."""

    def request_scheduled(self, seconds: float, endpoint: Endpoint | None, target_model: str) -> None:
        """Scheduling took `seconds`; `endpoint` is the first pick."""

    def request_ended(self, model: str, target_model: str, fairness_id: str, priority: int, end: ResponseEnd, pace: ResponsePace) -> None:
        """A request that went to a model server is over. Called once for each `request_decided`."""

    def bodiless_ended(self, fairness_id: str, seconds: float) -> None:
        """The response to a request without a body is complete after `seconds`."""


class NullTelemetry(Telemetry):
    """Discards everything: for tests, simulations and single decisions."""
