"""Metrics of the pool and of flow control, read at each scrape."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from endpick.api.endpoint import Endpoint, Generation
from endpick.api.endpoints import FloatArray
from endpick.api.fast_metrics import Counts, Distribution, Distributions, Levels, Tally
from endpick.api.keys import ENDPOINT_HEALTH, KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE, EndpointHealth, HealthState
from endpick.api.request import InferenceRequest
from endpick.data.table import EndpointTable
from endpick.flow_control.policies import Reading
from endpick.flow_control.queues import BandQueue, Bands, Entry, Outcome
from endpick.host.telemetry import Throttle
from endpick.serve.metrics import PREFIX, SCHEDULING_BUCKETS, EndpickMetrics
from endpick.serve.recorder import CombinationLimit

_log = logging.getLogger("endpick.pool")

SHOWN_NAMES = 10
_LOG_SECONDS = 30.0


class PoolLog:
    """Logs and counts the endpoints that join, leave or change in one endpoint table."""

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
        """Make the collector; values older than `staleness_seconds` count as missing."""
        self._pool_name = pool_name
        self._generation = generation
        self._clock = clock
        self._staleness_seconds = staleness_seconds

    def collect(self) -> Iterator[GaugeMetricFamily]:
        generation = self._generation()
        newest = _newest_writes(generation)
        silent = np.isfinite(newest) & (newest < self._clock() - self._staleness_seconds)
        ready = sum(not _is_ejected(health) and not quiet for health, quiet in zip(_health(generation), silent.tolist(), strict=True))
        yield self._pool("ready_endpoints", "Endpoints that are not ejected, and report metrics if they ever did.", ready)
        for name, key, text in _AVERAGED:
            reported = _reported(generation, key, self._clock() - self._staleness_seconds)
            if len(reported):
                yield self._pool(f"average_{name}", f"Mean {text} over the endpoints that reported it.", float(reported.mean()))
                deviation = float(reported.std(ddof=1)) if len(reported) > 1 else 0.0
                yield self._pool(f"std_dev_{name}", f"Standard deviation of the {text}.", deviation)
        yield self._queues(generation)
        yield self._ages(generation)
        ages = GaugeMetricFamily(
            "endpick_endpoint_data_age_seconds", "Age of the newest load metric of each endpoint; +Inf for none.", labels=["endpoint_name"]
        )
        for endpoint, age in zip(generation.endpoints, (self._clock() - newest).tolist(), strict=True):
            ages.add_metric([endpoint.name], age)
        yield ages

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


def _health(generation: Generation) -> list[EndpointHealth | None]:
    column = generation.columns.get(ENDPOINT_HEALTH.name)
    return [None] * len(generation.endpoints) if column is None else column.values.tolist()


def _is_ejected(health: EndpointHealth | None) -> bool:
    return health is not None and health.state is HealthState.EJECTED


def _newest_writes(generation: Generation) -> FloatArray:
    columns = [column for _, key, _ in _AVERAGED if (column := generation.columns.get(key)) is not None]
    never = np.full(len(generation.endpoints), -np.inf)
    newest: FloatArray = np.maximum.reduce([never, *(column.written_at for column in columns)])
    return newest


def has_usable_endpoint(generation: Generation) -> bool:
    """Return True if at least one endpoint is not ejected."""
    return not all(map(_is_ejected, _health(generation)))


def unwell_endpoints(generation: Generation) -> tuple[str, ...]:
    """Return a line for `/healthz` for each endpoint that is not healthy, at most 11 in total."""
    now = generation.clock()
    sentences = [
        f"endpoint {endpoint.name} is {health.state.value} for {now - health.since_seconds:.0f} s: {health.reason}"
        for endpoint, health in zip(generation.endpoints, _health(generation), strict=True)
        if health is not None and health.state is not HealthState.HEALTHY
    ]
    more = len(sentences) - SHOWN_NAMES
    return (*sentences[:SHOWN_NAMES], *((f"{more} more endpoints are not healthy",) if more > 0 else ()))


def _reported(generation: Generation, key: str, since: float) -> FloatArray:
    column = generation.columns.get(key)
    if column is None:
        return np.empty(0)
    values: FloatArray = column.values  # type: ignore[assignment]
    return values[~np.isnan(values) & (column.written_at >= since)]


QUEUE_DURATION_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
CONFIRMATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_FLOW = ("fairness_id", "priority", "inference_pool", "model_name", "target_model_name")
_POOL = ("inference_pool",)
_BAND = ("priority", "inference_pool")
_NAME = PREFIX + "flow_control_"


class _FlowMembers:
    __slots__ = ("bytes", "durations", "enqueued", "size")

    def __init__(self, size: Tally, size_bytes: Tally, enqueued: Distribution) -> None:
        self.size = size
        self.bytes = size_bytes
        self.enqueued = enqueued
        self.durations: dict[Outcome, Distribution] = {}


class FlowControlMetrics:
    """The flow-control `Report` of a serving process."""

    def __init__(self, registry: CollectorRegistry, pool_name: str, max_combinations: int, overflowed: Callable[[], None]) -> None:
        def counts(name: str, help_text: str, labels: tuple[str, ...]) -> Counts:
            return Counts(_NAME + name, help_text, labels, registry)

        def levels(name: str, help_text: str, labels: tuple[str, ...]) -> Levels:
            return Levels(_NAME + name, help_text, labels, registry)

        def distributions(name: str, help_text: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Distributions:
            return Distributions(_NAME + name, help_text, labels, buckets, registry)

        self._pool = pool_name
        self._combination = CombinationLimit(max_combinations, overflowed)
        self._bound: dict[tuple[str, ...], _FlowMembers] = {}
        self._durations = distributions(
            "request_queue_duration_seconds", "Queue time of requests, by outcome.", (*_FLOW, "outcome"), QUEUE_DURATION_BUCKETS
        )
        self._cycles = distributions("dispatch_cycle_duration_seconds", "Duration of one dispatch cycle.", (), SCHEDULING_BUCKETS).labels()
        self._enqueue = distributions(
            "request_enqueue_duration_seconds",
            "Time to put a request into its queue.",
            ("fairness_id", "priority", "outcome"),
            SCHEDULING_BUCKETS,
        )
        self._size = levels("queue_size", "Waiting requests.", _FLOW)
        self._bytes = levels("queue_bytes", "Bytes of the waiting requests.", _FLOW)
        self._saturation = levels("pool_saturation", "Saturation of the pool by stage, 1 for full.", (*_POOL, "stage"))
        self._used_requests = levels("capacity_utilization_requests", "Waiting requests as a share of the limit of their band.", _BAND)
        self._used_bytes = levels("capacity_utilization_bytes", "Waiting bytes as a share of the limit of their band.", _BAND)
        self._all_requests = levels(
            "global_capacity_utilization_requests", "Waiting requests as a share of flowControl.maxRequests.", _POOL
        )
        self._all_bytes = levels("global_capacity_utilization_bytes", "Waiting bytes as a share of flowControl.maxBytes.", _POOL)
        self._requests = counts("requests_total", "Requests by outcome.", ("outcome", *_BAND))
        self._issued = counts("revocations_issued_total", "Evicted requests in flight, by priority.", _BAND)
        self._revocations = counts("revocations_total", "Evictions that are confirmed or unconfirmed.", ("outcome", *_POOL))
        self._target = levels("reclaim_target", "Saturation that the last eviction aimed to free.", _POOL)
        self._pending = levels("pending_reclaim", "Saturation that unconfirmed evictions aim to free.", _POOL)
        self._confirmation = distributions(
            "revocation_confirmation_seconds", "Time from an eviction to the end of its request.", _POOL, CONFIRMATION_BUCKETS
        ).labels(pool_name)

    def revoked(self, priority: int, target: float, pending: float) -> None:
        self._issued.labels(self._combination.priority(str(priority)), self._pool).value += 1.0
        self._target.labels(self._pool).value = target
        self._pending.labels(self._pool).value = pending

    def confirmed(self, outcome: str, seconds: float) -> None:
        self._revocations.labels(outcome, self._pool).value += 1.0
        self._pending.labels(self._pool).value = 0.0
        self._confirmation.observe(seconds)

    def passed(self, request: InferenceRequest) -> None:
        self._count(request, Outcome.DISPATCHED, 0.0)

    def queued(self, entry: Entry, band: BandQueue, bands: Bands, seconds: float) -> None:
        members = self._members(entry.waiting.request)
        members.size.value += 1.0
        members.bytes.value += entry.waiting.size_bytes
        members.enqueued.observe(seconds)
        self._fill(band, bands)

    def left(self, entry: Entry, band: BandQueue, bands: Bands, outcome: Outcome, waited_seconds: float) -> None:
        members = self._members(entry.waiting.request)
        members.size.value -= 1.0
        members.bytes.value -= entry.waiting.size_bytes
        self._count(entry.waiting.request, outcome, waited_seconds)
        self._fill(band, bands)

    def refused(self, entry: Entry, outcome: Outcome) -> None:
        self._count(entry.waiting.request, outcome, 0.0)

    def attempted(self, seconds: float) -> None:
        self._cycles.observe(seconds)

    def read(self, reading: Reading) -> None:
        for stage, saturation in (("effective", reading.effective), ("prefill", reading.prefill), ("decode", reading.decode)):
            if saturation is not None:
                self._saturation.labels(self._pool, stage).value = saturation

    def _members(self, request: InferenceRequest) -> _FlowMembers:
        labels = self._labels(request)
        members = self._bound.get(labels)
        if members is None:
            model, target, fairness_id, priority = labels
            flow = (fairness_id, priority, self._pool, model, target)
            members = self._bound[labels] = _FlowMembers(
                self._size.labels(*flow),
                self._bytes.labels(*flow),
                self._enqueue.labels(fairness_id, priority, Outcome.NOT_YET_FINALIZED),
            )
        return members

    def _labels(self, request: InferenceRequest) -> tuple[str, str, str, str]:
        return self._combination((request.incoming_model, request.model, request.fairness_id, request.priority))

    def _count(self, request: InferenceRequest, outcome: Outcome, waited_seconds: float) -> None:
        members = self._members(request)
        duration = members.durations.get(outcome)
        if duration is None:
            model, target, fairness_id, priority = self._labels(request)
            duration = members.durations[outcome] = self._durations.labels(fairness_id, priority, self._pool, model, target, outcome)
        duration.observe(waited_seconds)
        self._requests.labels(outcome, self._combination.priority(str(request.priority)), self._pool).value += 1.0

    def _fill(self, band: BandQueue, bands: Bands) -> None:
        labels = self._combination.priority(str(band.priority)), self._pool
        self._used_requests.labels(*labels).value = len(band) / band.rules.max_requests
        self._used_bytes.labels(*labels).value = band.size_bytes / band.rules.max_bytes
        settings = bands.rules.settings
        if settings.max_requests:
            self._all_requests.labels(self._pool).value = bands.requests / settings.max_requests
        if settings.max_bytes:
            self._all_bytes.labels(self._pool).value = bands.size_bytes / settings.max_bytes
