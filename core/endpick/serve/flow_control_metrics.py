"""The metrics of flow control, with llm-d's names and labels."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.registry import CollectorRegistry

from endpick.api.fast_metrics import Counts, Distribution, Distributions, Levels, Tally
from endpick.api.request import InferenceRequest
from endpick.flow_control.policies import Reading
from endpick.flow_control.queues import BandQueue, Bands, Entry, Outcome
from endpick.serve.metrics import PREFIX, SCHEDULING_BUCKETS
from endpick.serve.recorder import CombinationLimit

QUEUE_DURATION_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
CONFIRMATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_FLOW = ("fairness_id", "priority", "inference_pool", "model_name", "target_model_name")
_POOL = ("inference_pool",)
_BAND = ("priority", "inference_pool")
_NAME = PREFIX + "flow_control_"


class _FlowMembers:
    """The members for one combination of models, fairness id and priority."""

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
        self._target = levels("reclaim_target", "Saturation to free by the last eviction.", _POOL)
        self._pending = levels("pending_reclaim", "Saturation to free by unconfirmed evictions.", _POOL)
        self._confirmation = distributions(
            "revocation_confirmation_seconds", "Time from an eviction to the end of its request.", _POOL, CONFIRMATION_BUCKETS
        ).labels(pool_name)

    def revoked(self, priority: int, target: float, pending: float) -> None:
        """See `Report`."""
        self._issued.labels(self._combination.priority(priority), self._pool).value += 1.0
        self._target.labels(self._pool).value = target
        self._pending.labels(self._pool).value = pending

    def confirmed(self, outcome: str, seconds: float) -> None:
        """See `Report`."""
        self._revocations.labels(outcome, self._pool).value += 1.0
        self._pending.labels(self._pool).value = 0.0
        self._confirmation.observe(seconds)

    def passed(self, request: InferenceRequest) -> None:
        """See `Report`."""
        self._count(request, Outcome.DISPATCHED, 0.0)

    def queued(self, entry: Entry, band: BandQueue, bands: Bands, seconds: float) -> None:
        """See `Report`."""
        members = self._members(entry.waiting.request)
        members.size.value += 1.0
        members.bytes.value += entry.waiting.size_bytes
        members.enqueued.observe(seconds)
        self._fill(band, bands)

    def left(self, entry: Entry, band: BandQueue, bands: Bands, outcome: Outcome, waited_seconds: float) -> None:
        """See `Report`."""
        members = self._members(entry.waiting.request)
        members.size.value -= 1.0
        members.bytes.value -= entry.waiting.size_bytes
        self._count(entry.waiting.request, outcome, waited_seconds)
        self._fill(band, bands)

    def refused(self, entry: Entry, outcome: Outcome) -> None:
        """See `Report`."""
        self._count(entry.waiting.request, outcome, 0.0)

    def attempted(self, seconds: float) -> None:
        """See `Report`."""
        self._cycles.observe(seconds)

    def read(self, reading: Reading) -> None:
        """See `Report`."""
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
        self._requests.labels(outcome, self._combination.priority(request.priority), self._pool).value += 1.0

    def _fill(self, band: BandQueue, bands: Bands) -> None:
        labels = self._combination.priority(band.priority), self._pool
        self._used_requests.labels(*labels).value = len(band) / band.rules.max_requests
        self._used_bytes.labels(*labels).value = band.size_bytes / band.rules.max_bytes
        settings = bands.rules.settings
        if settings.max_requests:
            self._all_requests.labels(self._pool).value = bands.requests / settings.max_requests
        if settings.max_bytes:
            self._all_bytes.labels(self._pool).value = bands.size_bytes / settings.max_bytes
