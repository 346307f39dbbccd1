"""Checks of flow control policies: fairness, ordering, usage limits and eviction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random
from time import thread_time

from endpick.api.flow_control import (
    DispatchedRequest,
    EvictionFilter,
    EvictionOrderingPolicy,
    FairnessPolicy,
    OrderingPolicy,
    UsageLimitPolicy,
)
from endpick.testing.bench import Bench, Raised, benches, instances
from endpick.testing.factories import FakeBand, FakeFlow, make_endpoint, make_request, make_waiting, varied_requests
from endpick.testing.plugin_under_test import Finding, PluginUnderTest, check

MANY_FLOWS = 10_000
BUDGET_IN_LOOPS = 10  # plain Python loops over the flows
_CHOICES = 5
_MAX_EMPTY_CHOICES = 20
_STEPS = 300
_LEAST, _MOST = -(2**63), 2**63 - 1
PRIORITIES: tuple[tuple[int, ...], ...] = ((), (0,), (5, 0, -1), (_MOST, 0, _LEAST), tuple(range(50, -50, -1)))
SATURATIONS = (0.0, 0.3, 0.5, 0.8, 0.999, 1.0, 1.5, math.inf, math.nan)
_OBJECTIVES = ("250", "0", " 7 ", "soon", "-1", "1.5", "9" * 30, "")


@check(FairnessPolicy, once=True)
def fairness_policy_chooses_what_waits(subject: PluginUnderTest) -> Iterator[Finding]:
    """`choose` returns a flow of the band after any history, and serves everything eventually."""
    for bench in benches(subject):
        problem = _run_random_history(bench)
        if problem:
            yield Finding(problem, "answer one of `band.flows`; keep what you know of a band up to date in `flow_changed`")


@check(FairnessPolicy, once=True)
def fairness_policy_handles_ten_thousand_flows(subject: PluginUnderTest) -> Iterator[Finding]:
    """With ten thousand flows one choice takes at most as long as ten plain Python loops over them."""
    for bench in benches(subject):
        band = _band(bench)
        for number in range(MANY_FLOWS):
            band.add(make_waiting(f"tenant-{number}", arrival=number, enqueued_at=bench.clock.now))
        started = thread_time()
        for flow in band.flows:
            _ = (flow.id, flow.head)
        budget = BUDGET_IN_LOOPS * _CHOICES * (thread_time() - started)
        started = thread_time()
        for _ in range(_CHOICES):
            chosen = band.choose()
            if not isinstance(chosen, FakeFlow) or band.flow(chosen.id) is not chosen:
                return  # reported by another check
            band.dispatch_head(chosen)
        seconds = thread_time() - started
        if seconds > budget:
            yield Finding(
                f"a choice takes {seconds / budget * BUDGET_IN_LOOPS:.0f} times as long as a loop over {MANY_FLOWS} flows",
                "keep the flows in order in `flow_changed`, for example in a heap in `band.private`",
            )


@check(OrderingPolicy)
def ordering_policy_answers_keys(subject: PluginUnderTest) -> Iterator[Finding]:
    """`sort_key` returns a tuple of numbers without NaN, always of the same length."""
    requests = [*varied_requests(), *(make_request(headers={"x-llm-d-slo-ttft-ms": text}) for text in _OBJECTIVES)]
    for bench, plugin in instances(subject, OrderingPolicy):
        waiting = [make_waiting(request=request, ttl_seconds=ttl, arrival=7) for request in requests for ttl in (60.0, 0.0)]
        yield from _keys([bench.call(plugin.sort_key, request) for request in waiting])


@check(UsageLimitPolicy, once=True)
def usage_limit_falls_with_priority(subject: PluginUnderTest) -> Iterator[Finding]:
    """`ceilings` returns one number for each priority, none greater than the one before, for any saturation."""
    for bench, plugin in instances(subject, UsageLimitPolicy):
        for priorities in PRIORITIES:
            for saturation in (*SATURATIONS, *SATURATIONS):
                answer = bench.call(plugin.ceilings, saturation, priorities)
                problem = _no_ceilings(answer, len(priorities))
                if problem:
                    yield Finding(
                        f"`ceilings` {problem} for saturation {saturation:g} and {len(priorities)} priorities",
                        "answer as many numbers as there are priorities, falling from the highest priority to the lowest",
                    )


@check(EvictionFilter, once=True)
def eviction_filter_answers_yes_or_no(subject: PluginUnderTest) -> Iterator[Finding]:
    """`is_evictable` returns a bool for every request."""
    for bench, plugin in instances(subject, EvictionFilter):
        for dispatched in _dispatched():
            answer = bench.call(plugin.is_evictable, dispatched)
            if not isinstance(answer, bool):
                problem = f"raises {answer}" if isinstance(answer, Raised) else f"answers {type(answer).__name__}"
                yield Finding(f"`is_evictable` {problem} for request '{dispatched.request.id}'", "answer True or False")


@check(EvictionOrderingPolicy)
def eviction_order_answers_keys(subject: PluginUnderTest) -> Iterator[Finding]:
    """`sort_key` returns a tuple of numbers without NaN, always of the same length."""
    for bench, plugin in instances(subject, EvictionOrderingPolicy):
        yield from _keys([bench.call(plugin.sort_key, dispatched) for dispatched in _dispatched()])


def _band(bench: Bench) -> FakeBand:
    return FakeBand(bench.plugin_as(FairnessPolicy), call=bench.call)


def _run_random_history(bench: Bench) -> str | None:
    draw, band, none = Random(1), _band(bench), 0  # noqa: S311 - made-up data
    for number in range(_STEPS):
        bench.clock.now += draw.random()
        flows = list(band.flows)
        if flows and draw.random() < 0.2:
            band.drop_head(draw.choice(flows))
        if number < _STEPS // 2:
            flow = f"tenant-{draw.randrange(8)}"
            band.add(make_waiting(flow, key=(), arrival=number, enqueued_at=bench.clock.now))
        if number % 50 == 49:
            band.private.clear()  # as after a reload
        chosen = band.choose()
        if isinstance(chosen, Raised):
            return f"`choose` raises {chosen}"
        if chosen is None:
            none = none + 1 if band.flows else 0
            if none > _MAX_EMPTY_CHOICES:
                return f"`choose` answers None {none} times while {len(band.flows)} flows wait"
            continue
        if not isinstance(chosen, FakeFlow) or band.flow(chosen.id) is not chosen:
            return f"`choose` answers {type(chosen).__name__}, not a flow of the band"
        none = 0
        band.dispatch_head(chosen)
    return None


def _dispatched() -> Iterator[DispatchedRequest]:
    for number, request in enumerate((*varied_requests(), make_request(priority=_LEAST), make_request(priority=_MOST))):
        yield DispatchedRequest(request, make_endpoint(number), float(number))


_KEY_HELP = "answer as many numbers for every request, float('inf') to put one last, or () for all"


def _keys(answers: Sequence[object]) -> Iterator[Finding]:
    length: int | None = None
    for answer in answers:
        if isinstance(answer, Raised):
            yield Finding(f"`sort_key` raises {answer}", _KEY_HELP)
            return
        if not isinstance(answer, tuple) or not all(_is_number(number) for number in answer):
            yield Finding(f"`sort_key` answers {answer!r}, not a tuple of numbers", _KEY_HELP)
            return
        if length is not None and len(answer) != length:
            yield Finding(f"`sort_key` answers {len(answer)} numbers for one request, and {length} for another", _KEY_HELP)
            return
        length = len(answer)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _no_ceilings(answer: object, expected: int) -> str | None:
    if isinstance(answer, Raised):
        return f"raises {answer}"
    if isinstance(answer, str) or not isinstance(answer, Sequence) or not all(_is_number(ceiling) for ceiling in answer):
        return f"answers {answer!r}, not a sequence of numbers"
    if len(answer) != expected:
        return f"answers {len(answer)} numbers"
    rising = any(later > earlier for earlier, later in pairwise(answer))
    return f"answers {list(answer)}, which rises," if rising else None
