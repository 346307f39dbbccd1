"""Producers that wait: only their requests become coroutines, and no wait is longer than allowed."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from endpick.api import DataKey, Scope
from endpick.host.kinds import OnFault
from endpick.requests.model import Refused, Routed
from unit.requests.stage import Stage, async_producer_of, producer_of
from unit.scheduling.workbench import filter_of

ANSWER = DataKey("test/answer", str, Scope.REQUEST)


async def forever(request, endpoints, state):
    await asyncio.Event().wait()


@pytest.mark.asyncio
async def test_producers_run_in_order_around_the_one_that_waits():
    order = []

    async def wait(request, endpoints, state):
        order.append("begin")
        await asyncio.sleep(0)
        order.append("end")

    stage = Stage(
        producers=[
            producer_of(lambda request, endpoints, state: order.append("first"), "first"),
            async_producer_of(wait, "waiting"),
            producer_of(lambda request, endpoints, state: order.append("last"), "last"),
        ]
    )
    decision = stage.decide()
    assert order == ["first"]
    assert isinstance(await decision, Routed)
    assert order == ["first", "begin", "end", "last"]


@pytest.mark.asyncio
async def test_other_requests_are_decided_meanwhile():
    release = asyncio.Event()

    async def wait(request, endpoints, state):
        if request.id == "slow":
            await release.wait()

    stage = Stage(producers=[async_producer_of(wait)])
    slow = asyncio.ensure_future(stage.decide(x_request_id="slow"))
    await asyncio.sleep(0)
    assert isinstance(await stage.decide(x_request_id="quick"), Routed)
    assert not slow.done()
    release.set()
    assert isinstance(await slow, Routed)


@pytest.mark.asyncio
async def test_a_producer_that_takes_too_long_is_cancelled_and_the_request_goes_on():
    cancelled = []

    async def hang(request, endpoints, state):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    stage = Stage(producers=[async_producer_of(hang, "slow", timeout_seconds=0.01)])
    assert isinstance(await stage.decide(), Routed)
    assert cancelled == [True]
    assert stage.telemetry.faults == [("slow", "DataProducer", "took longer than 0.01 s")]


@pytest.mark.asyncio
async def test_each_producer_has_its_own_time():
    done = []

    async def quick(request, endpoints, state):
        await asyncio.sleep(0)
        done.append(True)

    stage = Stage(producers=[async_producer_of(forever, "slow", timeout_seconds=0.01), async_producer_of(quick, "quick")])
    assert isinstance(await stage.decide(), Routed)
    assert done == [True]
    assert [name for name, *_ in stage.telemetry.faults] == ["slow"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("problem", "text"), [(RuntimeError("no tokens"), "RuntimeError: no tokens"), (TimeoutError("socket"), "TimeoutError: socket")]
)
async def test_an_error_after_waiting_is_the_producers_fault(problem, text):
    async def fail(request, endpoints, state):
        await asyncio.sleep(0)
        raise problem

    stage = Stage(producers=[async_producer_of(fail, "bad")])
    assert isinstance(await stage.decide(), Routed)
    assert stage.telemetry.faults == [("bad", "DataProducer", text)]


@pytest.mark.asyncio
async def test_a_late_fault_refuses_when_the_operator_wants_that():
    stage = Stage(producers=[async_producer_of(forever, "slow", OnFault.REFUSE, timeout_seconds=0.01)])
    assert await stage.decide() == Refused(500, "Internal", "plugin 'slow' failed")


@pytest.mark.asyncio
async def test_a_client_that_leaves_cancels_the_wait_and_leaves_no_trace():
    asked = []
    stage = Stage(producers=[async_producer_of(forever)], filters=[filter_of(lambda endpoints: asked.append(1) or endpoints)])
    waiting = asyncio.ensure_future(stage.decide())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asked == []
    assert stage.telemetry.faults == stage.telemetry.decided == []


@pytest.mark.asyncio
async def test_a_waiting_producer_is_confined_to_its_keys_also_after_others_ran():
    async def sneak(request, endpoints, state):
        await asyncio.sleep(0)
        state.put(ANSWER, "mine")

    stage = Stage(producers=[async_producer_of(sneak, "sneaky")])
    waiting = asyncio.ensure_future(stage.decide())
    await asyncio.sleep(0)
    assert isinstance(await waiting, Routed)
    assert stage.telemetry.violations == [("sneaky", "test/answer", "write")]


def test_without_a_waiting_producer_there_is_no_coroutine():
    stage = Stage(producers=[producer_of(lambda request, endpoints, state: None)])
    assert not inspect.isawaitable(stage.decide())


def test_a_plain_producer_that_returns_something_to_await_is_at_fault():
    async def coroutine():
        return None

    stage = Stage(producers=[producer_of(lambda request, endpoints, state: coroutine(), "confused")])
    assert isinstance(stage.decide(), Routed)
    [(name, _, text)] = stage.telemetry.faults
    assert name == "confused"
    assert "async def" in text
