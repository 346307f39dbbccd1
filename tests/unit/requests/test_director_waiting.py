"""Asynchronous producers: only their requests become coroutines, and their waits have limits."""

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
async def test_producers_run_in_order_around_an_async_one():
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
async def test_late_producer_is_cancelled():
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
@pytest.mark.parametrize(
    ("problem", "text"), [(RuntimeError("no tokens"), "RuntimeError: no tokens"), (TimeoutError("socket"), "TimeoutError: socket")]
)
async def test_async_producer_error_is_a_fault(problem, text):
    async def fail(request, endpoints, state):
        await asyncio.sleep(0)
        raise problem

    stage = Stage(producers=[async_producer_of(fail, "bad")])
    assert isinstance(await stage.decide(), Routed)
    assert stage.telemetry.faults == [("bad", "DataProducer", text)]


@pytest.mark.asyncio
async def test_late_producer_refuses_with_on_fault_refuse():
    stage = Stage(producers=[async_producer_of(forever, "slow", OnFault.REFUSE, timeout_seconds=0.01)])
    assert await stage.decide() == Refused(500, "Internal", "plugin 'slow' failed")


@pytest.mark.asyncio
async def test_client_that_leaves_cancels_the_producer():
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
async def test_async_producer_is_confined_to_its_keys():
    async def sneak(request, endpoints, state):
        await asyncio.sleep(0)
        state.put(ANSWER, "mine")

    stage = Stage(producers=[async_producer_of(sneak, "sneaky")])
    waiting = asyncio.ensure_future(stage.decide())
    await asyncio.sleep(0)
    assert isinstance(await waiting, Routed)
    assert stage.telemetry.violations == [("sneaky", "test/answer", "write")]


def test_sync_producers_need_no_coroutine():
    stage = Stage(producers=[producer_of(lambda request, endpoints, state: None)])
    assert not inspect.isawaitable(stage.decide())


def test_sync_producer_returning_a_coroutine_is_a_fault():
    async def coroutine():
        return None

    stage = Stage(producers=[producer_of(lambda request, endpoints, state: coroutine(), "confused")])
    assert isinstance(stage.decide(), Routed)
    [(name, _, text)] = stage.telemetry.faults
    assert name == "confused"
    assert "async def" in text
