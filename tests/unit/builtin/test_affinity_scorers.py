"""Scorers and filters with memory or randomness."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import Endpoint, InferenceRequest
from endpick.api.keys import (
    INFLIGHT_TOKENS,
    LORA_ADAPTERS,
    PREFIX_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    TPOT_HEADROOM,
    TTFT_HEADROOM,
    LoraAdapters,
    PrefixBlocks,
)
from endpick.api.scheduling import ProfileRunResult, SchedulingResult
from endpick.api.state import CycleState
from endpick.data.table import EndpointTable
from endpick.requests.headers import HeadersForUpstream
from endpick_builtin.scorers.affinity import LoraAffinityScorer
from endpick_builtin.scorers.latency import NoHitLRUScorer
from endpick_builtin.threshold_filters import PrefixCacheAffinityFilter, SLOHeadroomTierFilter, UtilizationFilter
from unit.scheduling.workbench import REQUEST, access, instance, pool

SETS = st.frozensets(st.sampled_from("abc"))
REPORTS = st.none() | st.builds(LoraAdapters, SETS, SETS, st.integers(0, 5))


def lora_score(model, adapters):
    """The documented rule."""
    if adapters is None:
        return 0.0
    if model in adapters.running:
        return 1.0
    if len(adapters.running) + len(adapters.waiting) < adapters.max_adapters:
        return 0.8
    return 0.6 if model in adapters.waiting else 0.0


@given(st.lists(st.tuples(st.integers(0, 4), REPORTS), max_size=20), st.sampled_from("abcd"))
def test_lora_scores_follow_any_changes(changes, model):
    plugin, table = instance(LoraAffinityScorer).plugin, pool({LORA_ADAPTERS: [None] * 5})
    request, reported = InferenceRequest(id="r", model=model), [None] * 5
    for row, adapters in [(0, None), *changes]:
        if adapters is not None:
            reported[row] = adapters
            table.write(LORA_ADAPTERS, table.generation.endpoints[row], adapters)
        whole = table.view()
        some = whole.take([3, row]) if row != 3 else whole.take([3])

        assert plugin.score(request, whole, CycleState()).tolist() == [lora_score(model, one) for one in reported]
        assert plugin.score(request, some, CycleState()).tolist() == [lora_score(model, reported[one]) for one in dict.fromkeys([3, row])]


def test_lora_scores_of_two_pool_generations():
    plugin, table = instance(LoraAffinityScorer).plugin, EndpointTable(lambda: 0.0, (LORA_ADAPTERS,))
    one, two = (Endpoint(f"pool/e{number}", "10.0.0.1", 8000 + number) for number in range(2))
    request = InferenceRequest(id="r", model="a")
    table.upsert(one)
    table.write(LORA_ADAPTERS, one, LoraAdapters(frozenset("a"), frozenset(), 1))
    before = table.view()
    assert plugin.score(request, before, CycleState()).tolist() == [1.0]

    table.upsert(two)
    table.write(LORA_ADAPTERS, two, LoraAdapters(frozenset("b"), frozenset(), 4))

    assert plugin.score(request, table.view(), CycleState()).tolist() == [1.0, 0.8]
    assert plugin.score(request, before, CycleState()).tolist() == [1.0]


def test_equal_report_keeps_its_object():
    table = pool({LORA_ADAPTERS: [LoraAdapters(frozenset("a"))]})
    first = table.view().derived_from_objects(LORA_ADAPTERS, list)[0]
    table.write(LORA_ADAPTERS, table.generation.endpoints[0], LoraAdapters(frozenset("a")))

    assert table.view().objects(LORA_ADAPTERS)[0] is first


class Cold:
    """A no-hit-lru-scorer and its pool."""

    def __init__(self, size=3, **parameters):
        self.plugin = instance(NoHitLRUScorer, **parameters).plugin
        self.table = pool(size=size)

    def scores(self, state=None, matches=None):
        endpoints = self.table.view(access())
        state = state or CycleState(access())
        if matches is not None:
            state.put_column(PREFIX_MATCH_BLOCKS, endpoints, np.array(matches, dtype=float))
        return self.plugin.score(REQUEST, endpoints, state).tolist()

    def serve(self, picks, *matches):
        """A request whose profiles found these matches and picked these endpoints."""
        state = CycleState(access())
        for found in matches:
            self.scores(state, found)
        view = self.table.view()
        runs = {name: ProfileRunResult(name, None if one is None else view.take([one])) for name, one in picks.items()}
        self.plugin.before_request(REQUEST, SchedulingResult("decode", runs, ("10.0.0.1:8000",)), HeadersForUpstream({}), state)


def test_no_hit_lru_counts_picks_of_all_profiles():
    cold = Cold()
    cold.serve({"decode": 0, "prefill": 2, "encode": None}, [0, 0, 0], [0, 0, 0])

    assert cold.scores() == [0.5, 1.0, 0.0]


@pytest.mark.parametrize("matches", [([1, 0, 0],), ([0, 0, 0], [0, 0, 1]), ([0, 0, 1], [0, 0, 0])])
def test_no_hit_lru_ignores_requests_warm_in_any_profile(matches):
    cold = Cold()
    cold.serve({"decode": 0}, *matches)

    assert cold.scores() == [1.0, 0.5, 0.0]


def test_no_hit_lru_ignores_unrated_requests():
    cold = Cold()
    cold.serve({"decode": 0})

    assert cold.scores() == [1.0, 0.5, 0.0]


def test_no_hit_lru_survives_pool_changes():
    cold = Cold(size=2)
    cold.serve({"decode": 0}, [0, 0])
    cold.table.upsert(Endpoint("pool/e9", "10.0.0.9", 8000))
    assert cold.scores() == [0.0, 1.0, 0.5]

    cold.plugin.endpoint_removed("pool/e0")
    cold.table.upsert(Endpoint("pool/e8", "10.0.0.8", 8000))
    assert cold.scores()[0] == 1.0


def draws(plugin, columns, request_data=(), times=2000):
    """How often each position was kept."""
    endpoints, state = pool(size=2).view(access()), CycleState(access())
    for key, value in request_data:
        state.put(key, value)
    for key, values in columns:
        state.put_column(key, endpoints, np.array(values))
    counts = np.zeros(2)
    for _ in range(times):
        kept = plugin.filter(REQUEST, endpoints, state)
        counts += kept if isinstance(kept, np.ndarray) else 1
    return counts / times


def test_slo_tier_explores_with_its_probability():
    plugin = instance(SLOHeadroomTierFilter, epsilonExploreNeg=0.25).plugin
    slow, quick = draws(plugin, [(TTFT_HEADROOM, [-1.0, 1.0]), (TPOT_HEADROOM, [1.0, 1.0])])

    assert slow == pytest.approx(0.25, abs=0.03)
    assert quick == 1.0 - slow


def test_prefix_affinity_explores_with_its_probability():
    plugin = instance(PrefixCacheAffinityFilter, explorationProbability=0.25).plugin
    cached, other = draws(plugin, [(PREFIX_MATCH_BLOCKS, [1.0, 0.0])], [(PREFIX_BLOCKS, PrefixBlocks(1, 64))])

    assert (cached, other) == (1.0, pytest.approx(0.25, abs=0.03))


@pytest.mark.parametrize(
    ("matches", "tokens", "outcome"),
    [
        ([0.0, 0.0], [0, 0], "no_match"),
        ([1.0, 0.0], [0, 0], "sticky"),
        ([1.0, 1.0], [0, 0], "sticky"),
        ([1.0, 0.0], [9e9, 0], "load_override"),
    ],
)
def test_prefix_affinity_counts_its_decisions(matches, tokens, outcome):
    plugin, table = instance(PrefixCacheAffinityFilter, maxTTFTPenaltyMs=1000).plugin, pool({INFLIGHT_TOKENS: tokens})
    scope = access()
    endpoints, state = table.view(scope), CycleState(scope)
    state.put_column(PREFIX_MATCH_BLOCKS, endpoints, np.array(matches))
    state.put(PREFIX_BLOCKS, PrefixBlocks(1, 64))

    plugin.filter(REQUEST, endpoints, state)

    counted = {"no_match": plugin._no_match.value, "sticky": plugin._sticky.value, "load_override": plugin._override.value}
    assert counted == {name: float(name == outcome) for name in counted}


def test_utilization_filter_reads_the_named_producer():
    conditions = [{"metric": "active-requests", "maxValue": 1}, {"metric": "waiting-queue", "maxValue": 1}]
    built = instance(UtilizationFilter, conditions=conditions, inFlightLoadProducerName="mine")

    assert [key.name for key in built.subscriptions.consumes] == ["inflight-requests@mine", "waiting-queue-size"]
