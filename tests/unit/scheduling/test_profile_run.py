"""Profile runs: filters, scores, picks, and faults of each."""

from __future__ import annotations

import numpy as np
import pytest

from endpick.api import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, Endpoint, Endpoints, Scorer
from endpick.api.endpoint import Generation
from endpick.api.state import CycleState
from endpick.host.kinds import OnFault
from endpick.scheduling.scheduler import compile_profile
from endpick_builtin.pickers import MaxScorePicker
from unit.scheduling.workbench import REQUEST, Recording, access, filter_of, instance, names, picker_of, plugin_of, pool, scorer_of


def run(table, filters=(), scorers=(), picker=None, telemetry=None):
    weighted = [scorer if isinstance(scorer, tuple) else (scorer, 1.0) for scorer in scorers]
    profile = compile_profile("p", filters, weighted, picker or instance(MaxScorePicker), telemetry or Recording())
    shared = access()
    return profile.run(REQUEST, table.view(shared), CycleState(shared), shared)


def test_weighted_scores_of_the_kept_endpoints_add_up():
    seen = []

    def score(values):
        def inner(endpoints):
            seen.append(names(endpoints))
            return np.array(values)

        return inner

    keep_two = filter_of(lambda endpoints: np.array([True, True, False]))
    result = run(pool(), [keep_two], [(scorer_of(score([0.3, 0.8]), "a"), 60), (scorer_of(score([0.3, 0.8]), "b"), 40)])

    assert seen == [["e0", "e1"], ["e0", "e1"]]
    assert result.scored.scores.tolist() == [30.0, 80.0]
    assert names(result.picked) == ["e1"]


def test_filters_run_in_order_on_the_kept_endpoints():
    seen = []

    def keep_all_but_first(endpoints):
        seen.append(names(endpoints))
        return endpoints.take(range(1, len(endpoints)))

    result = run(pool(), [filter_of(keep_all_but_first, "a"), filter_of(keep_all_but_first, "b")])

    assert seen == [["e0", "e1", "e2"], ["e1", "e2"]]
    assert names(result.picked) == ["e2"]


def test_a_filter_that_keeps_nothing_ends_the_run():
    asked = []
    nothing = filter_of(lambda endpoints: np.zeros(len(endpoints), dtype=bool))
    later = filter_of(lambda endpoints: asked.append("filter") or endpoints, "later")
    scorer = scorer_of(lambda endpoints: asked.append("scorer") or np.ones(len(endpoints)))

    result = run(pool(), [nothing, later], [scorer])

    assert asked == []
    assert result.picked is None
    assert (result.failure, result.fault) == ("no endpoints available for the given request", False)


def test_totals_without_scorers_are_zero():
    assert run(pool()).scored.scores.tolist() == [0.0, 0.0, 0.0]


def test_scores_out_of_range_are_clamped_and_counted():
    telemetry = Recording()
    result = run(pool(), scorers=[(scorer_of(lambda endpoints: np.array([-3.0, 0.5, 7.0])), 2.0)], telemetry=telemetry)

    assert result.scored.scores.tolist() == [0.0, 1.0, 2.0]
    assert telemetry.clamps == [("scorer", 2)]
    assert telemetry.faults == []


def test_integers_and_booleans_are_scores():
    scorers = [scorer_of(lambda endpoints: np.array([1, 0, 1]), "int"), scorer_of(lambda endpoints: np.array([True, False, False]), "bool")]
    assert run(pool(), scorers=scorers).scored.scores.tolist() == [2.0, 0.0, 1.0]


NONSENSE = {
    "raises": lambda endpoints: 1 / 0,
    "exits": lambda endpoints: __import__("sys").exit("bye"),
    "too short": lambda endpoints: np.ones(len(endpoints) - 1),
    "nothing": lambda endpoints: None,
    "not a number": lambda endpoints: np.array([1.0, np.nan, 1.0]),
    "infinite": lambda endpoints: np.array([1.0, np.inf, 1.0]),
    "objects": lambda endpoints: np.array([None] * len(endpoints)),
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE.keys())
def test_a_failed_scorer_loses_its_weight(nonsense):
    telemetry = Recording()
    good = scorer_of(lambda endpoints: np.array([0.0, 0.5, 1.0]), "good")

    result = run(pool(), scorers=[(scorer_of(nonsense, "bad"), 100.0), (good, 1.0)], telemetry=telemetry)

    assert result.scored.scores.tolist() == [0.0, 0.5, 1.0]
    assert names(result.picked) == ["e2"]
    assert [(name, point) for name, point, _ in telemetry.faults] == [("bad", "Scorer")]


def test_a_failed_scorer_ends_the_run_if_on_fault_refuses():
    result = run(pool(), scorers=[scorer_of(lambda endpoints: 1 / 0, "bad", OnFault.REFUSE)])

    assert result.picked is None
    assert result.fault
    assert result.failure.startswith("plugin 'bad' failed: ")


def other_pool() -> Endpoints:
    return Endpoints(Generation((Endpoint("x/y", "10.9.9.9", 1),), {}, {}, lambda: 0.0))


BAD_FILTERS = {
    "raises": lambda endpoints: 1 / 0,
    "mask too long": lambda endpoints: np.ones(len(endpoints) + 1, dtype=bool),
    "nothing": lambda endpoints: None,
    "other endpoints": lambda endpoints: other_pool(),
    "one twice": lambda endpoints: endpoints.take([0, 0]),
    "one it was not given": lambda endpoints: Endpoints(endpoints._generation, np.array([2])),
}


@pytest.mark.parametrize("bad", BAD_FILTERS.values(), ids=BAD_FILTERS.keys())
def test_a_failed_filter_refuses_or_is_skipped(bad):
    first_two = filter_of(lambda endpoints: endpoints.take([0, 1]), "first-two")
    for policy, picked in ((None, None), (OnFault.SKIP, ["e1"])):
        telemetry = Recording()
        prefers_later = scorer_of(lambda endpoints: np.arange(len(endpoints)) / 10)
        result = run(pool(), [first_two, filter_of(bad, "bad", policy)], [prefers_later], telemetry=telemetry)

        assert (result.picked and names(result.picked)) == picked
        assert [(name, point) for name, point, _ in telemetry.faults] == [("bad", "Filter")]


def test_a_filter_may_reorder_endpoints():
    result = run(pool(), [filter_of(lambda endpoints: endpoints.take([2, 0]))], picker=picker_of(lambda scored: scored.take([0, 1])))
    assert names(result.picked) == ["e2", "e0"]


BAD_PICKERS = {
    "raises": lambda scored: 1 / 0,
    "nothing": lambda scored: None,
    "no endpoint": lambda scored: scored.take([]),
    "one that was filtered": lambda scored: Endpoints(scored.endpoints._generation, np.array([2])),
}


@pytest.mark.parametrize("bad", BAD_PICKERS.values(), ids=BAD_PICKERS.keys())
def test_a_failed_picker_refuses_or_leaves_the_best_score(bad):
    first_two = filter_of(lambda endpoints: endpoints.take([0, 1]))
    for policy, picked in ((None, None), (OnFault.SKIP, ["e1"])):
        telemetry = Recording()
        scorer = scorer_of(lambda endpoints: np.array([0.1, 0.9]))
        result = run(pool(), [first_two], [scorer], picker_of(bad, "bad", policy), telemetry)

        assert (result.picked and names(result.picked)) == picked
        assert result.fault is (picked is None)
        assert [(name, point) for name, point, _ in telemetry.faults] == [("bad", "Picker")]


def test_an_undeclared_read_is_a_fault():
    telemetry = Recording()
    table = pool({WAITING_QUEUE_SIZE: [1.0, 2.0, 3.0], KV_CACHE_USAGE: [0.1, 0.2, 0.3]})
    nosy = plugin_of(Scorer, "nosy", consumes=(WAITING_QUEUE_SIZE,), score=lambda request, endpoints, state: endpoints[KV_CACHE_USAGE])
    honest = plugin_of(
        Scorer, "honest", consumes=(WAITING_QUEUE_SIZE,), score=lambda request, endpoints, state: 1 / endpoints[WAITING_QUEUE_SIZE]
    )

    result = run(table, scorers=[nosy, honest], telemetry=telemetry)

    assert names(result.picked) == ["e0"]
    [(name, _, text)] = telemetry.faults
    assert name == "nosy"
    assert "UndeclaredAccess" in text
    assert "kv-cache-usage" in text


def test_calls_are_timed_by_extension_point():
    telemetry = Recording()
    run(
        pool(),
        [filter_of(lambda endpoints: endpoints, "f")],
        [scorer_of(lambda endpoints: 1 / 0, "s")],
        picker_of(lambda scored: scored.take([0]), "p"),
        telemetry,
    )
    assert telemetry.timed == [("Filter", "f"), ("Scorer", "s"), ("Picker", "p")]


def test_a_late_call_is_reported_for_its_instance():
    telemetry, slow = Recording(), scorer_of(lambda endpoints: 1 / 0, "slow")
    slow.breaker.budget_seconds = -1.0
    run(
        pool(),
        [filter_of(lambda endpoints: endpoints, "f")],
        [scorer_of(lambda endpoints: np.ones(len(endpoints)), "s"), slow],
        None,
        telemetry,
    )
    assert telemetry.lates == [("slow", "Scorer")]


@pytest.mark.parametrize("slot", ["filter", "scorer", "picker"])
def test_compiling_an_instance_in_the_wrong_slot_raises(slot):
    scorer, picker = scorer_of(lambda endpoints: np.ones(len(endpoints))), instance(MaxScorePicker)
    slots = {"filter": ([scorer], [], picker), "scorer": ([], [(picker, 1.0)], picker), "picker": ([], [], scorer)}
    with pytest.raises(TypeError, match=f"is no {slot.capitalize()}"):
        compile_profile("p", *slots[slot], Recording())
