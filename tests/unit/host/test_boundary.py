"""The boundary around plugin calls: `Step.run` and `Step.run_async`."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace

import pytest

from endpick.api import DataProducer
from endpick.host.boundary import Fault, bind
from endpick.host.breaker import BreakerState
from endpick.host.failures import FaultOfAnother
from endpick.host.kinds import OnFault
from endpick.host.methods import PRODUCE
from unit.scheduling.workbench import Recording, access, plugin_of


def step_of(function, *, on_fault=OnFault.SKIP, settles=False, telemetry=None):
    instance = plugin_of(DataProducer, "producer", on_fault, produce=function)
    return bind(instance, replace(PRODUCE, settles=settles), telemetry or Recording())


def opened(step):
    for _ in range(3):
        step.breaker.took(5.0)
    assert step.breaker.state is BreakerState.OPEN
    return step


def run(step, *arguments):
    return step.run(access(), *arguments)


def run_async(step, timeout_seconds=60.0):
    async def awaited():
        return await step.run_async(access(), timeout_seconds)

    return asyncio.run(awaited())


def test_run_returns_the_answer_and_counts_the_time():
    telemetry = Recording()
    assert run(step_of(lambda value: value + 1, telemetry=telemetry), 1) == 2
    assert telemetry.timed == [("DataProducer", "producer")]


def test_run_confines_data_access_and_restores_the_caller():
    shared = access()
    inner = step_of(lambda: shared.scope)
    outer = step_of(lambda: (inner.run(shared), shared.scope))
    assert outer.run(shared) == (inner.scope, outer.scope)
    assert shared.scope is None


@pytest.mark.parametrize("on_fault", OnFault)
@pytest.mark.parametrize("throw", [lambda: 1 / 0, lambda: sys.exit(3)], ids=["error", "exit"])
def test_run_contains_errors(throw, on_fault):
    telemetry = Recording()
    fault = run(step_of(throw, on_fault=on_fault, telemetry=telemetry))
    assert isinstance(fault, Fault)
    assert fault.refuses is (on_fault is OnFault.REFUSE)
    assert len(telemetry.faults) == 1


def test_run_passes_cancellation():
    def cancel():
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run(step_of(cancel))


def test_run_returns_the_fault_of_a_nested_call():
    telemetry, nested = Recording(), Fault("other", "no", refuses=True)

    def call():
        raise FaultOfAnother(nested)

    assert run(step_of(call, telemetry=telemetry)) is nested
    assert telemetry.faults == []


def test_an_open_circuit_leaves_the_plugin_out_unless_it_settles():
    calls = []
    assert run(opened(step_of(lambda: calls.append("left out")))).problem.startswith("it is left out because 3 calls held")
    run(opened(step_of(lambda: calls.append("settles"), settles=True)))
    assert calls == ["settles"]


def test_run_async_returns_the_answer_confined_between_its_waits():
    shared, scopes = access(), []

    async def produce():
        scopes.append(shared.scope)
        await asyncio.sleep(0)
        scopes.append(shared.scope)
        return 5

    step = step_of(produce)

    async def both():
        answer = asyncio.ensure_future(step.run_async(shared, 60.0))
        while not answer.done():
            await asyncio.sleep(0)
            assert shared.scope is None
        return await answer

    assert asyncio.run(both()) == 5
    assert scopes == [step.scope, step.scope]


@pytest.mark.parametrize("swallows", [False, True], ids=["cancelled", "swallows"])
def test_run_async_makes_a_late_answer_a_fault(swallows):
    async def produce():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not swallows:
                raise
        return "late"

    assert run_async(step_of(produce), 0.001) == Fault("producer", "took longer than 0.001 s", refuses=False)


def test_run_async_contains_errors():
    async def produce():
        await asyncio.sleep(0)
        raise TimeoutError("of a client")

    assert run_async(step_of(produce)).problem == "TimeoutError: of a client"
    assert run_async(step_of(lambda: None)).problem == "TypeError: returned NoneType, not an awaitable"


def test_run_async_passes_the_cancellation_of_its_caller():
    async def produce():
        await asyncio.Event().wait()

    async def cancelled():
        task = asyncio.ensure_future(step_of(produce).run_async(access(), 60.0))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        return task.cancelled()

    assert asyncio.run(cancelled())


def test_run_async_reports_a_plugin_that_holds_the_event_loop():
    telemetry = Recording()

    async def produce():
        await asyncio.sleep(0)
        time.sleep(0.001)  # noqa: ASYNC251 - the mistake under test

    step = step_of(produce, telemetry=telemetry)
    step.breaker.budget_seconds = 0.0005
    run_async(step)
    assert ("producer", "DataProducer") in telemetry.lates
