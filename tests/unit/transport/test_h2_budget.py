from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from endpick.requests.memory import MemoryBudget
from endpick.transport.h2.errors import RateBudget


@given(st.lists(st.floats(0, 5), max_size=60), st.integers(1, 20), st.floats(0.1, 10))
def test_no_more_than_two_bursts_and_the_rate_pass(pauses, burst, rate):
    now = 0.0
    budget = RateBudget(burst, rate, now)
    spent = 0
    for pause in pauses:
        now += pause
        spent += budget.spend(now)
    assert spent <= 2 * burst + now * rate


def test_a_steady_rate_within_the_allowance_always_passes():
    budget = RateBudget(5, 10, 0.0)
    assert all(budget.spend(second / 10) for second in range(1000))


def test_memory_is_given_back():
    memory = MemoryBudget(100)
    assert memory.hold(100)
    assert not memory.hold(1)
    assert memory.hold(-101)
    assert memory.held_bytes == 0
