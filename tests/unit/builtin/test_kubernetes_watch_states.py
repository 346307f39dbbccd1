"""The table of what follows from what, and how long the pauses between are."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from endpick_builtin.kubernetes.patience import Patience
from endpick_builtin.kubernetes.watch_states import TRANSITIONS, Outcome, Pauses, WatchState

USUAL = Patience()
OUTCOMES = {state: [outcome for one, outcome in TRANSITIONS if one is state] for state in WatchState}


@given(st.lists(st.integers(0, 100), max_size=50))
def test_whatever_happens_a_list_is_reached_again_and_a_watch_follows_only_what_has_been_listed(draws):
    state, listed = WatchState.LISTING, False
    for draw in draws:
        assert listed or state in (WatchState.LISTING, WatchState.BEFORE_LIST)
        outcome = OUTCOMES[state][draw % len(OUTCOMES[state])]
        listed = listed or outcome is Outcome.LISTED
        state = TRANSITIONS[state, outcome]
    back = {
        WatchState.WATCHING: [Outcome.EXPIRED, Outcome.ELAPSED],
        WatchState.BEFORE_WATCH: [Outcome.ELAPSED, Outcome.EXPIRED, Outcome.ELAPSED],
        WatchState.BEFORE_LIST: [Outcome.ELAPSED],
        WatchState.LISTING: [],
    }
    for outcome in back[state]:
        state = TRANSITIONS[state, outcome]
    assert state is WatchState.LISTING


def test_only_after_a_pause_is_asked_again_what_failed():
    failures = {Outcome.EXPIRED, Outcome.BROKEN, Outcome.MALFORMED, Outcome.ABSENT}
    after = {TRANSITIONS[state, outcome] for state, outcome in TRANSITIONS if outcome in failures}
    assert after == {WatchState.BEFORE_LIST, WatchState.BEFORE_WATCH}


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(0, 60))
def test_pauses_are_short_at_first_then_double_up_to_the_longest_and_begin_anew_after_progress(seed, failures, quick):
    pauses = Pauses(Random(seed), Patience(quick_failures=quick), 5.0)
    waits = [pauses.after(Outcome.BROKEN, 0.0, answered=True) for _ in range(failures)]
    for position, wait in enumerate(waits):
        short = min(USUAL.quick_pause_seconds, USUAL.first_pause_seconds * 2**position)
        full = short if position < quick else min(5.0, 2 * USUAL.quick_pause_seconds * 2 ** (position - quick))
        assert full / 2 <= wait <= full
    pauses.progressed()
    assert pauses.after(Outcome.BROKEN, 0.0, answered=True) <= (USUAL.first_pause_seconds if quick else 2 * USUAL.quick_pause_seconds)


@given(st.lists(st.booleans(), max_size=80))
def test_what_has_expired_is_listed_at_once_whatever_failed_before_and_then_ever_more_seldom(answered):
    pauses = Pauses(Random(1), USUAL, 5.0)
    for one in answered:
        pauses.after(Outcome.BROKEN, 0.0, answered=one)
    waits = [pauses.after(Outcome.EXPIRED, 0.0, answered=True) for _ in range(12)]
    assert waits[0] == 0.0
    assert USUAL.first_pause_seconds / 2 <= waits[1] <= USUAL.first_pause_seconds
    assert min(waits[10:]) >= 2.5


def test_a_server_that_answers_after_it_was_away_is_asked_often_again():
    pauses = Pauses(Random(1), Patience(quick_failures=3), 5.0)
    assert max(pauses.after(Outcome.BROKEN, 0.0, answered=True) for _ in range(10)) >= 2.5
    pauses.after(Outcome.BROKEN, 0.0, answered=False)
    assert pauses.after(Outcome.BROKEN, 0.0, answered=True) <= USUAL.first_pause_seconds


def test_a_server_may_ask_for_a_longer_pause_but_not_for_hours():
    pauses = Pauses(Random(1), USUAL, 5.0)
    assert [pauses.after(Outcome.BROKEN, seconds, answered=True) for seconds in (7.0, 10_000.0)] == [7.0, 60.0]
    assert USUAL.absent_pause_seconds / 2 <= pauses.after(Outcome.ABSENT, 0.0, answered=True) <= USUAL.absent_pause_seconds


def test_a_server_that_does_not_answer_is_looked_for_often():
    pauses = Pauses(Random(1), USUAL, 5.0)
    assert max(pauses.after(Outcome.BROKEN, 0.0, answered=False) for _ in range(20)) <= USUAL.unanswered_pause_seconds
