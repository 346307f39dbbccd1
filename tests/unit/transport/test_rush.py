"""Connections that come without a pause: how that is noticed, and how many of an address are too many then."""

from __future__ import annotations

import pytest

from endpick.transport.rush import Rush


@pytest.fixture
def rush() -> Rush:
    """One that has begun at 100.0."""
    began = Rush(4)
    for _ in range(128):
        assert not began.lasts
        began.turn_ended(100.0, left_some=True)
    assert began.lasts
    return began


@pytest.mark.parametrize(("connections", "of_eighty"), [(1, 2), (16, 32), (None, 80)])
def test_how_many_an_address_has_is_what_is_set(connections, of_eighty):
    set_so = Rush(connections)
    taken = [not set_so.is_one_too_many("a", 100.0, has_spoken=has_spoken) for has_spoken in (True, False) for _ in range(40)]
    assert sum(taken) == of_eighty


def test_it_is_no_rush_when_now_and_then_nobody_waits():
    quiet = Rush(4)
    for turn in range(1000):
        quiet.turn_ended(100.0, left_some=turn % 15 != 0)
        assert not quiet.lasts


def test_each_address_has_a_few_in_a_span_and_then_again(rush):
    assert [rush.is_one_too_many("a", 100.0, has_spoken=False) for _ in range(6)] == [False] * 4 + [True] * 2
    assert not rush.is_one_too_many("b", 100.05, has_spoken=False)
    assert rush.is_one_too_many("a", 100.05, has_spoken=False)
    assert not rush.is_one_too_many("a", 100.11, has_spoken=False)


def test_who_has_spoken_does_not_make_way_for_those_that_have_not(rush):
    assert sum(rush.is_one_too_many("a", 100.0, has_spoken=False) for _ in range(100)) == 96
    assert [rush.is_one_too_many("a", 100.0, has_spoken=True) for _ in range(5)] == [False] * 4 + [True]


@pytest.mark.parametrize(("later", "turns"), [(0.9, 8), (1.1, 128)])
def test_it_ends_when_nobody_waits_and_begins_sooner_within_a_second(rush, later, turns):
    rush.turn_ended(100.0, left_some=False)
    for _ in range(turns):
        assert not rush.lasts
        rush.turn_ended(100.0 + later, left_some=True)
    assert rush.lasts


def test_many_wait_from_the_second_full_turn_to_one_that_leaves_nobody_waiting():
    port, seen = Rush(4), []
    for left_some in (True, True, True, False, True):
        port.turn_ended(100.0, left_some=left_some)
        seen.append((port.many_wait, port.lasts))
    assert seen == [(False, False), (True, False), (True, False), (False, False), (False, False)]
