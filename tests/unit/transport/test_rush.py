"""Connections that come without a pause: how that is noticed, and how many of an address are too many then."""

from __future__ import annotations

import pytest

from endpick.transport.rush import Rush


@pytest.fixture
def rush() -> Rush:
    """One that has begun at 100.0."""
    began = Rush()
    for _ in range(64):
        assert not began.lasts(100.0)
        began.turn_ended(100.0, left_some=True)
    return began


def test_it_is_no_rush_when_now_and_then_nobody_waits():
    quiet = Rush()
    for turn in range(1000):
        quiet.turn_ended(100.0, left_some=turn % 60 != 0)
        assert not quiet.lasts(100.0)


def test_each_address_has_a_few_in_a_span_and_then_again(rush):
    assert [rush.is_one_too_many("a", 100.0) for _ in range(6)] == [False] * 4 + [True] * 2
    assert not rush.is_one_too_many("b", 100.05)
    assert rush.is_one_too_many("a", 100.05)
    assert not rush.is_one_too_many("a", 100.11)


def test_it_ends_a_second_after_the_last_that_was_too_many(rush):
    rush.turn_ended(100.0, left_some=False)
    assert rush.lasts(100.9)
    assert [rush.is_one_too_many("a", 100.9) for _ in range(5)] == [False] * 4 + [True]
    assert rush.lasts(101.8)
    assert not rush.lasts(101.91)
