"""What `endpick why` finds out about a decision."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.engine.reasons import Flip, flips_of, pick_history, reason_of
from endpick.requests.document import DecisionOutput, FilterStep, ProfileRun, RemovedEndpoints, ScorerStep


def a_run(
    scores: dict[str, tuple[float, list[float]]], *, picked: int | None = None, filters: list[FilterStep] = (), size: int = 2, **more
) -> ProfileRun:
    """A run over endpoints `e0`, `e1`, …; each scorer has a weight and its scores. The best total is picked, unless one is named."""
    totals = [math.fsum(weight * answered[place] for weight, answered in scores.values()) for place in range(size)]
    scorers = [
        ScorerStep(instance=name, type=name, weight=weight, answered=answered, weighted=[weight * each for each in answered], problem="")
        for name, (weight, answered) in scores.items()
    ]
    winner = max(range(size), key=lambda place: totals[place]) if picked is None else picked
    return ProfileRun(
        profile="default",
        filters=list(filters),
        candidates=[f"e{place}" for place in range(size)],
        scorers=scorers,
        totals=totals,
        picker="best",
        picked=[f"e{winner}"],
        failure="",
        **more,
    )


def a_decision(run: ProfileRun, **more) -> DecisionOutput:
    document = {
        "version": 2,
        "why": "sampled",
        "plan": "",
        "id": "r",
        "model": "m",
        "path": "/",
        "priority": 0,
        "fairnessId": "",
        "time": "",
        "request": None,
        "endpoints": [],
        "removed": [],
        "candidates": run.candidates,
        "runs": [run],
        "faults": [],
        "destinations": [],
        "status": None,
        "refusal": "",
        "waited": None,
        "unread": "",
        "scheduleSeconds": 0.0,
        "decideSeconds": 0.0,
        "outcome": None,
    }
    return DecisionOutput.model_validate(document | more)


def sentence(run: ProfileRun, **more) -> str:
    return reason_of(a_decision(run, **more), run).sentence


PREFIX = {"prefix": (3.0, [1.0, 0.0]), "queue": (2.0, [0.0, 1.0])}


def test_the_scorer_with_the_widest_lead_decides():
    run = a_run(PREFIX)
    reason = reason_of(a_decision(run), run)
    assert (reason.decisive, reason.sentence) == ("prefix", "prefix decided: it gave e0 3.000 more than e1, which lost by 1.000 in all")


def test_a_filter_that_leaves_one_decides():
    dropping = FilterStep(instance="labels", type="labels", given=["e0", "e1", "e2"], kept=["e0"], problem="")
    assert sentence(a_run({}, size=1, filters=[dropping])) == "filter labels left e0 only; it dropped e1, e2"


def test_an_ejection_that_leaves_one_decides():
    removed = [RemovedEndpoints(instance="endpoint-health", type="endpoint-health", endpoints=["e1"], problem="")]
    assert sentence(a_run({}, size=1), removed=removed) == "endpoint-health left e0 only; it removed e1 before scheduling"


def test_equal_totals_are_decided_by_chance():
    assert sentence(a_run({"queue": (1.0, [0.5, 0.5, 0.1])}, size=3)) == "best chose e0 by chance among 2 endpoints with equal totals"


def test_a_picker_may_choose_another_than_the_best():
    assert sentence(a_run({"queue": (1.0, [0.2, 0.9])}, picked=0)) == "best chose e0, although e1 had the best total (0.900 against 0.200)"


def test_a_failed_run_says_why():
    run = a_run({}).model_copy(update={"picked": [], "failure": "no endpoints"})
    assert sentence(run) == "no endpoints"


def test_flips_name_the_new_weight_and_winner():
    assert flips_of(a_run(PREFIX)) == (Flip("prefix", 3.0, 1.998, "e1"), Flip("queue", 2.0, 3.003, "e1"))


def test_a_weight_that_changes_nothing_has_no_flip():
    run = a_run({"queue": (1.0, [1.0, 0.5]), "same": (1.0, [0.5, 0.5])})
    assert flips_of(run)[1] == Flip("same", 1.0, None)


@given(st.data())
def test_each_flip_really_flips(data):
    size = data.draw(st.integers(2, 5))
    number = st.floats(0, 1).map(lambda each: round(each, 3))
    scores = {
        f"s{index}": (
            data.draw(st.floats(0.1, 5).map(lambda each: round(each, 2))),
            data.draw(st.lists(number, min_size=size, max_size=size)),
        )
        for index in range(data.draw(st.integers(1, 4)))
    }
    run = a_run(scores, size=size)
    for flip in flips_of(run):
        if flip.to is not None:
            changed = a_run(scores | {flip.scorer: (flip.to, scores[flip.scorer][1])}, size=size)
            assert changed.picked == [flip.winner] != run.picked


@pytest.mark.parametrize(
    ("run", "more", "expected"),
    [
        (a_run(PREFIX), {}, "prefix rated another higher"),
        (a_run({"queue": (1.0, [0.5, 0.5])}), {}, "best chose another with the same total"),
        (
            a_run({}, size=1),
            {"removed": [{"instance": "health", "type": "h", "endpoints": ["e1"], "problem": ""}]},
            "health left it out before scheduling",
        ),
        (
            a_run({}, size=1, filters=[FilterStep(instance="labels", type="l", given=["e0", "e1"], kept=["e0"], problem="")]),
            {},
            "filter labels dropped it",
        ),
    ],
)
def test_standing_counts_why_an_endpoint_lost(run, more, expected):
    standing = pick_history("e1", [a_decision(run, **more)] * 3)
    assert (standing.decisions, standing.picked, standing.losses) == (3, 0, ((expected, 3),))
