"""Gauges over the whole pool, computed from the endpoint table when Prometheus asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from endpick.api.endpoints import FloatArray, Generation
from endpick.api.keys import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE
from endpick.observability.metrics import PREFIX

_AVERAGED = (
    ("kv_cache_utilization", KV_CACHE_USAGE.name, "KV cache usage"),
    ("queue_size", WAITING_QUEUE_SIZE.name, "waiting queue"),
    ("running_requests", RUNNING_REQUESTS_SIZE.name, "running requests"),
)


class PoolGauges(Collector):
    """llm-d's pool gauges, and the age of each column."""

    def __init__(self, pool_name: str, generation: Callable[[], Generation], clock: Callable[[], float]) -> None:
        """`generation` gives the table as it is now, `clock` monotonic seconds."""
        self._pool_name = pool_name
        self._generation = generation
        self._clock = clock

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing: the families are known only at scrape time."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All gauges as they are now; called by the registry."""
        generation = self._generation()
        yield self._pool("ready_endpoints", "Endpoints in the pool.", len(generation.endpoints))
        for name, key, text in _AVERAGED:
            reported = _reported(generation, key)
            if len(reported):
                yield self._pool(f"average_{name}", f"Mean {text} over the endpoints that reported it.", float(reported.mean()))
                yield self._pool(f"std_dev_{name}", f"Standard deviation of the {text}.", float(reported.std()))
        yield self._queues(generation)
        yield self._ages(generation)

    def _pool(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(PREFIX + name, text, labels=["name"])
        family.add_metric([self._pool_name], value)
        return family

    def _queues(self, generation: Generation) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            f"{PREFIX}per_endpoint_queue_size", "Waiting queue of each endpoint.", labels=["name", "model_server_endpoint"]
        )
        column = generation.columns.get(WAITING_QUEUE_SIZE.name)
        if column is not None:
            for endpoint, size in zip(generation.endpoints, column.values.tolist(), strict=True):
                if not np.isnan(size):
                    family.add_metric([self._pool_name, endpoint.name], size)
        return family

    def _ages(self, generation: Generation) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "endpick_data_age_seconds", "Age of the oldest value of a data key; +Inf while an endpoint has none.", labels=["key"]
        )
        if generation.endpoints:
            now = self._clock()
            for key, column in generation.columns.items():
                family.add_metric([key], now - float(column.written_at.min()))
        return family


def _reported(generation: Generation, key: str) -> FloatArray:
    column = generation.columns.get(key)
    if column is None:
        return np.empty(0)
    values: FloatArray = column.values  # type: ignore[assignment]
    return values[~np.isnan(values)]
