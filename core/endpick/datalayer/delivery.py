"""Hands the payloads of one source to its collectors; whatever a collector raises is counted and stops nobody else."""

from __future__ import annotations

from collections.abc import Callable

from endpick.api.datalayer import DataCollector
from endpick.api.endpoints import Endpoint
from endpick.api.plugin import Parameters
from endpick.datalayer.collection import SourceBinding
from endpick.datalayer.table import EndpointTable
from endpick.observability.instruments import Instruments
from endpick.plugins.instance import Instance

PLUGIN_FAILURES = (Exception, SystemExit)
"""What a plugin may throw at us without harm: `sys.exit()` in a collector must not end the gateway's picker."""


class Delivery:
    """The way from one source to the columns."""

    def __init__(self, binding: SourceBinding, table: EndpointTable, instruments: Instruments) -> None:
        self.source = binding.source
        self._table = table
        self._instruments = instruments
        self._collectors = tuple((instance, _collector_of(instance)) for instance in binding.collectors)

    def deliver(self, payload: object, endpoint: Endpoint | None) -> None:
        """Let every collector read the payload; `endpoint` is None when it is pool-wide. None as payload means there was nothing."""
        if payload is None:
            return
        for instance, collector in self._collectors:
            try:
                collector.collect(payload, self._table.writer(instance.scope, endpoint))
            except PLUGIN_FAILURES as problem:
                self._instruments.collect_error(self.source, instance, endpoint.name if endpoint else "", problem)

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

    def failed(self, endpoint: str, problem: BaseException | str) -> None:
        """Count that the source had nothing to deliver."""
        self._instruments.poll_error(self.source, endpoint, problem)


def _collector_of(instance: Instance) -> DataCollector[Parameters, object]:
    if not isinstance(instance.plugin, DataCollector):
        raise TypeError(f"{instance.origin} is no data collector")
    return instance.plugin
