"""One profile run: who is asked about whom, what becomes of the scores, and what a fault costs."""

from __future__ import annotations

import numpy as np
import pytest

from endpick.api import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, Endpoint, Endpoints, Scorer
from endpick.api.generation import Generation
from endpick.api.state import CycleState
from endpick.host.boundary import settle
from endpick.host.kinds import OnFault
from endpick.scheduling.profile import compile_profile
from endpick.scheduling.trace import _TracedProfile
from endpick_builtin.pickers import MaxScorePicker
from endpick_builtin.scorers.load import QueueScorer
from unit.scheduling.workbench import REQUEST, Recording, access, filter_of, instance, names, picker_of, plugin_of, pool, scorer_of


def run(table, filters=(), scorers=(), picker=None, telemetry=None):
    weighted = [scorer if isinstance(scorer, tuple) else (scorer, 1.0) for scorer in scorers]
    profile = compile_profile("p", filters, weighted, picker or instance(MaxScorePicker), telemetry or Recording())
    shared = access()
    result = profile.run(REQUEST, table.view(shared), CycleState(shared), shared)
    settle(shared)
    return result


def test_scorers_see_what_the_filters_kept_and_weighted_scores_add_up():
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


def test_filters_run_in_order_each_on_what_the_one_before_kept():
    seen = []

    def keep_all_but_first(endpoints):
        seen.append(names(endpoints))
        return endpoints.take(range(1, len(endpoints)))

    result = run(pool(), [filter_of(keep_all_but_first, "a"), filter_of(keep_all_but_first, "b")])

    assert seen == [["e0", "e1", "e2"], ["e1", "e2"]]
    assert names(result.picked) == ["e2"]


def test_a_filter_that_keeps_nothing_ends_the_run_before_another_plugin_is_asked():
    asked = []
    nothing = filter_of(lambda endpoints: np.zeros(len(endpoints), dtype=bool))
    later = filter_of(lambda endpoints: asked.append("filter") or endpoints, "later")
    scorer = scorer_of(lambda endpoints: asked.append("scorer") or np.ones(len(endpoints)))

    result = run(pool(), [nothing, later], [scorer])

    assert asked == []
    assert result.picked is None
    assert (result.failure, result.fault) == ("no endpoints available for the given request", False)


def test_without_scorers_all_totals_are_zero():
    assert run(pool()).scored.scores.tolist() == [0.0, 0.0, 0.0]


def test_scores_outside_the_range_are_clamped_before_weighting_and_counted():
    telemetry = Recording()
    result = run(pool(), scorers=[(scorer_of(lambda endpoints: np.array([-3.0, 0.5, 7.0])), 2.0)], telemetry=telemetry)

    assert result.scored.scores.tolist() == [0.0, 1.0, 2.0]
    assert telemetry.clamps == [("scorer", 2)]
    assert telemetry.faults == []


def test_integers_and_booleans_are_scores_too():
    scorers = [scorer_of(lambda endpoints: np.array([1, 0, 1]), "int"), scorer_of(lambda endpoints: np.array([True, False, False]), "bool")]
    assert run(pool(), scorers=scorers).scored.scores.tolist() == [2.0, 0.0, 1.0]


def test_a_scorer_may_answer_the_same_array_again_and_change_it_in_between():
    scores = np.array([0.1, 0.2, 0.3])
    column = scores.view()
    column.flags.writeable = False
    constant = np.array([0.5, 0.5, 0.5])
    constant.flags.writeable = False
    weighted = [
        (scorer_of(lambda endpoints, each=each: each, name), 2.0) for name, each in zip("abc", (scores, column, constant), strict=True)
    ]
    profile = compile_profile("p", (), weighted, instance(MaxScorePicker), Recording())

    def totals(size=3):
        shared = access()
        result = profile.run(REQUEST, pool(size=size).view(shared), CycleState(shared), shared)
        return [round(float(total), 6) for total in result.scored.scores]

    assert totals() == [1.4, 1.8, 2.2]
    scores[0] = 0.4
    assert totals() == [2.6, 1.8, 2.2]
    assert totals(size=2) == [0.0, 0.0]
    assert totals() == [2.6, 1.8, 2.2]


def test_totals_are_the_pickers_to_change():
    constant = np.array([0.5, 0.5, 0.5])
    constant.flags.writeable = False

    def pick(scored):
        scored.scores[0] += 1.0
        return scored.take([int(scored.scores.argmax())])

    profile = compile_profile("p", (), [(scorer_of(lambda endpoints: constant), 1.0)], picker_of(pick), Recording())
    for _ in range(3):
        shared = access()
        result = profile.run(REQUEST, pool().view(shared), CycleState(shared), shared)
        assert result.scored.scores.tolist() == [1.5, 0.5, 0.5]


NONSENSE = {
    "raises": lambda endpoints: 1 / 0,
    "exits": lambda endpoints: __import__("sys").exit("bye"),
    "too short": lambda endpoints: np.ones(len(endpoints) - 1),
    "one for all": lambda endpoints: np.float64(1.0),
    "two dimensions": lambda endpoints: np.ones((len(endpoints), 1)),
    "a list": lambda endpoints: [1.0] * len(endpoints),
    "nothing": lambda endpoints: None,
    "not a number": lambda endpoints: np.array([1.0, np.nan, 1.0]),
    "infinite": lambda endpoints: np.array([1.0, np.inf, 1.0]),
    "complex": lambda endpoints: np.ones(len(endpoints), dtype=complex),
    "objects": lambda endpoints: np.array([None] * len(endpoints)),
    "text": lambda endpoints: np.array(["1"] * len(endpoints)),
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE.keys())
def test_a_scorer_that_fails_loses_its_weight_for_this_decision(nonsense):
    telemetry = Recording()
    good = scorer_of(lambda endpoints: np.array([0.0, 0.5, 1.0]), "good")

    result = run(pool(), scorers=[(scorer_of(nonsense, "bad"), 100.0), (good, 1.0)], telemetry=telemetry)

    assert result.scored.scores.tolist() == [0.0, 0.5, 1.0]
    assert names(result.picked) == ["e2"]
    assert [(name, point) for name, point, _ in telemetry.faults] == [("bad", "Scorer")]


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE.keys())
def test_a_scorer_that_fails_ends_the_run_when_the_operator_wants_that(nonsense):
    result = run(pool(), scorers=[scorer_of(nonsense, "bad", OnFault.REFUSE)])

    assert result.picked is None
    assert result.fault
    assert result.failure.startswith("plugin 'bad' failed: ")


def other_pool() -> Endpoints:
    return Endpoints(Generation((Endpoint("x/y", "10.9.9.9", 1),), {}, {}, lambda: 0.0))


BAD_FILTERS = {
    "raises": lambda endpoints: 1 / 0,
    "mask too long": lambda endpoints: np.ones(len(endpoints) + 1, dtype=bool),
    "mask of numbers": lambda endpoints: np.ones(len(endpoints)),
    "a list": list,
    "nothing": lambda endpoints: None,
    "other endpoints": lambda endpoints: other_pool(),
    "one twice": lambda endpoints: endpoints.take([0, 0]),
    "one it was not given": lambda endpoints: Endpoints(endpoints._generation, np.array([2])),
    "all it was not given": lambda endpoints: Endpoints(endpoints._generation),
}


@pytest.mark.parametrize("bad", BAD_FILTERS.values(), ids=BAD_FILTERS.keys())
def test_a_filter_that_fails_ends_the_run_or_is_skipped_as_its_policy_says(bad):
    first_two = filter_of(lambda endpoints: endpoints.take([0, 1]), "first-two")
    for policy, picked in ((None, None), (OnFault.SKIP, ["e1"])):
        telemetry = Recording()
        prefers_later = scorer_of(lambda endpoints: np.arange(len(endpoints)) / 10)
        result = run(pool(), [first_two, filter_of(bad, "bad", policy)], [prefers_later], telemetry=telemetry)

        assert (result.picked and names(result.picked)) == picked
        assert [(name, point) for name, point, _ in telemetry.faults] == [("bad", "Filter")]


def test_a_filter_may_reorder_what_it_keeps():
    result = run(pool(), [filter_of(lambda endpoints: endpoints.take([2, 0]))], picker=picker_of(lambda scored: scored.take([0, 1])))
    assert names(result.picked) == ["e2", "e0"]


BAD_PICKERS = {
    "raises": lambda scored: 1 / 0,
    "nothing": lambda scored: None,
    "no endpoint": lambda scored: scored.take([]),
    "out of range": lambda scored: scored.take([17]),
    "one twice": lambda scored: scored.take([1, 1]),
    "other endpoints": lambda scored: other_pool(),
    "one that was filtered": lambda scored: Endpoints(scored.endpoints._generation, np.array([2])),
}


@pytest.mark.parametrize("bad", BAD_PICKERS.values(), ids=BAD_PICKERS.keys())
def test_a_picker_that_fails_ends_the_run_or_leaves_the_best_rated_as_its_policy_says(bad):
    first_two = filter_of(lambda endpoints: endpoints.take([0, 1]))
    for policy, picked in ((None, None), (OnFault.SKIP, ["e1"])):
        telemetry = Recording()
        scorer = scorer_of(lambda endpoints: np.array([0.1, 0.9]))
        result = run(pool(), [first_two], [scorer], picker_of(bad, "bad", policy), telemetry)

        assert (result.picked and names(result.picked)) == picked
        assert result.fault is (picked is None)
        assert [(name, point) for name, point, _ in telemetry.faults] == [("bad", "Picker")]


def test_each_plugin_may_touch_only_what_it_declared():
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


def test_every_call_is_timed_under_its_extension_point():
    telemetry = Recording()
    run(
        pool(),
        [filter_of(lambda endpoints: endpoints, "f")],
        [scorer_of(lambda endpoints: 1 / 0, "s")],
        picker_of(lambda scored: scored.take([0]), "p"),
        telemetry,
    )
    assert telemetry.timed == [("Filter", "f"), ("Scorer", "s"), ("Picker", "p")]


def test_the_clock_strikes_the_instance_whose_turn_it_was():
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


def test_what_a_picker_does_to_the_totals_is_gone_with_the_request():
    table, telemetry = pool(), Recording()
    for row, endpoint in enumerate(table.generation.endpoints):
        table.write(WAITING_QUEUE_SIZE, endpoint, float(row))

    def pick(scored):
        before = scored.scores.tolist()
        scored.scores[:] = 7.0
        seen.append(before)
        return scored.take([0])

    seen: list[list[float]] = []
    profile = compile_profile("p", [], [(instance(QueueScorer), 1.0)], picker_of(pick), telemetry)
    shared = access()
    for _ in range(3):
        profile.run(REQUEST, table.view(shared), CycleState(shared), shared)

    assert seen[0] == seen[1] == seen[2]
    assert 7.0 not in seen[0]


@pytest.mark.parametrize("slot", ["filter", "scorer", "picker"])
def test_an_instance_in_the_wrong_slot_is_refused_when_compiling(slot):
    scorer, picker = scorer_of(lambda endpoints: np.ones(len(endpoints))), instance(MaxScorePicker)
    slots = {"filter": ([scorer], [], picker), "scorer": ([], [(picker, 1.0)], picker), "picker": ([], [], scorer)}
    with pytest.raises(TypeError, match=f"is not a {slot}"):
        compile_profile("p", *slots[slot], Recording())


class _Touchy(np.ndarray):
    def nonzero(self):
        return (np.array([99]).view(type(self)),)

    def __getitem__(self, where):
        raise RuntimeError("5")


def test_a_mask_of_a_class_of_its_own_is_asked_for_its_values_only():
    telemetry = Recording()
    mask = filter_of(lambda endpoints: np.array([False, True, True]).view(_Touchy))
    then = filter_of(lambda endpoints: endpoints.where(np.array([False, True])), "then")
    result = run(pool(), [mask, then], [scorer_of(lambda endpoints: np.ones(len(endpoints)))], telemetry=telemetry)

    assert telemetry.faults == []
    assert len(result.picked) == 1


def _shrunk(scores):
    scores.resize(0, refcheck=False)


def _reshaped(scores):
    scores.shape = (1, 3)


def _grown(scores):
    scores.resize(50, refcheck=False)
    scores[49] = 1.0


@pytest.mark.parametrize("spoil", [_shrunk, _reshaped, _grown], ids=lambda spoil: spoil.__name__)
def test_a_picker_that_spoils_the_totals_and_fails_is_skipped_as_any_other(spoil):
    telemetry = Recording()

    def pick(scored):
        spoil(scored.scores)
        raise ValueError

    scorer = scorer_of(lambda endpoints: np.array([0.1, 0.9, 0.3]))
    result = run(pool(), scorers=[scorer], picker=picker_of(pick, on_fault=OnFault.SKIP), telemetry=telemetry)

    assert len(telemetry.faults) == 1
    assert [endpoint.name for endpoint in result.picked] == [pool().view().members[1].name]


def test_a_run_that_is_noted_does_not_ask_an_answer_for_its_class():
    class Faceless:
        @property
        def __class__(self):
            raise SystemExit(1)

    notes = []
    faceless = scorer_of(lambda endpoints: Faceless(), "faceless")
    plain = compile_profile("p", (), [(faceless, 1.0)], instance(MaxScorePicker), Recording())
    shared = access()
    _TracedProfile(plain, notes.append).run(REQUEST, pool().view(shared), CycleState(shared), shared)
    assert [scorer.answered for note in notes for scorer in note.scorers] == [()]
