"""The metrics of flow control, under llm-d's names and with its labels."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.registry import CollectorRegistry

from endpick.api.fast_metrics import Counts, Distribution, Distributions, Levels, Tally
from endpick.api.request import InferenceRequest
from endpick.flow_control.queues import BandQueue, Bands, Entry, Outcome
from endpick.flow_control.saturation import Reading
from endpick.serve.metrics import PREFIX, SCHEDULING_BUCKETS
from endpick.serve.recorder import CombinationLimit

QUEUE_DURATION_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
CONFIRMATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_FLOW = ("fairness_id", "priority", "inference_pool", "model_name", "target_model_name")
_MOST_PASSES = 4096
_NAME = PREFIX + "flow_control_"


class _FlowMembers:
    """The bound members of one combination of models, fairness id and priority."""

    __slots__ = ("bytes", "durations", "enqueued", "size")

    def __init__(self, size: Tally, size_bytes: Tally, enqueued: Distribution) -> None:
        self.size = size
        self.bytes = size_bytes
        self.enqueued = enqueued
        self.durations: dict[Outcome, Distribution] = {}


class FlowControlMetrics:
    """The `Report` of a serving process; one in a process."""

    def __init__(self, registry: CollectorRegistry, pool_name: str, max_combinations: int, overflowed: Callable[[], None]) -> None:
        """Register all of them.

        Args:
            registry: Gets them.
            pool_name: The label `inference_pool`.
            max_combinations: As that of `CombinationLimit`; clients choose models and fairness ids.
            overflowed: Called whenever something does not get its own labels.

        Raises:
            ValueError: the registry already holds metrics of these names.
        """
        self._pool = pool_name
        self._combination = CombinationLimit(max_combinations, overflowed)
        self._durations = Distributions(
            _NAME + "request_queue_duration_seconds",
            "How long requests waited, by how that ended.",
            (*_FLOW, "outcome"),
            QUEUE_DURATION_BUCKETS,
            registry,
        )
        self._cycles = Distributions(
            _NAME + "dispatch_cycle_duration_seconds", "One search for the request that goes next.", (), SCHEDULING_BUCKETS, registry
        ).labels()
        self._enqueue = Distributions(
            _NAME + "request_enqueue_duration_seconds",
            "Putting one request into its queue.",
            ("fairness_id", "priority", "outcome"),
            SCHEDULING_BUCKETS,
            registry,
        )
        self._size = Levels(_NAME + "queue_size", "Requests that wait.", _FLOW, registry)
        self._bytes = Levels(_NAME + "queue_bytes", "Bytes of the requests that wait.", _FLOW, registry)
        self._saturation = Levels(
            _NAME + "pool_saturation", "How full the pool is, 1 for full, by stage.", ("inference_pool", "stage"), registry
        )
        of_band = ("priority", "inference_pool")
        self._used_requests = Levels(
            _NAME + "capacity_utilization_requests", "Requests that wait, as a share of the limit of their band.", of_band, registry
        )
        self._used_bytes = Levels(
            _NAME + "capacity_utilization_bytes", "Bytes that wait, as a share of the limit of their band.", of_band, registry
        )
        self._all_requests = Levels(
            _NAME + "global_capacity_utilization_requests", "As a share of flowControl.maxRequests.", ("inference_pool",), registry
        )
        self._all_bytes = Levels(
            _NAME + "global_capacity_utilization_bytes", "As a share of flowControl.maxBytes.", ("inference_pool",), registry
        )
        self._requests = Counts(
            _NAME + "requests_total", "Requests by what became of them in flow control.", ("outcome", *of_band), registry
        )
        self._bound: dict[tuple[str, ...], _FlowMembers] = {}
        self._counted: dict[tuple[Outcome, str], Tally] = {}
        self._bands: dict[str, tuple[Tally, Tally]] = {}
        self._passes: dict[tuple[str, str, str, int], tuple[Distribution, Tally]] = {}
        """What counts a request that passes, for the combinations that came last: nearly every request is one."""

        pool = ("inference_pool",)
        self._issued = Counts(
            _NAME + "revocations_issued_total", "Requests in flight that were evicted, by their priority.", of_band, registry
        )
        self._revocations = Counts(
            _NAME + "revocations_total", "Evictions by what was seen of them: confirmed or unconfirmed.", ("outcome", *pool), registry
        )
        self._target = Levels(_NAME + "reclaim_target", "How much room the last eviction was to make.", pool, registry)
        self._pending = Levels(_NAME + "pending_reclaim", "How much room evictions will make that are not confirmed.", pool, registry)
        self._confirmation = Distributions(
            _NAME + "revocation_confirmation_seconds",
            "From an eviction to the end of its request.",
            pool,
            CONFIRMATION_BUCKETS,
            registry,
        ).labels(pool_name)

    def by_outcome(self) -> dict[str, int]:
        """How many requests ended in each way so far."""
        counts = dict.fromkeys(map(str, Outcome), 0)
        for (outcome, _), counted in self._counted.items():
            counts[str(outcome)] += int(counted.value)
        return counts

    def revoked(self, priority: int, target: float, pending: float) -> None:
        """See `ReclaimReport`."""
        self._issued.labels(self._combination.priority(priority), self._pool).value += 1.0
        self._target.labels(self._pool).value = target
        self._pending.labels(self._pool).value = pending

    def confirmed(self, outcome: str, seconds: float) -> None:
        """See `ReclaimReport`."""
        self._revocations.labels(outcome, self._pool).value += 1.0
        self._pending.labels(self._pool).value = 0.0
        self._confirmation.observe(seconds)

    def passed(self, request: InferenceRequest) -> None:
        """See `Report`."""
        key = (request.incoming_model, request.model, request.fairness_id, request.priority)
        duration, counted = self._passes.get(key) or self._bind_pass(key, request)
        duration.counts[0] += 1
        counted.value += 1.0

    def queued(self, entry: Entry, band: BandQueue, bands: Bands, seconds: float) -> None:
        """See `Report`."""
        members = self._members(entry.waiting.request)
        members.size.value += 1.0
        members.bytes.value += entry.waiting.size_bytes
        members.enqueued.observe(seconds)
        self._fill(band, bands)

    def left(self, entry: Entry, band: BandQueue, bands: Bands, outcome: Outcome, waited_seconds: float) -> None:
        """See `Report`."""
        request = entry.waiting.request
        members = self._members(request)
        members.size.value -= 1.0
        members.bytes.value -= entry.waiting.size_bytes
        self._duration(request, outcome).observe(waited_seconds)
        self._count(outcome, request.priority)
        self._fill(band, bands)

    def refused(self, entry: Entry, outcome: Outcome) -> None:
        """See `Report`."""
        request = entry.waiting.request
        self._duration(request, outcome).observe(0.0)
        self._count(outcome, request.priority)

    def attempted(self, seconds: float) -> None:
        """See `Report`."""
        self._cycles.observe(seconds)

    def read(self, reading: Reading) -> None:
        """See `Report`."""
        stages = (("effective", reading.effective), ("prefill", reading.prefill), ("decode", reading.decode))
        for stage, saturation in stages:
            if saturation is not None:
                self._saturation.labels(self._pool, stage).value = saturation

    def _members(self, request: InferenceRequest) -> _FlowMembers:
        labels = self._combination((request.incoming_model, request.model, request.fairness_id, request.priority))
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

    def _duration(self, request: InferenceRequest, outcome: Outcome) -> Distribution:
        members = self._members(request)
        duration = members.durations.get(outcome)
        if duration is None:
            model, target, fairness_id, priority = self._combination(
                (request.incoming_model, request.model, request.fairness_id, request.priority)
            )
            duration = members.durations[outcome] = self._durations.labels(fairness_id, priority, self._pool, model, target, outcome)
        return duration

    def _bind_pass(self, key: tuple[str, str, str, int], request: InferenceRequest) -> tuple[Distribution, Tally]:
        if len(self._passes) >= _MOST_PASSES:
            self._passes.clear()
        bound = self._passes[key] = self._duration(request, Outcome.DISPATCHED), self._counter(Outcome.DISPATCHED, request.priority)
        return bound

    def _count(self, outcome: Outcome, priority: int) -> None:
        self._counter(outcome, priority).value += 1.0

    def _counter(self, outcome: Outcome, priority: int) -> Tally:
        label = self._combination.priority(priority)
        counted = self._counted.get((outcome, label))
        if counted is None:
            counted = self._counted[outcome, label] = self._requests.labels(outcome, label, self._pool)
        return counted

    def _fill(self, band: BandQueue, bands: Bands) -> None:
        label = self._combination.priority(band.priority)
        used = self._bands.get(label)
        if used is None:
            labels = label, self._pool
            used = self._bands[label] = self._used_requests.labels(*labels), self._used_bytes.labels(*labels)
        used[0].value = len(band) / band.rules.max_requests
        used[1].value = band.size_bytes / band.rules.max_bytes
        if bands.rules.settings.max_requests:
            self._all_requests.labels(self._pool).value = bands.requests / bands.rules.settings.max_requests
        if bands.rules.settings.max_bytes:
            self._all_bytes.labels(self._pool).value = bands.size_bytes / bands.rules.settings.max_bytes
