"""llm-d's gauges of the endpoint pool, and a log of its changes."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from endpick.api.endpoint import Endpoint
from endpick.api.endpoints import FloatArray
from endpick.api.generation import Generation
from endpick.api.keys import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE
from endpick.data.table import EndpointTable
from endpick.host.telemetry import Throttle
from endpick.serve.metrics import PREFIX, EndpickMetrics

_log = logging.getLogger("endpick.pool")

SHOWN_NAMES = 10
_LOG_SECONDS = 30.0


class PoolLog:
    """Follows one endpoint table."""

    def __init__(self, table: EndpointTable, metrics: EndpickMetrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._throttle = Throttle(clock, _LOG_SECONDS)
        self._members: dict[str, Endpoint] = {}
        table.on_changed.append(self._changed)
        table.on_left_out.append(self._left_out)

    def _changed(self, generation: Generation) -> None:
        before, now = self._members, {endpoint.name: endpoint for endpoint in generation.endpoints}
        self._members = now
        changes = {
            "joined": now.keys() - before.keys(),
            "left": before.keys() - now.keys(),
            "changed": {name for name in now.keys() & before.keys() if now[name] is not before[name]},
        }
        for change, names in changes.items():
            if names:
                self._metrics.pool_changes.labels(change).inc(len(names))
        shown = {change: _shown(names) for change, names in changes.items() if names}
        if shown:
            _log.info("the pool has changed", extra={**shown, "endpoints": len(now)})

    def _left_out(self) -> None:
        self._metrics.pool_left_out.inc()
        suppressed = self._throttle.admit("left out")
        if suppressed is not None:
            _log.warning(
                "endpoints are left out: discovery reports more than --max-endpoints",
                extra={"endpoints": len(self._members), "suppressed": suppressed},
            )


def _shown(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - SHOWN_NAMES
    return ", ".join(ordered[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


_AVERAGED = (
    ("kv_cache_utilization", KV_CACHE_USAGE.name, "KV cache usage"),
    ("queue_size", WAITING_QUEUE_SIZE.name, "waiting queue"),
    ("running_requests", RUNNING_REQUESTS_SIZE.name, "running requests"),
)


class PoolGauges(Collector):
    """llm-d's pool gauges, and the age of each column."""

    def __init__(
        self, pool_name: str, generation: Callable[[], Generation], clock: Callable[[], float], staleness_seconds: float = math.inf
    ) -> None:
        """Averages leave out values older than `staleness_seconds`."""
        self._pool_name = pool_name
        self._generation = generation
        self._clock = clock
        self._staleness_seconds = staleness_seconds

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing; families depend on the pool."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See `Collector`."""
        generation = self._generation()
        yield self._pool("ready_endpoints", "Endpoints in the pool.", len(generation.endpoints))
        for name, key, text in _AVERAGED:
            reported = _reported(generation, key, self._clock() - self._staleness_seconds)
            if len(reported):
                yield self._pool(f"average_{name}", f"Mean {text} over the endpoints that reported it.", float(reported.mean()))
                yield self._pool(f"std_dev_{name}", f"Standard deviation of the {text}.", _deviation(reported))
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
            # llm-d drops the namespace; kept if labels would be equal.
            names = Counter(endpoint.name.rpartition("/")[2] for endpoint in generation.endpoints)
            for endpoint, size in zip(generation.endpoints, column.values.tolist(), strict=True):
                if not np.isnan(size):
                    short = endpoint.name.rpartition("/")[2]
                    family.add_metric([self._pool_name, short if names[short] == 1 else endpoint.name], size)
        return family

    def _ages(self, generation: Generation) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "endpick_data_age_seconds",
            "Age of the oldest value of a data key; +Inf while an endpoint has none.",
            labels=["key"],
        )
        now = self._clock()
        for key, written_at in generation.pool_written_at.items():
            family.add_metric([key], now - written_at)
        if generation.endpoints:
            for key, column in generation.columns.items():
                family.add_metric([key], now - float(column.written_at.min()))
        return family


def _deviation(values: FloatArray) -> float:
    """Sample standard deviation, as in llm-d; 0 for a single value."""
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _reported(generation: Generation, key: str, since: float) -> FloatArray:
    column = generation.columns.get(key)
    if column is None:
        return np.empty(0)
    values: FloatArray = column.values  # type: ignore[assignment]
    return values[~np.isnan(values) & (column.written_at >= since)]
