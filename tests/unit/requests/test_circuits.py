"""The circuit breaker where the request path meets plugins: who is left out, and what is settled all the same."""

from __future__ import annotations

import asyncio

import pytest

from endpick.api import Rejection
from endpick.host.breaker import DEFAULT_SETTINGS, BreakerState
from endpick.host.kinds import OnFault
from endpick.requests.model import CloseCause
from unit.requests.stage import Stage, async_producer_of, before_request_of, observer_of, parser_of, producer_of
from unit.scheduling.workbench import filter_of, scorer_of

FAULTS = DEFAULT_SETTINGS.faults


def fail(*_arguments):
    raise LookupError("gone")


class Counted:
    """A function of a plugin that counts its calls."""

    def __init__(self, answer=None) -> None:
        self.calls = 0
        self.answer = answer

    def __call__(self, *_arguments):
        self.calls += 1
        return self.answer() if callable(self.answer) else self.answer


def late(instance) -> None:
    """Open the circuit, as calls do that hold the event loop."""
    for _ in range(3):
        instance.breaker.took(5.0)
    assert instance.breaker.state is BreakerState.OPEN


def test_a_scorer_that_fails_is_not_called_any_more_and_its_weight_is_dropped():
    function = Counted(fail)
    scorer = scorer_of(function)
    stage = Stage(scorers=[(scorer, 1.0)])
    for _ in range(FAULTS + 7):
        stage.route()

    assert function.calls == FAULTS
    assert len(stage.telemetry.faults) == FAULTS
    assert stage.telemetry.outs == [("scorer", "Scorer")] * 7
    assert stage.telemetry.timed.count(("Scorer", "scorer")) == FAULTS  # a call that was not made took no time
    assert stage.telemetry.circuits == [("scorer", "CLOSED", "OPEN")]


@pytest.mark.parametrize(
    "group",
    [
        {"filters": [filter_of(fail, "bad")]},
        {"parsers": [parser_of("bad", ("/v1/chat/completions",), parse=fail)]},
        {"scorers": [(scorer_of(fail, "bad", OnFault.REFUSE), 1.0)]},
    ],
    ids=lambda group: next(iter(group)),
)
def test_one_whose_faults_refuse_requests_is_asked_each_time(group):
    stage = Stage(**group)
    for _ in range(3 * FAULTS):
        assert stage.refuse().status == 500
    assert len(stage.telemetry.faults) == 3 * FAULTS
    assert stage.telemetry.outs == []


def test_a_filter_that_holds_the_event_loop_refuses_requests_without_being_asked():
    function = Counted(lambda: None)
    instance = filter_of(function, "slow")
    late(instance)
    stage = Stage(filters=[instance])

    assert stage.refuse().status == 500
    assert function.calls == 0


def test_producers_that_wait_are_left_out_like_those_that_do_not():
    calls = {"waits": 0, "at once": 0}

    async def produce(*_arguments):
        calls["waits"] += 1

    def produce_at_once(*_arguments):
        calls["at once"] += 1

    waits, at_once = async_producer_of(produce, "waits"), producer_of(produce_at_once, "at once")
    stage = Stage(producers=[waits, at_once])

    async def decided():
        return await stage.decide()

    asyncio.run(decided())
    late(waits)
    late(at_once)
    asyncio.run(decided())

    assert calls == {"waits": 1, "at once": 1}
    assert sorted(stage.telemetry.outs) == [("at once", "DataProducer"), ("waits", "DataProducer")]


def told(stage: Stage, decision) -> None:
    """The response, to its end."""
    decision.exchange.response_headers({":status": "200"}, None)
    decision.exchange.response_chunk(b"{}", True)
    decision.exchange.finish(CloseCause.END)


def test_a_request_that_an_instance_saw_leave_is_settled_by_it_whatever_its_circuit_says():
    started, ended = Counted(), Counted()
    observer = observer_of("ledger", response_started=started, response_ended=ended)
    stage = Stage(observers=[observer])
    before = stage.route()
    late(observer)
    after = stage.route()
    told(stage, before)
    told(stage, after)

    assert (started.calls, ended.calls) == (1, 1), "the second request left without it"


def test_one_that_is_left_out_when_a_request_leaves_is_not_told_of_its_end():
    began, ended = Counted(), Counted()
    ledger = before_request_of(began, "ledger")
    watcher = observer_of("watcher", response_ended=ended)
    stage = Stage(pre_request=[ledger], observers=[watcher])
    late(ledger)
    late(watcher)
    told(stage, stage.route())

    assert (began.calls, ended.calls) == (0, 0)


def test_a_refusal_at_the_last_moment_is_settled_too():
    ended = Counted()
    observer = observer_of("ledger", response_ended=ended)
    stage = Stage(pre_request=[before_request_of(lambda *_: Rejection("no", status=429), "no")], observers=[observer])

    assert stage.refuse().status == 429
    assert ended.calls == 1


def test_observers_that_fail_now_and_then_are_counted_against_all_their_calls():
    answers = iter([True, *[False] * 3] * 100)
    observer = observer_of("unsteady", response_ended=lambda *_: fail() if next(answers) else None)
    stage = Stage(observers=[observer])
    for _ in range(8 * FAULTS):
        told(stage, stage.route())

    assert observer.breaker.state is BreakerState.CLOSED
