"""Orders one publisher's messages: detects gaps and restarts, replays gaps, and counts events under llm-d's names."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from prometheus_client.metrics import Counter, Gauge
from prometheus_client.registry import CollectorRegistry

from endpick.api import LabelLimit
from endpick.api.fast_metrics import Counts, Distributions
from endpick_kv_events.engine_blocks import MAX_PLACES, Applied, EngineBlocks
from endpick_kv_events.messages import Batch

MAX_HELD = 10_000  # during a replay: as many as vLLM keeps


@dataclass(frozen=True, slots=True)
class Message:
    """One numbered batch, and the base model of its blocks."""

    number: int
    batch: Batch
    model: str


class Verdict(Enum):
    """How a message's sequence number relates to the last one."""

    FIRST = auto()
    NEXT = auto()
    SEEN = auto()
    GAP = auto()
    RESET = auto()  # a lower number with a later timestamp: the publisher restarted


class Phase(Enum):
    """Whether a stream applies messages as they arrive, or replays a gap."""

    LIVE = auto()
    REPLAYING = auto()


class Action(Enum):
    """How a stream handles a published message."""

    APPLY = auto()
    DROP = auto()
    CATCH_UP = auto()  # hold the message until the gap is replayed
    START_OVER = auto()  # forget all blocks, then as `CATCH_UP`
    HOLD = auto()


_ACTIONS: Mapping[tuple[Phase, Verdict], Action] = {
    (Phase.LIVE, Verdict.FIRST): Action.CATCH_UP,
    (Phase.LIVE, Verdict.NEXT): Action.APPLY,
    (Phase.LIVE, Verdict.SEEN): Action.DROP,
    (Phase.LIVE, Verdict.GAP): Action.CATCH_UP,
    (Phase.LIVE, Verdict.RESET): Action.START_OVER,
    (Phase.REPLAYING, Verdict.FIRST): Action.HOLD,
    (Phase.REPLAYING, Verdict.NEXT): Action.HOLD,
    (Phase.REPLAYING, Verdict.SEEN): Action.DROP,
    (Phase.REPLAYING, Verdict.GAP): Action.HOLD,
    (Phase.REPLAYING, Verdict.RESET): Action.HOLD,
}


class KvStream:
    """Applies one publisher's messages, in order, to the blocks of its engine."""

    def __init__(
        self,
        blocks: EngineBlocks,
        start_replay: Callable[[int], bool],
        on_applied: Callable[[Applied], None],
        on_verdict: Callable[[Verdict], None],
    ) -> None:
        """`start_replay` fetches from a number on, or returns False; `replayed` and `replay_ended` follow."""
        self.blocks = blocks
        self._start_replay, self._on_applied, self._on_verdict = start_replay, on_applied, on_verdict
        self._phase = Phase.LIVE
        self._last: tuple[int, float] | None = None
        self._held: deque[Message] = deque(maxlen=MAX_HELD)
        self._expected = 0

    @property
    def next_number(self) -> int:
        return 0 if self._last is None else self._last[0] + 1

    @property
    def held(self) -> int:
        return len(self._held)

    def begin_replay(self, number: int) -> bool:
        """Start a replay from a number on; returns False if one is running or cannot start."""
        if self._phase is Phase.REPLAYING or not self._start_replay(number):
            return False
        self._phase, self._expected = Phase.REPLAYING, number
        return True

    def published(self, message: Message) -> None:
        verdict = self._judge(message)
        self._on_verdict(verdict)
        action = _ACTIONS[self._phase, verdict]
        if action is Action.START_OVER:
            self.blocks.clear()
            self._last = None
        if action in (Action.CATCH_UP, Action.START_OVER):
            is_behind = message.number > self.next_number
            action = Action.HOLD if is_behind and self.begin_replay(self.next_number) else Action.APPLY
        if action is Action.HOLD:
            self._held.append(message)
        elif action is Action.APPLY:
            self._apply(message)

    def replayed(self, message: Message) -> None:
        """Apply a replayed message; after a gap, which may hide evictions, forget all blocks first."""
        if message.number > self._expected:
            self.blocks.clear()
        if message.number >= self.next_number:
            self._apply(message)
        self._expected = message.number + 1

    def replay_ended(self, complete: bool) -> None:
        """Apply the held messages; after a failed replay forget all blocks first."""
        self._phase = Phase.LIVE
        if not complete:
            self.blocks.clear()
        while self._held:
            message = self._held.popleft()
            verdict = self._judge(message) if complete else Verdict.NEXT
            if verdict is Verdict.RESET:
                self.blocks.clear()
            if verdict is not Verdict.SEEN:
                self._apply(message)

    def _judge(self, message: Message) -> Verdict:
        if self._last is None:
            return Verdict.FIRST
        number, time = self._last
        if message.number <= number:
            return Verdict.RESET if message.batch.time > time else Verdict.SEEN
        return Verdict.NEXT if message.number == number + 1 else Verdict.GAP

    def _apply(self, message: Message) -> None:
        time = message.batch.time
        self._last = message.number, time if self._last is None else max(time, self._last[1])
        self._on_applied(self.blocks.apply(message.batch.events, message.model))


_EVENTS = "llm_d_epp_kv_cache_events_"
_INDEX = "llm_d_epp_kv_cache_index_"
_POD = ("pod_identifier",)
_TOKENS = (1.0, *(float(2**power) for power in range(3, 21)))
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_OUT_OF_ORDER = {Verdict.SEEN: "seen", Verdict.GAP: "gap", Verdict.RESET: "reset"}


class Operation(StrEnum):
    """Operations that may fail between picker and publisher."""

    ASK = "event-sources"
    CONNECT = "connect"
    REPLAY = "replay"
    BIND = "bind"


class KvMetrics:
    """The KV-event metrics of one plugin instance."""

    def __init__(
        self, registry: CollectorRegistry | None, subscribers: Callable[[], int], blocks: Callable[[], int], held: Callable[[], int]
    ) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str, value: Callable[[], float]) -> None:
            Gauge(name, text, registry=registry).set_function(value)

        gauge(f"{_EVENTS}active_subscribers", "Subscriptions to publishers of KV events.", subscribers)
        gauge(f"{_EVENTS}pool_queue_depth", "Messages held until a replay ends.", held)
        gauge(f"{_EVENTS}pool_capacity", "Workers that apply messages: the event loop.", lambda: 1)
        gauge("endpick_kv_cache_index_blocks", "Distinct blocks held by any endpoint, counted once per tier.", blocks)
        self.reconnections = counter(f"{_EVENTS}subscriber_reconnections_total", "Attempts to reconnect to a publisher.", *_POD)
        self.messages = counter(f"{_EVENTS}messages_received_total", "Messages received from publishers.", *_POD)
        self.errors = counter(f"{_EVENTS}zmq_errors_total", "Failed operations between picker and publisher.", *_POD, "operation")
        self.bad = counter("endpick_kv_events_bad_total", "Messages and events that could not be used.", "reason")
        self.out_of_order = counter("endpick_kv_events_out_of_order_total", "Messages out of sequence.", *_POD, "verdict")
        self.replaying = Gauge(f"{_EVENTS}replay_active", "1 while messages are replayed.", _POD, registry=registry)
        self.replays = counter(f"{_EVENTS}replay_completed_total", "Completed replays.", *_POD)
        self.failed_replays = counter(f"{_EVENTS}replay_failures_total", "Failed replays.", *_POD)
        self.replayed = counter(f"{_EVENTS}replay_processed_total", "Replayed messages.", *_POD)
        text = "Unix time of the last completed replay, in seconds."
        self.last_replay = Gauge(f"{_EVENTS}replay_last_completion_timestamp_seconds", text, _POD, registry=registry)

        self._kind = LabelLimit(MAX_PLACES)  # publishers may send any
        skipped = ("cache_kind", "reason")
        self._skipped_stores = counter(f"{_EVENTS}stores_skipped_total", "Store events that were ignored.", *skipped)
        self._skipped_removals = counter(f"{_EVENTS}removals_skipped_total", "Removals of unknown blocks.", *skipped)
        self._admissions = counter(f"{_INDEX}admissions_total", "Blocks stored by engines.")
        self._evictions = counter(f"{_INDEX}evictions_total", "Blocks removed by engines.")
        self._dropped = counter("endpick_kv_cache_index_dropped_total", "Blocks dropped because an endpoint exceeded the index size.")
        self._forwarded = counter(f"{_EVENTS}dedup_removed_hashes_forwarded_total", "Removals of the last copy of a block.")
        self._suppressed = counter(f"{_EVENTS}dedup_removed_hashes_suppressed_total", "Removals that left another copy of the block.")

        self._lookups = Counts(f"{_INDEX}lookup_requests_total", "Requests looked up in the index.", (), registry).labels()
        self._hits = counter(f"{_INDEX}lookup_hits_total", "Leading blocks held by the best endpoint.")
        self._best = counter(f"{_INDEX}max_pod_hit_count_total", "Leading blocks held by the best endpoint.")
        seconds = "Time to look up one request."
        self._lookup_seconds = Distributions(f"{_INDEX}lookup_latency_seconds", seconds, (), _SECONDS, registry).labels()

        def tokens(name: str, text: str) -> Distributions:
            return Distributions(f"llm_d_epp_prefix_{name}", text, ("endpoint_role",), _TOKENS, registry)

        self._cached_tokens = tokens("predicted_cached_tokens", "Prompt tokens that the picked endpoint holds, according to the index.")
        self._prompt_tokens = tokens("prompt_tokens", "Prompt tokens in full blocks.")

    def looked_up(self, best: float, seconds: float) -> None:
        self._lookups.inc()
        self._lookup_seconds.observe(seconds)
        if best > 0:
            self._hits.inc(best)
            self._best.inc(best)

    def sent(self, role: str, cached_tokens: float, prompt_tokens: int) -> None:
        self._cached_tokens.labels(role).observe(cached_tokens)
        self._prompt_tokens.labels(role).observe(prompt_tokens)

    def applied(self, applied: Applied) -> None:
        self._admissions.inc(applied.admitted)
        self._evictions.inc(applied.evicted)
        self._forwarded.inc(applied.evicted)
        self._suppressed.inc(applied.suppressed)
        self._dropped.inc(applied.dropped)
        for metric, skipped in ((self._skipped_stores, applied.skipped_stores), (self._skipped_removals, applied.skipped_removals)):
            for (kind, reason), count in skipped.items():
                metric.labels(self._kind(kind), reason).inc(count)

    def judged(self, pod: str, verdict: Verdict) -> None:
        self.messages.labels(pod).inc()
        if verdict in _OUT_OF_ORDER:
            self.out_of_order.labels(pod, _OUT_OF_ORDER[verdict]).inc()

    def forget(self, pod: str) -> None:
        for metric in (
            *(self.messages, self.reconnections, self.replaying, self.replays),
            *(self.failed_replays, self.replayed, self.last_replay),
        ):
            metric.remove(pod)
        for operation in Operation:
            self.errors.remove(pod, operation)
        for verdict in _OUT_OF_ORDER.values():
            self.out_of_order.remove(pod, verdict)
