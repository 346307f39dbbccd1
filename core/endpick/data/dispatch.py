"""Delivers the payloads of a source to its collectors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from endpick.api.access import Access
from endpick.api.datalayer import DataCollector, EndpointEvent, EndpointEventSource
from endpick.api.endpoint import Endpoint
from endpick.api.plugin import Parameters
from endpick.data.table import EndpointTable
from endpick.data.tasks import is_being_cancelled
from endpick.host.boundary import Fault, Step
from endpick.host.failures import PLUGIN_ERRORS
from endpick.host.instance import Instance
from endpick.host.kinds import ExtensionPoint
from endpick.host.telemetry import Telemetry

_CANCEL_GRACE_SECONDS = 1.0
"""After its timeout, a poll may take this long to handle its cancellation."""


@dataclass(frozen=True, slots=True)
class SourceBinding:
    """A source and the collectors of its payloads, in configuration order.

    Attributes:
        needed: The keys among those the collectors write that some instance requires.
    """

    source: Instance
    collectors: tuple[Instance, ...]
    needed: frozenset[str] = frozenset()


class Failure(NamedTuple):
    """An error of a source or collector.

    Not a `Fault`: an endpoint that is down must not open the circuit for the others.
    """

    problem: BaseException | str


class PayloadDispatcher:
    """Calls one source and its collectors, and counts their failures."""

    def __init__(self, binding: SourceBinding, table: EndpointTable, telemetry: Telemetry) -> None:
        self.source = binding.source
        self.needed = binding.needed
        self._table = table
        self._telemetry = telemetry
        self._access = Access(None, telemetry.undeclared_access)
        self._collectors = tuple(self._step(_collect_method(instance), instance) for instance in binding.collectors)

    def deliver(self, payload: object, endpoint: Endpoint | None, since: float | None = None) -> None:
        """Let every collector read a payload.

        Args:
            payload: None if the source had nothing.
            endpoint: Its endpoint; None for a pool-wide payload.
            since: When it was requested; newer values in the table are kept. None for a payload that was pushed.
        """
        if payload is None:
            return
        for step in self._collectors:
            answer = step.run(self._access, payload, self._table.writer(step.instance.scope, endpoint, since))
            if isinstance(answer, Failure):
                self._telemetry.collect_error(self.source, step.instance, endpoint.name if endpoint else "", answer.problem)
        for delivered in self._table.on_delivered:
            delivered()

    def bind_poll(self, poll: Callable[..., Awaitable[object]], timeout_seconds: float) -> Callable[..., Awaitable[object]]:
        """Make a function that polls once; it returns the payload, a `Failure` or a `Fault`."""

        async def call(*arguments: object) -> object:
            try:
                async with asyncio.timeout(timeout_seconds) as deadline:
                    return await poll(*arguments)
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise
                return Failure("cancelled itself")
            except PLUGIN_ERRORS as error:
                return Failure(f"no answer within {timeout_seconds:g} s" if deadline.expired() else error)

        step = Step(call, self.source, ExtensionPoint.COLLECTION, self._telemetry)
        return lambda *arguments: step.run_async(self._access, timeout_seconds + _CANCEL_GRACE_SECONDS, *arguments)

    def bind_notify(self, source: EndpointEventSource[Parameters, object]) -> Callable[[EndpointEvent], None]:
        """Make a function that delivers the payload of an event."""
        step = self._step(source.notify, self.source)

        def notify(event: EndpointEvent) -> None:
            answer = step.run(self._access, event)
            if isinstance(answer, Failure):
                self.failed(event.endpoint.name, answer.problem)
            elif not isinstance(answer, Fault):
                self.deliver(answer, event.endpoint)

        return notify

    def publisher_for(self, name: str) -> Callable[[object], None]:
        """Make the `publish` of an endpoint's stream; it ignores payloads after the endpoint has left."""

        def publish(payload: object) -> None:
            endpoint = self._table.find(name)
            if endpoint is not None:
                self.deliver(payload, endpoint)

        return publish

    def publish_pool(self, payload: object) -> None:
        """Deliver a pool-wide payload."""
        self.deliver(payload, None)

    def failed(self, endpoint: str, problem: BaseException | str) -> None:
        """Count a poll error; `endpoint` is empty for a pool-wide source."""
        self._telemetry.poll_error(self.source, endpoint, problem)

    def _step(self, method: Callable[..., object], instance: Instance) -> Step:
        def call(*arguments: object) -> object:
            try:
                return method(*arguments)
            except PLUGIN_ERRORS as error:
                return Failure(error)

        return Step(call, instance, ExtensionPoint.COLLECTION, self._telemetry)


def _collect_method(instance: Instance) -> Callable[..., object]:
    if not isinstance(instance.plugin, DataCollector):
        raise TypeError(f"{instance.origin} is not a data collector")
    return instance.plugin.collect
