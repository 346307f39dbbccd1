"""Ticks of polling sources, and delays between restarts."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.data.pace import Moments, cadence_of, first_at
from endpick.data.tasks import Backoff


@pytest.mark.parametrize(
    ("refresh", "intervals", "tick", "every"),
    [
        (0.05, [None], 0.05, (1,)),
        (0.05, [None, 0.2, 1.0], 0.05, (1, 4, 20)),
        (0.01, [None], 0.05, (1,)),
        (1.0, [0.001, None], 0.05, (1, 20)),
        (1.0, [0.3, 0.7], 0.3, (1, 2)),
        (0.2, [5.0], 0.2, (25,)),
        (0.05, [0.0], 0.05, (1,)),
        (0.05, [], 0.05, ()),
    ],
)
def test_the_tick_is_the_shortest_interval_and_the_others_are_multiples(refresh, intervals, tick, every):
    cadence = cadence_of(refresh, intervals)
    assert (cadence.tick_seconds, cadence.every) == (tick, every)


def test_every_source_is_due_at_the_first_tick():
    cadence = cadence_of(0.05, [None, 0.1, 0.15])
    assert [cadence.due(tick) for tick in range(1, 8)] == [(0, 1, 2), (0,), (0, 1), (0, 2), (0, 1), (0,), (0, 1, 2)]


@given(st.integers(1, 2000))
def test_moments_put_a_pool_into_as_few_small_groups_as_will_do(count):
    moments = Moments()
    groups = Counter(moments.join(count) for _ in range(count))
    wanted = 2 ** math.ceil(math.log2(max(1, count / 8)))
    assert len(groups) == wanted
    assert all(0 <= moment < 1 and (moment * wanted).is_integer() for moment in groups)
    assert max(groups.values()) - min(groups.values()) <= 1
    assert max(groups.values()) <= 8


@given(st.lists(st.booleans(), max_size=300))
def test_groups_stay_small_when_endpoints_come_one_by_one_and_the_oldest_go(comings):
    moments, pool = Moments(), []
    for comes in comings:
        if comes:
            pool.append(moments.join(len(pool) + 1))
        elif pool:
            moments.leave(pool.pop(0))
        assert all(count <= 8 for count in Counter(pool).values())


@given(st.floats(0, 1e7), st.sampled_from([0.05, 0.2, 1.0]), st.integers(0, 127))
def test_the_first_turn_comes_within_a_tick_and_a_half_and_is_that_of_the_phase(now, tick, moment):
    at = first_at(now, tick, moment / 128)
    assert tick * 0.5 - 1e-6 <= at - now < tick * 1.5 + 1e-6
    assert (at / tick - moment / 128) == pytest.approx(round(at / tick - moment / 128), abs=1e-6)


def test_delays_double_up_to_half_a_minute():
    backoff = Backoff()
    assert [backoff.delay_after(0.0) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_a_long_run_starts_the_delays_over():
    backoff = Backoff()
    for _ in range(5):
        backoff.delay_after(0.0)
    assert [backoff.delay_after(31.0), backoff.delay_after(29.0)] == [0.5, 1]
