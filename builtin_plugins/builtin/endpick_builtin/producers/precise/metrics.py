"""The metrics of KV events and of the index that follows them, under llm-d's names."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from prometheus_client.metrics import Counter, Gauge
from prometheus_client.registry import CollectorRegistry

from endpick.api import LabelLimit, Limits
from endpick.api.fast_metrics import Counts, Distributions
from endpick_builtin.producers.precise.engine_blocks import OVER_TIERS, Applied
from endpick_builtin.producers.precise.kv_stream import Verdict
from endpick_builtin.producers.precise.limits import MANY_BLOCKS, MANY_TIERS

_EVENTS = "llm_d_epp_kv_cache_events_"
_INDEX = "llm_d_epp_kv_cache_index_"
_POD = ("pod_identifier",)
_TOKENS = (1.0, *(float(2**power) for power in range(3, 21)))
_ROLE = ("endpoint_role",)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Operation(StrEnum):
    """What may go wrong between picker and publisher."""

    ASK = "event-sources"
    CONNECT = "connect"
    REPLAY = "replay"
    BIND = "bind"


_UNUSUAL = {Verdict.SEEN: "seen", Verdict.GAP: "gap", Verdict.RESET: "reset"}


class KvMetrics:
    """All of one instance."""

    def __init__(
        self,
        registry: CollectorRegistry | None,
        limits: Limits,
        subscribers: Callable[[], int],
        blocks: Callable[[], int],
        waiting: Callable[[], int],
    ) -> None:
        """The callables give publishers listened to, blocks held and messages that wait; they are called when Prometheus asks."""
        self.limits = limits

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        active = Gauge(f"{_EVENTS}active_subscribers", "Publishers of KV events listened to, or dialled.", registry=registry)
        active.set_function(subscribers)
        depth = Gauge(f"{_EVENTS}pool_queue_depth", "Messages that wait until those before them are fetched.", registry=registry)
        depth.set_function(waiting)
        Gauge(f"{_EVENTS}pool_capacity", "Workers that apply messages: the event loop.", registry=registry).set(1)
        self.reconnections = counter(f"{_EVENTS}subscriber_reconnections_total", "New attempts to dial a publisher.", *_POD)
        size = Gauge("endpick_kv_cache_index_blocks", "Different blocks that some endpoint holds, by tier.", registry=registry)
        size.set_function(blocks)
        self.admissions = counter(f"{_INDEX}admissions_total", "Blocks that engines said they store.")
        self.evictions = counter(f"{_INDEX}evictions_total", "Blocks that engines said they removed.")
        self.dropped = counter("endpick_kv_cache_index_dropped_total", "Blocks forgotten because an endpoint had too many.")
        self.forwarded = counter(f"{_EVENTS}dedup_removed_hashes_forwarded_total", "Removals of the last copy of a block.")
        self.suppressed = counter(f"{_EVENTS}dedup_removed_hashes_suppressed_total", "Removals that left another copy of the block.")
        self._kind = LabelLimit()
        skipped = ("cache_kind", "reason")
        self.skipped_stores = counter(f"{_EVENTS}stores_skipped_total", "Stores that the index can do nothing with.", *skipped)
        self.skipped_removals = counter(f"{_EVENTS}removals_skipped_total", "Removals of blocks that the index does not have.", *skipped)
        self.messages = counter(f"{_EVENTS}messages_received_total", "Messages of publishers.", *_POD)
        self.errors = counter(f"{_EVENTS}zmq_errors_total", "What went wrong between picker and publisher.", *_POD, "operation")
        self.bad = counter("endpick_kv_events_bad_total", "Messages and events that could not be used, by reason.", "reason")
        self.unusual = counter("endpick_kv_events_out_of_order_total", "Messages that do not follow the last one.", *_POD, "verdict")
        self.replaying = Gauge(f"{_EVENTS}replay_active", "1 while messages are fetched again.", _POD, registry=registry)
        self.replays = counter(f"{_EVENTS}replay_completed_total", "Replays that came to their end.", *_POD)
        self.failed_replays = counter(f"{_EVENTS}replay_failures_total", "Replays that did not.", *_POD)
        self.replayed = counter(f"{_EVENTS}replay_processed_total", "Messages that replays brought.", *_POD)
        text = "When a replay last came to its end, in seconds since 1970."
        self.last_replay = Gauge(f"{_EVENTS}replay_last_completion_timestamp_seconds", text, _POD, registry=registry)
        self.lookups = Counts(f"{_INDEX}lookup_requests_total", "Requests whose blocks were looked up.", (), registry).labels()
        self._hits = counter(f"{_INDEX}lookup_hits_total", "Leading blocks that the best endpoint held.")
        self._best = counter(f"{_INDEX}max_pod_hit_count_total", "Leading blocks that the best endpoint held.")
        held = "Tokens of a prompt that the endpoint it goes to holds, as the index says."
        self._held_tokens = Distributions("llm_d_epp_prefix_predicted_cached_tokens", held, _ROLE, _TOKENS, registry)
        whole = "Tokens of a prompt in full blocks, of which the index says how many are held."
        self._prompt_tokens = Distributions("llm_d_epp_prefix_prompt_tokens", whole, _ROLE, _TOKENS, registry)
        lookup = "Time to look up the blocks of one request."
        self.lookup_seconds = Distributions(f"{_INDEX}lookup_latency_seconds", lookup, (), _SECONDS, registry).labels()

    def looked_up(self, best: float, seconds: float) -> None:
        """One request: the blocks that the best endpoint holds, and how long it took to know."""
        self.lookups.inc()
        self.lookup_seconds.observe(seconds)
        if best > 0:
            self._hits.inc(best)
            self._best.inc(best)

    def sent(self, role: str, held_tokens: float, prompt_tokens: int) -> None:
        """A request goes where so many of its tokens are held; the endpoint prefills or decodes."""
        self._held_tokens.labels(role).observe(held_tokens)
        self._prompt_tokens.labels(role).observe(prompt_tokens)

    def applied(self, applied: Applied) -> None:
        """What became of one message."""
        for metric, count in (
            (self.admissions, applied.admitted),
            (self.evictions, applied.evicted),
            (self.forwarded, applied.evicted),
            (self.suppressed, applied.suppressed),
            (self.dropped, applied.dropped),
        ):
            if count:
                metric.inc(count)
        if applied.dropped:
            self.limits.acted(MANY_BLOCKS, times=applied.dropped)
        for (kind, reason), count in (applied.skipped_stores or {}).items():
            if reason == OVER_TIERS:
                self.limits.acted(MANY_TIERS, times=count)
            self.skipped_stores.labels(self._kind(kind), reason).inc(count)
        for (kind, reason), count in (applied.skipped_removals or {}).items():
            self.skipped_removals.labels(self._kind(kind), reason).inc(count)

    def judged(self, pod: str, verdict: Verdict) -> None:
        """A message of a publisher has come, in its order or not."""
        self.messages.labels(pod).inc()
        if verdict in _UNUSUAL:
            self.unusual.labels(pod, _UNUSUAL[verdict]).inc()

    def forget(self, pod: str) -> None:
        """The publisher is gone."""
        for metric in (
            self.messages,
            self.reconnections,
            self.replaying,
            self.replays,
            self.failed_replays,
            self.replayed,
            self.last_replay,
        ):
            metric.remove(pod)  # by name: to look for all series of a Pod takes a time that grows with the pool
        for operation in Operation:
            self.errors.remove(pod, operation)
        for verdict in _UNUSUAL.values():
            self.unusual.remove(pod, verdict)
