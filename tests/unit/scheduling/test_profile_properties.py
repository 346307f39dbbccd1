"""What holds for every profile run, whatever the scores."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from endpick.api.state import CycleState
from endpick.scheduling.scheduler import compile_profile, validate_subset
from endpick_builtin.pickers import MaxScorePicker, RandomPicker, WeightedRandomPicker
from unit.scheduling.workbench import REQUEST, Recording, access, filter_of, instance, pool, scorer_of

ANY_SCORE = st.one_of(st.floats(-2.0, 3.0), st.sampled_from([0.0, 1.0, float("nan"), float("inf")]))
PICKERS = st.sampled_from([MaxScorePicker, RandomPicker, WeightedRandomPicker])


@st.composite
def cases(draw):
    size = draw(st.integers(1, 12))
    columns = st.lists(ANY_SCORE, min_size=size, max_size=size)
    scorers = draw(st.lists(st.tuples(columns, st.floats(0.0, 100.0)), max_size=4))
    kept = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return size, scorers, kept


def run(size, scorers, kept, picker, seed=1, count=3):
    def rate(values):
        return lambda endpoints: endpoints.gather(np.array(values))

    weighted = [(scorer_of(rate(values), f"s{n}"), weight) for n, (values, weight) in enumerate(scorers)]
    picked_by = instance(picker, seed=seed, maxNumOfEndpoints=count)
    profile = compile_profile("p", [filter_of(lambda endpoints: np.array(kept))], weighted, picked_by, Recording())
    shared = access()
    return profile.run(REQUEST, pool(size=size).view(shared), CycleState(shared), shared)


@given(cases(), PICKERS)
def test_totals_are_weighted_sums_of_clamped_scores(case, picker):
    size, scorers, kept = case
    result = run(size, scorers, kept, picker)
    if not any(kept):
        assert result.picked is None
        return
    survivors = np.flatnonzero(kept)
    expected = np.zeros(len(survivors))
    for values, weight in scorers:
        column = np.array(values)[survivors]
        if np.isfinite(column).all():
            expected += np.clip(column, 0.0, 1.0) * weight
    np.testing.assert_allclose(result.scored.scores, expected)
    assert (result.scored.scores >= 0.0).all()
    assert (result.scored.scores <= sum(weight for _, weight in scorers) + 1e-9).all()


@given(cases(), PICKERS, st.integers(1, 5))
def test_picked_endpoints_passed_the_filters_without_repeats(case, picker, count):
    size, scorers, kept = case
    result = run(size, scorers, kept, picker, count=count)
    if result.picked is not None:
        rows = result.picked._row_numbers().tolist()
        assert set(rows) <= set(np.flatnonzero(kept).tolist())
        assert len(set(rows)) == len(rows) == min(count, sum(kept))


@given(cases(), PICKERS, st.integers(0, 5))
def test_the_same_seed_picks_the_same(case, picker, seed):
    first, second = (run(*case, picker, seed=seed) for _ in range(2))
    assert (first.picked is None) == (second.picked is None)
    if first.picked is not None:
        assert first.picked._row_numbers().tolist() == second.picked._row_numbers().tolist()


@given(cases(), st.randoms(use_true_random=False))
def test_totals_do_not_depend_on_the_order_of_the_endpoints(case, random):
    size, scorers, _ = case
    order = random.sample(range(size), size)
    everyone = [True] * size
    straight = run(size, scorers, everyone, MaxScorePicker).scored.scores
    permuted = run(size, [([values[n] for n in order], weight) for values, weight in scorers], everyone, MaxScorePicker).scored.scores
    assert straight[order].tolist() == permuted.tolist()


@given(st.data(), st.integers(1, 10))
def test_stray_knows_exactly_the_views_that_are_parts(data, size):
    whole = pool(size=size).view()
    given_rows = data.draw(st.lists(st.integers(0, size - 1), unique=True))
    kept_rows = data.draw(st.lists(st.integers(0, size - 1)))
    is_part = set(kept_rows) <= set(given_rows) and len(set(kept_rows)) == len(kept_rows)
    assert (validate_subset(whole.take(given_rows), whole.take(kept_rows)) is None) == is_part
