"""`predicted-latency`: what its model learns, and what it never does whatever happens."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from endpick_builtin.predicted.model import LatencyModel, Prefill

NAMES = ["a", "b", "c"]


def costs(model: LatencyModel, missing: float = 1000.0, now: float = 0.0) -> list[float]:
    return model.costs(model.slots(NAMES), np.full(3, missing), now)[0].tolist()


def firsts(model: LatencyModel, missing: float = 1000.0, now: float = 0.0) -> list[float]:
    return model.costs(model.slots(NAMES), np.full(3, missing), now)[1].tolist()


def send(model: LatencyModel, name: str, tokens: float, now: float, *, streams: bool = True) -> Prefill:
    (slot,) = model.slots([name]).tolist()
    return model.sent(slot, tokens, 0.1, now, streams)


def report(model: LatencyModel, waiting: list[float], running: list[float], at: float) -> None:
    model.read_load(model.slots(NAMES), np.array(waiting), np.array(running), np.full(3, at))


def test_endpoints_are_equal_at_first():
    assert len(set(costs(LatencyModel()))) == 1


def test_fewer_missing_tokens_cost_less():
    model = LatencyModel()
    found, _ = model.costs(model.slots(NAMES), np.array([4000.0, 500.0, 4000.0]), 0.0)
    assert found.argmin() == 1


def test_a_prompt_on_its_way_delays_the_next():
    model = LatencyModel()
    send(model, "a", 10_000, now=0.0)
    a, b, c = firsts(model)
    assert a - b == pytest.approx(10_000 * 0.0002 + 0.005)
    assert b == c


def test_an_overdue_prompt_delays_all_behind_it():
    model = LatencyModel()
    for _ in range(2):
        send(model, "a", 10_000, now=0.0)
    a, b, _ = firsts(model, now=60.0)
    assert a - b == pytest.approx(10_000 * 0.0002 + 0.005)  # the second has not begun


def test_a_late_first_token_moves_what_is_due_behind_it():
    model = LatencyModel()
    first, _ = send(model, "a", 1000, now=0.0), send(model, "a", 1000, now=0.0)
    before = firsts(model, now=0.205)[0]
    model.first_token(first, 1.205)  # due at 0.205
    assert firsts(model, now=1.205)[0] == pytest.approx(before, abs=0.01)


def test_an_empty_queue_is_free_now():
    model = LatencyModel()
    model.first_token(send(model, "a", 10_000, now=0.0), 0.5)
    a, b, _ = firsts(model, missing=0.0, now=0.5)
    assert a == b


def test_a_fast_endpoint_is_learnt():
    model = LatencyModel()
    for second in range(200):
        for name, took in (("a", 0.5), ("b", 1.0), ("c", 1.0)):
            prefill = send(model, name, 5000, now=second * 10.0)
            model.first_token(prefill, second * 10.0 + took)
            model.ended(prefill, 100, second * 10.0 + took + 2.0)
    a, b, c = firsts(model, missing=5000, now=3000.0)
    assert a < 0.7 * b
    assert b == pytest.approx(c)
    assert b == pytest.approx(1.0, rel=0.1)


def test_failures_cost_and_are_forgiven():
    model = LatencyModel()
    for _ in range(3):
        model.failed(send(model, "a", 1000, now=0.0), 0.0, is_fault=True)
    model.failed(send(model, "b", 1000, now=0.0), 0.0, is_fault=False)
    a, b, c = costs(model)
    assert a - c == pytest.approx(7.0)
    assert b == c
    assert costs(model, now=100.0)[0] == pytest.approx(costs(model, now=100.0)[2], abs=0.01)


def test_the_load_of_others_counts():
    model = LatencyModel()
    report(model, [4.0, math.nan, 0.0], [10.0, math.nan, 0.0], at=1.0)
    a, b, c = costs(model, now=1.0)
    assert a > b == c


def test_own_requests_are_no_load_of_others():
    model = LatencyModel()
    for _ in range(3):
        send(model, "a", 1000, now=0.0)
    report(model, [2.0, 0.0, 0.0], [1.0, 0.0, 0.0], at=1.0)
    before = costs(model, now=1.0)
    report(model, [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], at=2.0)
    assert costs(model, now=1.0) == before


def test_a_report_from_before_the_latest_request_is_ignored():
    model = LatencyModel()
    send(model, "a", 1000, now=5.0)
    before = costs(model, now=5.0)
    report(model, [9.0, 0.0, 0.0], [9.0, 0.0, 0.0], at=4.9)
    assert costs(model, now=5.0) == before


def test_hidden_prompts_leave_when_the_queue_is_short():
    model = LatencyModel()
    for _ in range(3):
        send(model, "a", 10_000, now=0.0, streams=False)
    slots = model.slots(NAMES)
    model.finish_hidden(slots, np.array([1.0, 0.0, 0.0]), 0.05)  # too early to tell
    before = firsts(model, now=1.0)[0]
    model.finish_hidden(slots, np.array([1.0, 0.0, 0.0]), 1.0)
    assert firsts(model, now=1.0)[0] < before


def test_an_endpoint_that_leaves_is_forgotten():
    model = LatencyModel()
    prefill = send(model, "a", 100_000, now=0.0)
    model.forget("a")
    model.first_token(prefill, 1.0)
    model.ended(prefill, 10, 1.0)
    assert len(set(costs(model))) == 1
    assert set(model.dump(0.0, 100)["endpoints"]) == {"a", "b", "c"}


class AnyHistory(RuleBasedStateMachine):
    """Requests come, answer, fail and vanish; endpoints leave; the clock jumps ahead."""

    def __init__(self):
        super().__init__()
        self.model = LatencyModel()
        self.now = 0.0
        self.open: list[Prefill] = []

    @rule(seconds=st.sampled_from([0.0, 0.01, 1.0, 3600.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule(name=st.sampled_from(NAMES), tokens=st.sampled_from([0.0, 1.0, 5000.0, 1e6]), streams=st.booleans())
    def send(self, name, tokens, streams):
        self.open.append(send(self.model, name, tokens, self.now, streams=streams))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def first_token(self, data):
        self.model.first_token(data.draw(st.sampled_from(self.open)), self.now)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), how=st.sampled_from(["ended", "unmeasured", "failed", "left"]))
    def end(self, data, how):
        prefill = data.draw(st.sampled_from(self.open))
        self.open.remove(prefill)
        if how in {"ended", "unmeasured"}:
            self.model.ended(prefill, 100 if how == "ended" else 0, self.now)
        else:
            self.model.failed(prefill, self.now, is_fault=how == "failed")

    @rule(name=st.sampled_from(NAMES))
    def forget(self, name):
        self.model.forget(name)

    @rule(loads=st.lists(st.sampled_from([0.0, 3.0, 1e6, math.nan]), min_size=6, max_size=6))
    def report(self, loads):
        report(self.model, loads[:3], loads[3:], self.now)
        self.model.finish_hidden(self.model.slots(NAMES), np.nan_to_num(loads[:3]), self.now)

    @invariant()
    def costs_are_finite_and_positive(self):
        found = costs(self.model, now=self.now)
        assert all(0.0 < cost < math.inf for cost in found)

    @invariant()
    def requests_in_flight_are_counted(self):
        endpoints = self.model.dump(self.now, 100)["endpoints"]
        assert sum(one["open"] for one in endpoints.values()) == sum(map(self.model.is_here, self.open))


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(deadline=None, max_examples=30, stateful_step_count=30)
