"""Policies of flow control that break a rule each."""

from __future__ import annotations

from conformance.broken.register import breaks
from endpick.api.flow_control import EvictionFilter, EvictionOrderingPolicy, FairnessPolicy, OrderingPolicy, UsageLimitPolicy


@breaks("fairness_policy_chooses_what_waits", "`choose` answers str, not a flow of the band")
class Naming(FairnessPolicy):
    """Answers the name of a flow."""

    def choose(self, band):
        return next((flow.id for flow in band.flows), None)


@breaks("fairness_policy_chooses_what_waits", "`choose` answers FakeFlow, not a flow of the band")
class Nostalgic(FairnessPolicy):
    """Goes on with the first flow it has seen, also when that has gone."""

    def choose(self, band):
        return band.private.setdefault("first", next(iter(band.flows), None))


@breaks("fairness_policy_chooses_what_waits", "`choose` answers None 21 times while")
class Starving(FairnessPolicy):
    """Serves one tenant only."""

    def choose(self, band):
        return band.flow("tenant-1")


@breaks("fairness_policy_handles_ten_thousand_flows", "a choice takes")
class Sorting(FairnessPolicy):
    """Sorts all flows again and again to find one."""

    def choose(self, band):
        flows = list(band.flows)
        for _ in range(60):
            flows.sort(key=lambda flow: (len(flow), flow.id))
        return flows[0] if flows else None


@breaks("ordering_policy_answers_keys", "`sort_key` answers 3.5, not a tuple of numbers")
class Bare(OrderingPolicy):
    """Answers a number."""

    def sort_key(self, waiting):
        return 3.5


@breaks("ordering_policy_answers_keys", "`sort_key` answers 0 numbers for one request, and 1 for another")
class Uneven(OrderingPolicy):
    """Knows nothing to say of requests without a limit."""

    def sort_key(self, waiting):
        return (waiting.enqueued_at + waiting.ttl_seconds,) if waiting.ttl_seconds else ()


@breaks("usage_limit_falls_with_priority", "which rises, for saturation 0 and 3 priorities")
class Inverted(UsageLimitPolicy):
    """Thinks that the lowest priority comes first."""

    def ceilings(self, saturation, priorities):
        return [place / max(1, len(priorities)) for place in range(len(priorities))]


@breaks("usage_limit_falls_with_priority", "`ceilings` answers 1 numbers for saturation 0 and 0 priorities")
class OneForAll(UsageLimitPolicy):
    """Answers one number, whatever is asked."""

    def ceilings(self, saturation, priorities):
        return [1.0]


@breaks("eviction_filter_answers_yes_or_no", "`is_evictable` answers int")
class Counting(EvictionFilter):
    """Answers a number."""

    def is_evictable(self, dispatched):
        return dispatched.request.priority


@breaks("eviction_order_answers_keys", "`sort_key` answers (nan,), not a tuple of numbers")
class Dividing(EvictionOrderingPolicy):
    """Does not know what 0 / 0 is."""

    def sort_key(self, dispatched):
        return (float("nan") if dispatched.request.priority == 0 else 1.0,)
