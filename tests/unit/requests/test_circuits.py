"""The circuit breaker on the request path: who is left out, and what settles all the same."""

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


def test_failing_scorer_is_left_out():
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
def test_refusing_plugin_is_never_left_out(group):
    stage = Stage(**group)
    for _ in range(3 * FAULTS):
        assert stage.refuse().status == 500
    assert len(stage.telemetry.faults) == 3 * FAULTS
    assert stage.telemetry.outs == []


def test_late_filter_refuses_without_a_call():
    function = Counted(lambda: None)
    instance = filter_of(function, "slow")
    late(instance)
    stage = Stage(filters=[instance])

    assert stage.refuse().status == 500
    assert function.calls == 0


def test_async_and_sync_producers_are_left_out():
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


def test_observer_with_open_circuit_settles_earlier_requests():
    started, ended = Counted(), Counted()
    observer = observer_of("ledger", response_started=started, response_ended=ended)
    stage = Stage(observers=[observer])
    before = stage.route()
    late(observer)
    after = stage.route()
    told(stage, before)
    told(stage, after)

    assert (started.calls, ended.calls) == (1, 1), "the second request left without it"


def test_left_out_observer_does_not_see_the_end():
    began, ended = Counted(), Counted()
    ledger = before_request_of(began, "ledger")
    watcher = observer_of("watcher", response_ended=ended)
    stage = Stage(pre_request=[ledger], observers=[watcher])
    late(ledger)
    late(watcher)
    told(stage, stage.route())

    assert (began.calls, ended.calls) == (0, 0)


def test_late_rejection_is_settled():
    ended = Counted()
    observer = observer_of("ledger", response_ended=ended)
    stage = Stage(pre_request=[before_request_of(lambda *_: Rejection("no", status=429), "no")], observers=[observer])

    assert stage.refuse().status == 429
    assert ended.calls == 1


def test_occasional_observer_faults_keep_the_circuit_closed():
    answers = iter([True, *[False] * 3] * 100)
    observer = observer_of("unsteady", response_ended=lambda *_: fail() if next(answers) else None)
    stage = Stage(observers=[observer])
    for _ in range(8 * FAULTS):
        told(stage, stage.route())

    assert observer.breaker.state is BreakerState.CLOSED
