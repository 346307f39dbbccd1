"""When the circuit of an instance opens and closes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.host.breaker import (
    LATE_CALLS,
    LONGEST_COOL_DOWN_SECONDS,
    PROBATION_CALLS,
    QUIET_SECONDS,
    Breaker,
    BreakerSettings,
    BreakerState,
)

SETTINGS = BreakerSettings(budget_seconds=0.05, faults=5, cool_down_seconds=4.0)


class Bench:
    """A breaker, its clock, and a caller that uses it as `Step.run` does."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.breaker = Breaker(SETTINGS, lambda: self.now)

    @property
    def state(self) -> BreakerState:
        return self.breaker.state

    def call(self, *, fails: bool = False, seconds: float = 0.001, skips: bool = True) -> bool:
        """Make a call if it is admitted."""
        if self.breaker.state and not self.breaker.admits():
            return False
        self.breaker.calls += 1
        self.now += seconds
        if fails:
            self.breaker.failed(skips)
        if seconds > self.breaker.budget_seconds:
            self.breaker.took(seconds)
        return True

    def trip(self) -> None:
        for _ in range(SETTINGS.faults):
            assert self.call(fails=True)
        assert self.state is BreakerState.OPEN


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_repeated_faults_open_the_circuit(bench):
    assert all(bench.call() for _ in range(100))
    assert all(bench.call(fails=True) for _ in range(SETTINGS.faults - 1))
    assert bench.state is BreakerState.CLOSED
    assert bench.call(fails=True)

    assert bench.state is BreakerState.OPEN
    assert bench.breaker.reason == "5 of 5 calls failed"
    assert bench.breaker.seconds_left == 4.0
    assert not bench.call()


def test_a_small_share_of_faults_keeps_the_circuit_closed(bench):
    for _ in range(50):
        assert bench.call(fails=True)
        assert all(bench.call() for _ in range(3))
    assert bench.state is BreakerState.CLOSED


def test_faults_that_refuse_requests_keep_the_circuit_closed(bench):
    assert all(bench.call(fails=True, skips=False) for _ in range(100))
    assert bench.state is BreakerState.CLOSED


def test_counting_restarts_after_a_quiet_time(bench):
    for _ in range(SETTINGS.faults - 1):
        bench.call(fails=True)
    bench.now += QUIET_SECONDS + 0.1
    assert bench.call(fails=True)
    assert bench.state is BreakerState.CLOSED


@pytest.mark.parametrize("skips", [True, False])
def test_late_calls_that_take_half_the_time_open_the_circuit(bench, skips):
    for _ in range(LATE_CALLS):
        assert bench.call(seconds=1.0, skips=skips)
        bench.now += 0.5
    assert bench.state is BreakerState.OPEN
    assert bench.breaker.reason == "3 calls held the event loop for 3.0 s of 4.0 s"


def test_late_calls_that_take_little_time_keep_it_closed(bench):
    for _ in range(50):
        assert bench.call(seconds=0.06)
        bench.now += 0.5
    assert bench.state is BreakerState.CLOSED


def test_the_circuit_closes_after_a_probation(bench):
    bench.trip()
    bench.now += 3.9
    assert not bench.call()
    bench.now += 0.2
    assert all(bench.call() for _ in range(PROBATION_CALLS))
    assert bench.state is BreakerState.HALF_OPEN
    assert bench.call()
    assert bench.state is BreakerState.CLOSED
    bench.trip()
    assert bench.breaker.seconds_left == 4.0


@pytest.mark.parametrize(
    ("mishap", "reason"), [({"fails": True}, "it failed again"), ({"seconds": 0.2}, "a call held the event loop for 0.2 s again")]
)
def test_each_relapse_doubles_the_cool_down(bench, mishap, reason):
    bench.trip()
    cool_down = 4.0
    for _ in range(10):
        bench.now += bench.breaker.seconds_left
        assert bench.call(**mishap)
        assert bench.breaker.reason == reason
        cool_down = min(2 * cool_down, LONGEST_COOL_DOWN_SECONDS)
        assert bench.breaker.seconds_left == pytest.approx(cool_down)


def test_a_call_ending_while_the_circuit_is_open_counts_nothing(bench):
    bench.trip()
    left = bench.breaker.seconds_left
    bench.breaker.failed(skips=True)
    bench.breaker.took(0.0)
    assert bench.breaker.seconds_left == left


calls = st.tuples(st.booleans(), st.sampled_from([0.001, 0.06, 2.0]), st.booleans(), st.floats(0, 20))


@given(st.lists(calls, max_size=120))
def test_no_history_leaves_an_instance_out_for_ever(history):
    bench = Bench()
    for fails, seconds, skips, pause in history:
        before = bench.state
        called = bench.call(fails=fails, seconds=seconds, skips=skips)
        assert called or before is BreakerState.OPEN
        assert bench.breaker.seconds_left <= LONGEST_COOL_DOWN_SECONDS
        bench.now += pause
    bench.now += LONGEST_COOL_DOWN_SECONDS
    assert bench.call()
