"""Scores of the built-in scorers: llm-d's formulas on llm-d's figures, and what an endpoint that reported nothing gets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import (
    INFLIGHT_REQUESTS,
    KV_CACHE_USAGE,
    LORA_ADAPTERS,
    PREFIX_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    InferenceRequest,
    LoraAdapters,
    PrefixBlocks,
)
from endpick.api.access import AccessScope
from endpick.api.state import CycleState
from endpick_builtin.scorers.affinity import LoraAffinityScorer, PrefixCacheScorer
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


@pytest.mark.parametrize(
    ("scorer", "key", "values", "expected"),
    [
        (QueueScorer, WAITING_QUEUE_SIZE, [0.0, 5.0, 10.0], [1.0, 0.5, 0.0]),
        (QueueScorer, WAITING_QUEUE_SIZE, [10.0, 5.0, 0.0], [0.0, 0.5, 1.0]),
        (QueueScorer, WAITING_QUEUE_SIZE, [5.0, 5.0], [1.0, 1.0]),
        (QueueScorer, WAITING_QUEUE_SIZE, [7.0], [1.0]),
        (QueueScorer, WAITING_QUEUE_SIZE, [4.0, None, 0.0], [0.0, 0.0, 1.0]),
        (QueueScorer, WAITING_QUEUE_SIZE, [4.0, None], [1.0, 0.0]),
        (QueueScorer, WAITING_QUEUE_SIZE, [None, None], [0.0, 0.0]),
        (RunningRequestsScorer, RUNNING_REQUESTS_SIZE, [10.0, 5.0, 0.0], [0.0, 0.5, 1.0]),
        (RunningRequestsScorer, RUNNING_REQUESTS_SIZE, [3.0, 3.0, None], [1.0, 1.0, 0.0]),
        (KVCacheUtilizationScorer, KV_CACHE_USAGE, [0.8, 0.5, 0.0], [0.2, 0.5, 1.0]),
        (KVCacheUtilizationScorer, KV_CACHE_USAGE, [1.0, None, 1.2], [0.0, 0.0, 0.0]),
        (LoadAwareScorer, WAITING_QUEUE_SIZE, [0.0, 64.0, 128.0, 500.0, None], [0.5, 0.25, 0.0, 0.0, 0.0]),
    ],
)
def test_scores_of_reported_metrics(scorer, key, values, expected):
    assert scores(scorer, {key: values}) == pytest.approx(expected)


@pytest.mark.parametrize("threshold", [0, -1])
def test_load_aware_takes_a_threshold_that_makes_no_sense_as_the_default(threshold):
    assert scores(LoadAwareScorer, {WAITING_QUEUE_SIZE: [64.0]}, threshold=threshold) == [0.25]


@pytest.mark.parametrize(
    ("parameters", "requests", "expected"),
    [
        ({}, [0.0, 2.0, 4.0], [1.0, 0.5, 0.0]),
        ({}, [None, 0.0], [1.0, 1.0]),
        ({}, [None, 3.0], [1.0, 0.0]),
        ({}, [0.0, 5e-324], [1.0, 0.0]),
        ({"idleThreshold": 2}, [2.0, 3.0, 4.0], [1.0, 0.25, 0.0]),
        ({"idleThreshold": -5}, [0.0, 4.0], [1.0, 0.0]),
        ({"maxBusyScore": 0.5}, [0.0, 2.0, 4.0], [1.0, 0.25, 0.0]),
        ({"maxBusyScore": 0.0}, [0.0, 2.0, 4.0], [1.0, 0.0, 0.0]),
        ({"maxBusyScore": 7}, [2.0, 4.0], [0.5, 0.0]),
        ({"requestTimeout": "2m"}, [0.0], [1.0]),
    ],
)
def test_active_request_scores(parameters, requests, expected):
    assert scores(ActiveRequestScorer, {INFLIGHT_REQUESTS: requests}, **parameters) == pytest.approx(expected)


def adapters(running="", waiting="", most=2):
    return LoraAdapters(frozenset(running.split()), frozenset(waiting.split()), most)


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (adapters("critical foo"), 1.0),
        (adapters("foo bar", "critical"), 0.6),
        (adapters("foo"), 0.8),
        (adapters("", "critical"), 0.8),
        (adapters("foo bar"), 0.0),
        (adapters("foo", "bar"), 0.0),
        (adapters(most=0), 0.0),
        (None, 0.0),
    ],
)
def test_lora_affinity_scores(reported, expected):
    request = InferenceRequest(id="r", model="critical")
    assert scores(LoraAffinityScorer, {LORA_ADAPTERS: [reported]}, request) == [expected]


@pytest.mark.parametrize(
    ("parameters", "blocks", "matched", "expected"),
    [
        ({}, PrefixBlocks(4, 64), [0, 1, 4], [0.0, 0.25, 1.0]),
        ({}, PrefixBlocks(0, 64), [0, 0, 0], [0.0, 0.0, 0.0]),
        ({}, PrefixBlocks(4, 64), [np.nan, 2, 2], [0.0, 0.5, 0.5]),
        ({"matchLengthWeight": 1.0, "matchLengthScaleTokens": 256}, PrefixBlocks(10, 64), [2, 4, 8], [0.25, 1.0, 1.0]),
        ({"matchLengthWeight": 0.5, "matchLengthScaleTokens": 256}, PrefixBlocks(8, 64), [2, 4, 8], [0.25, 0.75, 1.0]),
    ],
)
def test_prefix_cache_scores(parameters, blocks, matched, expected):
    assert scores(PrefixCacheScorer, None, prefix=(blocks, matched), **parameters) == pytest.approx(expected)


def test_prefix_cache_scores_nothing_when_no_producer_looked():
    assert scores(PrefixCacheScorer, None) == [0.0, 0.0, 0.0]


def test_prefix_cache_parameters_that_belong_to_the_producer_change_no_score():
    blocks, matched = PrefixBlocks(4, 64), [0, 1, 4]
    misplaced = {"maxPrefixBlocksToMatch": 2, "lruCapacityPerServer": 1, "autoTune": False, "blockSize": 1}
    assert scores(PrefixCacheScorer, None, prefix=(blocks, matched), **misplaced) == [0.0, 0.25, 1.0]


def test_prefix_cache_reads_the_matches_of_the_producer_it_names():
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
def test_scores_are_finite_in_range_and_never_better_for_more_load(scorer_and_key, values):
    scorer, key = scorer_and_key
    rated = scores(scorer, {key: values})
    assert all(0.0 <= score <= 1.0 for score in rated)
    reported = sorted((value, score) for value, score in zip(values, rated, strict=True) if value is not None)
    assert all(better >= worse - 1e-12 for (_, better), (_, worse) in itertools.pairwise(reported))
