"""Ticks of polling sources, and delays between restarts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.datalayer.pace import PhaseSequence, cadence_of
from endpick.datalayer.tasks import Backoff


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


@given(st.integers(2, 200))
def test_phases_spread_any_number_of_endpoints_over_the_tick(count):
    sequence = PhaseSequence()
    phases = sorted(sequence.next() for _ in range(count))
    gaps = [later - earlier for earlier, later in itertools.pairwise(phases)]
    assert all(0 <= phase < 1 for phase in phases)
    assert min(gaps) > 0.3 / count
    assert max(gaps) < 2.7 / count


def test_delays_double_up_to_half_a_minute():
    backoff = Backoff()
    assert [backoff.delay_after(0.0) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_a_long_run_starts_the_delays_over():
    backoff = Backoff()
    for _ in range(5):
        backoff.delay_after(0.0)
    assert [backoff.delay_after(31.0), backoff.delay_after(29.0)] == [0.5, 1]
