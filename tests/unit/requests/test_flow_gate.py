"""Requests that wait for flow control: dispatch, refusals, and clients that leave."""

from __future__ import annotations

import asyncio

import pytest

from endpick.requests.memory import OverloadStage
from endpick.requests.model import CloseCause, Routed
from endpick.requests.record import document_of
from unit.flow_control.queue_bench import SETTINGS, settings
from unit.requests.busy import Busy
from unit.requests.stage import CHAT, async_producer_of, candidate_filter_of, header_processor_of
from unit.scheduling.workbench import pool

pytestmark = pytest.mark.asyncio


async def test_a_request_passes_at_once_while_there_is_room():
    stage = Busy()
    stage.load = 0.5
    assert isinstance(stage.decide(x_request_id="one"), Routed)
    assert stage.log.passes == ["one"]


async def test_a_dispatched_request_sees_the_current_pool():
    stage = Busy(table=pool(size=1))
    waiting = stage.wait()
    stage.table.replace_all(pool(size=3).generation.endpoints[2:])
    stage.open()
    assert (await waiting).destinations == ("10.0.0.3:8000",)


async def test_the_end_of_a_request_dispatches_the_next():
    seen = []
    stage = Busy(header_processors=[header_processor_of(lambda request, state: seen.append(request.id))])
    stage.load = 0.0
    first = stage.route(x_request_id="first")
    stage.load = 1.0
    waiting = stage.wait(x_request_id="second")
    await asyncio.sleep(0)
    assert not waiting.done()
    stage.load = 0.0
    first.exchange.finish(CloseCause.RESET)
    assert isinstance(await waiting, Routed)
    assert seen == ["first", "second"], "header processors run once for each"


async def test_a_request_is_scheduled_before_the_next_is_dispatched():
    stage = Busy()
    tasks = [stage.wait(x_request_id=str(number)) for number in range(3)]
    scheduled: list[int] = []
    dispatch = stage.gate.controller.dispatch

    def counted() -> bool:
        scheduled.append(len(stage.telemetry.decided))
        return dispatch()

    stage.gate.controller.dispatch = counted
    stage.open()
    await asyncio.gather(*tasks)
    assert scheduled == [0, 1, 2]


async def test_the_decision_record_has_the_wait():
    stage = Busy(records=True)
    stage.load = 1.25
    waiting = stage.wait()
    await asyncio.sleep(0)
    stage.now += 2.5
    stage.open()
    for routed in (await waiting, stage.route()):
        routed.exchange.finish(CloseCause.END)
    assert [document_of(record)["waited"] for record in stage.records] == [{"seconds": 2.5, "saturation": 1.25}, None]


async def test_a_dispatched_request_may_still_be_refused():
    stage = Busy(candidate_filters=[candidate_filter_of(lambda endpoints: endpoints.take([]))])
    waiting = stage.wait()
    stage.open()
    assert (await waiting).reason == "rejected-no-endpoints"
    assert stage.telemetry.refused == [("m", "ServiceUnavailable")]


@pytest.mark.parametrize(("empty", "status", "reason"), [(False, 429, "rejected-ttl-expired"), (True, 503, "rejected-no-endpoints")])
async def test_a_wait_ends_at_its_time_limit(empty, status, reason):
    stage = Busy()
    if empty:
        stage.table.replace_all(())
    waiting = stage.wait()
    stage.now += 61.0
    refused = await waiting
    assert (refused.status, refused.reason) == (status, reason)
    assert stage.telemetry.refused == [("m", refused.code)]


async def test_no_room_is_refused_at_once():
    stage = Busy(settings(max_requests=1))
    stage.wait()
    refused = stage.refuse()
    assert (refused.status, refused.reason) == (429, "rejected-saturated")
    assert stage.gate.controller.waiting == 1


@pytest.mark.parametrize("starts", [True, False], ids=["waiting", "before its first step"])
async def test_a_client_that_leaves_frees_its_place(starts):
    stage = Busy()
    waiting = stage.wait()
    if starts:
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))
    del waiting
    await asyncio.sleep(0)
    assert stage.gate.controller.waiting == 0
    assert [outcome for _, outcome in stage.log.ends] == ["EvictedContextCancelled"]


async def test_client_leaving_after_dispatch_is_not_scheduled():
    stage = Busy()
    waiting = stage.wait()
    await asyncio.sleep(0)
    assert stage.gate.controller.waiting == 1
    stage.load = 0.0
    assert stage.gate.controller.dispatch()
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert stage.telemetry.decided == []
    assert waiting.cancelled()


async def test_async_producers_run_after_the_dispatch():
    begun = asyncio.Event()

    async def produce(request, endpoints, state):
        begun.set()

    stage = Busy(producers=[async_producer_of(produce)])
    waiting = stage.wait()
    await asyncio.sleep(0)
    assert not begun.is_set()
    stage.open()
    assert isinstance(await waiting, Routed)
    assert begun.is_set()


async def test_a_bug_of_endpick_costs_one_request(monkeypatch, caplog):
    stage = Busy()
    waiting = stage.wait()
    dispatch, errors = stage.gate.controller.dispatch, [RuntimeError("a bug")]

    def once() -> bool:
        if errors:
            raise errors.pop()
        return dispatch()

    monkeypatch.setattr(stage.gate.controller, "dispatch", once)
    stage.open()
    assert isinstance(await waiting, Routed)
    assert "a bug" in caplog.text


async def test_short_of_memory_negative_priorities_are_refused():
    stage = Busy()
    batch, normal = stage.wait(x_llm_d_inference_objective="batch"), stage.wait()
    stage.director._memory.stage = OverloadStage.SHEDDING
    stage.gate.something_changed()
    refused = await batch
    assert (refused.status, refused.reason) == (429, "rejected-overloaded")
    assert not normal.done()


async def test_an_invalid_body_never_waits():
    stage = Busy()
    assert stage.refuse(b"{").status == 400
    assert stage.refuse({**CHAT, "model": ""}).status == 400
    assert stage.gate.controller.waiting == 0


async def test_a_reload_keeps_waiting_requests_or_dispatches_them():
    stage = Busy()
    waiting = stage.wait()
    stage.director.switch(stage.with_queues(settings(ttl_seconds=9.0)))
    assert stage.gate.controller.waiting == 1
    stage.director.switch(stage.with_queues(None))
    assert isinstance(await waiting, Routed)
    assert stage.route()
    stage.director.switch(stage.with_queues(SETTINGS))
    stage.wait()


async def test_shutting_down_refuses_waiting_and_later_requests():
    stage = Busy()
    waiting = [stage.wait() for _ in range(3)]
    assert await stage.gate.shut_down() == 3
    assert {(await each).reason for each in waiting} == {"rejected-shutting-down"}
    assert stage.refuse().reason == "rejected-shutting-down"
