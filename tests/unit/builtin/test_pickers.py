"""The pickers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import ScoredEndpoints
from endpick.api.state import CycleState
from endpick_builtin.pickers import FEW, MaxScorePicker, RandomPicker, WeightedRandomPicker
from unit.scheduling.workbench import REQUEST, access, instance, names, pool

PICKERS = (MaxScorePicker, RandomPicker, WeightedRandomPicker)


def picks(picker, totals, times=1, **parameters):
    built = instance(picker, **parameters)
    shared = access()
    scored = ScoredEndpoints(pool(size=len(totals)).view(shared), np.array(totals, dtype=float))
    shared.scope = built.scope
    return [tuple(names(built.plugin.pick(REQUEST, scored, CycleState(shared)))) for _ in range(times)]


def shares(picker, totals, times=6000):
    counts = Counter(first for (first, *_) in picks(picker, totals, times))
    return [counts[f"e{n}"] / times for n in range(len(totals))]


@pytest.mark.parametrize("picker", PICKERS)
def test_picker_picks_the_configured_number(picker):
    for wanted, got in ((1, 1), (2, 2), (9, 3), (0, 1), (-4, 1)):
        [picked] = picks(picker, [0.1, 0.2, 0.3], maxNumOfEndpoints=wanted)
        assert len(set(picked)) == len(picked) == got


def test_max_score_orders_by_total():
    assert picks(MaxScorePicker, [0.1, 0.9, 0.5], maxNumOfEndpoints=3) == [("e1", "e2", "e0")]


@pytest.mark.parametrize(("count", "worse"), [(1, 0), (2, 0), (1, FEW)])
def test_max_score_breaks_ties_evenly(count, worse):
    totals = [0.7, 0.1, 0.7, 0.7] + [0.0] * worse
    first = Counter(picked[0] for picked in picks(MaxScorePicker, totals, 6000, maxNumOfEndpoints=count))
    assert set(first) == {"e0", "e2", "e3"}
    assert all(1800 < times < 2200 for times in first.values())


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 7.0]), min_size=1, max_size=FEW), st.integers(0, 10))
def test_max_score_picks_the_same_among_few_and_many(totals, seed):
    picked = []
    for worse in ([], [-1.0] * FEW):
        built = instance(MaxScorePicker)
        built.plugin.context.random.seed(seed)
        shared = access()
        scored = ScoredEndpoints(pool(size=len(totals + worse)).view(shared), np.array(totals + worse))
        picked.append(names(built.plugin.pick(REQUEST, scored, CycleState(shared))))
    assert picked[0] == picked[1]


def test_random_picker_ignores_totals():
    assert shares(RandomPicker, [0.0, 1000.0, 1.0, 1.0]) == pytest.approx([0.25] * 4, abs=0.03)


def test_weighted_random_is_proportional_to_totals():
    assert shares(WeightedRandomPicker, [1.0, 2.0, 5.0]) == pytest.approx([0.125, 0.25, 0.625], abs=0.03)


def test_weighted_random_does_not_depend_on_scale():
    assert shares(WeightedRandomPicker, [1e-9, 2e-9, 5e-9]) == pytest.approx([0.125, 0.25, 0.625], abs=0.03)


def test_weighted_random_picks_worthless_endpoints_last():
    picked = picks(WeightedRandomPicker, [0.0, 0.3, -1.0, 0.2], 300, maxNumOfEndpoints=3)
    assert {frozenset(each[:2]) for each in picked} == {frozenset({"e1", "e3"})}
    assert {each[2] for each in picked} == {"e0", "e2"}


def test_weighted_random_is_uniform_without_positive_totals():
    assert shares(WeightedRandomPicker, [0.0, 0.0, -1.0]) == pytest.approx([1 / 3] * 3, abs=0.03)
