"""Hands the payloads of a source to its collectors, and leaves out what takes too long to read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from endpick.api.datalayer import DataCollector, EndpointEvent, EndpointEventSource
from endpick.api.endpoint import Endpoint
from endpick.api.plugin import Parameters
from endpick.data.table import EndpointTable
from endpick.host.apart import apart
from endpick.host.boundary import admitted
from endpick.host.boundary import report_late as late
from endpick.host.breaker import Breaker, BreakerState
from endpick.host.failures import CALL_FAILURES, is_the_hosts
from endpick.host.instance import Instance
from endpick.host.kinds import ExtensionPoint
from endpick.host.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class SourceBinding:
    """One source and the collectors that take its payloads, in configuration order."""

    source: Instance
    collectors: tuple[Instance, ...]
    needed: frozenset[str] = frozenset()
    """Of the keys that the collectors write, those that an instance must have. Endpoints that tell them by themselves are polled less."""


class PayloadDispatcher:
    """The way from one source to the columns."""

    def __init__(self, binding: SourceBinding, table: EndpointTable, telemetry: Telemetry) -> None:
        self.source = binding.source
        self.needed = binding.needed
        self._table = table
        self._telemetry = telemetry
        self.told = table.told
        self._collectors = tuple((instance, _collector_of(instance)) for instance in binding.collectors)
        self._slow: dict[tuple[str, str], Breaker] = {}
        """By collector and endpoint, where a payload took long to read."""

    def deliver(self, payload: object, endpoint: Endpoint | None, since: float | None = None) -> None:
        """Let every collector read the payload; `endpoint` is None when it is pool-wide. None as payload means there was nothing.

        `since` is when the payload was asked for; None for one that came by itself.
        """
        if payload is None:
            return
        name = "" if endpoint is None else endpoint.name
        for instance, collector in self._collectors:
            if self._slow and not self._admitted(instance, name):
                continue
            started = perf_counter()
            try:
                with apart():
                    collector.collect(payload, self._table.writer(instance.scope, endpoint, since))
            except CALL_FAILURES as problem:
                if is_the_hosts(problem):
                    raise
                self._telemetry.collect_error(self.source, instance, name, problem)
            finally:
                seconds = perf_counter() - started
                if seconds > instance.breaker.budget_seconds:
                    self._late(instance, name, seconds)
        for told in self._table.on_delivered:
            told()

    def forget(self, endpoint: str) -> None:
        """The endpoint has left."""
        for key in [key for key in self._slow if key[1] == endpoint]:
            del self._slow[key]

    def is_asked(self, endpoint: str) -> bool:
        """Whether the source is polled about an endpoint now; empty for a source of the whole pool."""
        source = self.source
        if source.breaker.state and not admitted(source, self._telemetry):
            self._telemetry.left_out(source, ExtensionPoint.COLLECTION)
            return False
        return not self._slow or self._admitted(source, endpoint)

    def held(self, endpoint: str, seconds: float) -> None:
        """The source held the event loop for longer than it may. That endpoint alone is left out, or the source where it is all of them."""
        source = self.source
        breaker = self._slow.setdefault((source.name, endpoint), source.breaker.twin())
        breaker.took(seconds)
        if breaker.state is BreakerState.OPEN:
            self._telemetry.late(source, ExtensionPoint.COLLECTION, seconds)
            self.failed(endpoint, f"left out for {breaker.seconds_left:.0f} s, because {breaker.reason}")
        else:
            late(source, ExtensionPoint.COLLECTION, seconds, self._telemetry)

    def _admitted(self, instance: Instance, endpoint: str) -> bool:
        breaker = self._slow.get((instance.name, endpoint))
        if breaker is None or not breaker.state or breaker.admits():
            return True
        self._telemetry.left_out(instance, ExtensionPoint.COLLECTION)
        return False

    def _late(self, instance: Instance, endpoint: str, seconds: float) -> None:
        """What one endpoint says takes too long to read: that endpoint alone is left out, so that none can blind the picker to others."""
        self._telemetry.late(instance, ExtensionPoint.COLLECTION, seconds)
        breaker = self._slow.setdefault((instance.name, endpoint), instance.breaker.twin())
        breaker.took(seconds)
        if breaker.state is BreakerState.OPEN:
            problem = f"left out for {breaker.seconds_left:.0f} s, because {breaker.reason}"
            self._telemetry.collect_error(self.source, instance, endpoint, problem)

    def publisher_for(self, name: str) -> Callable[[object], None]:
        """What a stream of one endpoint publishes to; deaf once the endpoint has left."""

        def publish(payload: object) -> None:
            endpoint = self._table.find(name)
            if endpoint is not None:
                self.deliver(payload, endpoint)

        return publish

    def publish_pool(self, payload: object) -> None:
        """What a pool-wide source publishes to."""
        self.deliver(payload, None)

    def notify(self, source: EndpointEventSource[Parameters, object], event: EndpointEvent) -> None:
        """Deliver what the source says to a change of the pool."""
        started = perf_counter()
        payload: object = None
        try:
            with apart():
                payload = source.notify(event)
        except CALL_FAILURES as problem:
            if is_the_hosts(problem):
                raise
            self.failed(event.endpoint.name, problem)
        seconds = perf_counter() - started
        if seconds > self.source.breaker.budget_seconds:
            late(self.source, ExtensionPoint.COLLECTION, seconds, self._telemetry)
        self.deliver(payload, event.endpoint)

    def failed(self, endpoint: str, problem: BaseException | str) -> None:
        """Count that the source had nothing to deliver."""
        self._telemetry.poll_error(self.source, endpoint, problem)


def _collector_of(instance: Instance) -> DataCollector[Parameters, object]:
    if not isinstance(instance.plugin, DataCollector):
        raise TypeError(f"{instance.origin} is no data collector")
    return instance.plugin
