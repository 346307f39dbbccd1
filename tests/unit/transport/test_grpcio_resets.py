"""How many streams a connection, and an address, may end before their answer."""

from __future__ import annotations

import pytest

from endpick.transport.grpcio_guests import Resets
from endpick.transport.limits import Limits

LIMITS = Limits(unanswered_resets_burst=1000, unanswered_resets_per_second=0.0)


@pytest.fixture
def resets(monkeypatch) -> Resets:
    monkeypatch.setattr("endpick.transport.grpcio_guests.time.monotonic", lambda: 5.0)
    return Resets(LIMITS)


def how_many(resets: Resets, peer: str, site: str) -> int:
    return next(number for number in range(5000) if not resets.may_be(peer, site))


def test_a_connection_may_end_as_many_as_on_the_other_transport(resets):
    assert how_many(resets, "first", "there") == 1000


def test_one_that_was_ended_and_comes_again_may_end_few(resets):
    how_many(resets, "first", "there")
    assert how_many(resets, "second", "there") == 128


def test_other_addresses_may_end_as_many_as_before(resets):
    how_many(resets, "first", "there")
    assert how_many(resets, "gateway", "elsewhere") == 1000


def test_what_a_connection_has_ended_goes_with_it(resets):
    how_many(resets, "first", "there")
    resets.forget("first")
    assert how_many(resets, "first", "elsewhere") == 1000
