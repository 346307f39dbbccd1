"""Scorers beyond their golden vectors."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE
from endpick.api.access import AccessScope
from endpick.api.keys import INFLIGHT_REQUESTS, PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, PrefixBlocks
from endpick.api.state import CycleState
from endpick_builtin.scorers.affinity import PrefixCacheScorer
from endpick_builtin.scorers.load import ActiveRequestScorer, KVCacheUtilizationScorer, LoadAwareScorer, QueueScorer, RunningRequestsScorer
from unit.scheduling.workbench import REQUEST, access, instance, pool


def scores(scorer, columns, request=REQUEST, prefix=None, **parameters):
    built = instance(scorer, **parameters)
    shared = access()
    endpoints = pool(columns).view(shared)
    state = CycleState(shared)
    if prefix is not None:
        blocks, matched = prefix
        state.put(PREFIX_BLOCKS, blocks)
        state.put_column(PREFIX_MATCH_BLOCKS, endpoints, np.array(matched, dtype=float))
    shared.scope = built.scope
    return built.plugin.score(request, endpoints, state).tolist()


def test_prefix_cache_ignores_producer_parameters():
    blocks, matched = PrefixBlocks(4, 64), [0, 1, 4]
    misplaced = {"maxPrefixBlocksToMatch": 2, "lruCapacityPerServer": 1, "autoTune": False, "blockSize": 1}
    assert scores(PrefixCacheScorer, None, prefix=(blocks, matched), **misplaced) == [0.0, 0.25, 1.0]


def test_prefix_cache_reads_the_named_producer():
    built = instance(PrefixCacheScorer, prefixMatchInfoProducerName="mine")
    shared = access()
    endpoints, state = pool().view(shared), CycleState(shared)
    for producer, matched in (("mine", [4.0, 0.0, 0.0]), ("other", [0.0, 0.0, 4.0])):
        shared.scope = AccessScope(producer, frozenset(), frozenset({"prefix-blocks", "prefix-match-blocks"}))
        state.put(PREFIX_BLOCKS, PrefixBlocks(4, 64))
        state.put_column(PREFIX_MATCH_BLOCKS, endpoints, np.array(matched))
    shared.scope = built.scope
    assert built.plugin.score(REQUEST, endpoints, state).tolist() == [1.0, 0.0, 0.0]


COLUMN_SCORERS = [
    (QueueScorer, WAITING_QUEUE_SIZE),
    (RunningRequestsScorer, RUNNING_REQUESTS_SIZE),
    (KVCacheUtilizationScorer, KV_CACHE_USAGE),
    (LoadAwareScorer, WAITING_QUEUE_SIZE),
    (ActiveRequestScorer, INFLIGHT_REQUESTS),
]


@given(st.sampled_from(COLUMN_SCORERS), st.lists(st.one_of(st.none(), st.floats(0.0, 1e9)), min_size=1, max_size=20))
def test_scores_are_in_range_and_fall_with_load(scorer_and_key, values):
    scorer, key = scorer_and_key
    rated = scores(scorer, {key: values})
    assert all(0.0 <= score <= 1.0 for score in rated)
    reported = sorted((value, score) for value, score in zip(values, rated, strict=True) if value is not None)
    assert all(better >= worse - 1e-12 for (_, better), (_, worse) in itertools.pairwise(reported))
