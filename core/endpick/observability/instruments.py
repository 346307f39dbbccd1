"""What the request path and the data layer report while they work, and to whom they report it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from endpick.api.access import AccessScope
from endpick.api.requests import ResponseEnd
from endpick.plugins.instance import Instance


class Instruments(Protocol):
    """The sink for measurements. Methods are cheap and never raise; timers are bound once, when a plan is compiled."""

    def plugin_timer(self, extension_point: str, instance: Instance) -> Callable[[float], None]:
        """A function that records the seconds one call of the instance took."""

    def fault(self, instance: Instance, extension_point: str, problem: BaseException | str) -> None:
        """An instance raised, or answered nonsense. Counted always; logged once per interval."""

    def clamped(self, instance: Instance, count: int) -> None:
        """A scorer left the range 0..1 for this many endpoints."""

    def undeclared_access(self, scope: AccessScope, key: str, access: Literal["read", "write"]) -> None:
        """An instance touched a data key it did not declare."""

    def poll_error(self, source: Instance, endpoint: str, problem: BaseException | str) -> None:
        """A source could not get a payload; `endpoint` is empty for a pool-wide source."""

    def collect_error(self, source: Instance, collector: Instance, endpoint: str, problem: BaseException | str) -> None:
        """A collector could not use a payload."""

    def gateway_delivers(self, request_bodies: bool, response_bodies: bool, losses: Sequence[str]) -> None:
        """Requests whose gateway sends these bodies follow others, or are the first.

        `losses` says which instances see less because of it; it is empty when it has been said before.
        """

    def request_decided(self, model: str, target_model: str, fairness_id: str, priority: int, size_bytes: int) -> None:
        """A request goes to a model server."""

    def request_refused(self, model: str, target_model: str, fairness_id: str, priority: int, code: str) -> None:
        """A request was answered by endpick itself; `code` as in `Refused.code`."""

    def request_scheduled(self, seconds: float, destination: str | None, target_model: str) -> None:
        """Scheduling took this long; `destination` is the first pick, None when there was none."""

    def request_ended(self, model: str, target_model: str, fairness_id: str, priority: int, streaming: bool, end: ResponseEnd) -> None:
        """A request that went to a model server is over. Called exactly once for each `request_decided`."""


class Silent:
    """Instruments that record nothing: for tests, simulations and one-off decisions."""

    def plugin_timer(self, extension_point: str, instance: Instance) -> Callable[[float], None]:
        """A function that does nothing."""
        return _ignore

    def fault(self, instance: Instance, extension_point: str, problem: BaseException | str) -> None:
        """Does nothing."""

    def clamped(self, instance: Instance, count: int) -> None:
        """Does nothing."""

    def undeclared_access(self, scope: AccessScope, key: str, access: Literal["read", "write"]) -> None:
        """Does nothing."""

    def poll_error(self, source: Instance, endpoint: str, problem: BaseException | str) -> None:
        """Does nothing."""

    def collect_error(self, source: Instance, collector: Instance, endpoint: str, problem: BaseException | str) -> None:
        """Does nothing."""

    def gateway_delivers(self, request_bodies: bool, response_bodies: bool, losses: Sequence[str]) -> None:
        """Does nothing."""

    def request_decided(self, model: str, target_model: str, fairness_id: str, priority: int, size_bytes: int) -> None:
        """Does nothing."""

    def request_refused(self, model: str, target_model: str, fairness_id: str, priority: int, code: str) -> None:
        """Does nothing."""

    def request_scheduled(self, seconds: float, destination: str | None, target_model: str) -> None:
        """Does nothing."""

    def request_ended(self, model: str, target_model: str, fairness_id: str, priority: int, streaming: bool, end: ResponseEnd) -> None:
        """Does nothing."""


def _ignore(_seconds: float) -> None:
    return None
