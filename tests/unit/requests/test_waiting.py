"""Requests that wait at the director: what is decided when their turn comes, and what becomes of clients that do not wait for it."""

from __future__ import annotations

import asyncio
import gc
import warnings
from dataclasses import replace

import pytest

from endpick.api import ParsedRequest, PreRequest
from endpick.host.kinds import OnFault
from endpick.requests.model import CloseCause, Refused, Routed
from endpick.requests.waiting import LaterDecision
from endpick.scheduling.trace import sampled, to_json
from unit.flow_control.queue_bench import settings
from unit.requests.busy import Busy, Delivered
from unit.requests.stage import (
    CHAT,
    async_producer_of,
    candidate_filter_of,
    header_processor_of,
    observer_of,
    parser_of,
)
from unit.scheduling.workbench import plugin_of, pool

pytestmark = pytest.mark.asyncio


async def test_a_request_passes_while_there_is_room_and_is_decided_at_once():
    stage = Busy()
    stage.load = 0.5
    assert isinstance(stage.decide(x_request_id="one"), Routed)
    assert stage.log.passes == ["one"]


async def test_what_was_called_for_requests_that_wait_is_counted_before_they_wait():
    stage = Busy()
    for _ in range(3):
        stage.wait()
        assert stage.director._access.called == []
        assert stage.director._access.scope is None


async def test_a_request_is_decided_on_the_pool_as_it_is_when_its_turn_comes():
    stage = Busy(table=pool(size=1))
    later = Delivered(stage.wait())
    (old,) = stage.table.generation.endpoints
    stage.table.replace_all(pool(size=3).generation.endpoints[2:])
    stage.load = 0.0
    stage.room.something_changed()
    routed = await later.result()
    assert routed.destinations == ("10.0.0.3:8000",) != (old.address,)
    assert stage.account.parsed_bytes > 0
    routed.exchange.finish(CloseCause.RESET)
    assert stage.account.parsed_bytes == 0


async def test_header_processors_see_a_request_once_and_the_end_of_one_lets_the_next_go():
    seen = []
    stage = Busy(header_processors=[header_processor_of(lambda request, state: seen.append(request.id))])
    stage.load = 0.0
    first = stage.route(x_request_id="first")
    stage.load = 1.0
    later = Delivered(stage.wait(x_request_id="second"))
    await asyncio.sleep(0)
    assert not later.results
    stage.load = 0.0
    first.exchange.finish(CloseCause.RESET)
    assert isinstance(await later.result(), Routed)
    assert seen == ["first", "second"]


async def test_the_record_of_a_decision_says_how_long_a_request_waited_and_why():
    from dataclasses import replace

    stage, shown = Busy(), []
    stage.load = 1.25
    watched = replace(stage.pipeline, scheduler=sampled(stage.pipeline.scheduler, lambda: True, shown.append))
    stage.director.switch(watched)
    later = Delivered(stage.wait())
    stage.now += 2.5
    stage.load = 0.0
    stage.room.something_changed()
    await later.result()
    stage.route()
    assert [to_json(record)["waited"] for record in shown] == [{"seconds": 2.5, "saturation": 1.25}, None]


async def test_what_follows_the_wait_may_refuse():
    stage = Busy(candidate_filters=[candidate_filter_of(lambda endpoints: endpoints.take([]))])
    later = Delivered(stage.wait())
    stage.load = 0.0
    stage.room.something_changed()
    assert (await later.result()).reason == "rejected-no-endpoints"
    assert stage.telemetry.refused == [("m", "ServiceUnavailable")]


@pytest.mark.parametrize(("empty", "status", "reason"), [(False, 429, "rejected-ttl-expired"), (True, 503, "rejected-no-endpoints")])
async def test_a_request_whose_time_is_over_is_told_by_the_clock_alone(empty, status, reason):
    stage = Busy()
    if empty:
        stage.table.replace_all(())
    later = Delivered(stage.wait())
    stage.now += 61.0
    told = await later.result()
    assert (told.status, told.reason) == (status, reason)
    assert stage.telemetry.refused == [("m", told.code)]
    assert stage.account.held_bytes == 0


async def test_no_room_is_said_at_once():
    stage = Busy(settings(max_requests=1))
    stage.wait()
    refused = stage.refuse()
    assert (refused.status, refused.reason) == (429, "rejected-saturated")
    assert stage.room.controller.waiting == 1


async def test_a_client_that_leaves_is_gone_from_the_queue_and_the_account_at_once():
    stage = Busy()
    later = stage.wait()
    assert stage.account.held_bytes > 0
    later.cancel()
    later.cancel()
    assert (stage.room.controller.waiting, stage.account.held_bytes) == (0, 0)
    assert [outcome for _, outcome in stage.log.ends] == ["EvictedContextCancelled"]


async def test_a_decision_that_is_awaited_is_the_same_and_cancelling_the_task_leaves():
    stage = Busy()
    task = asyncio.ensure_future(_awaited(stage.wait()))
    await asyncio.sleep(0)
    stage.load = 0.0
    stage.room.something_changed()
    assert isinstance(await task, Routed)
    stage.load = 2.0
    task = asyncio.ensure_future(_awaited(stage.wait()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stage.room.controller.waiting == 0


async def _awaited(later: LaterDecision):
    return await later


async def test_a_client_that_leaves_between_the_decision_and_its_delivery_is_over():
    ended = []
    stage = Busy(observers=[observer_of(response_ended=lambda request, end, state: ended.append(end.cause))])
    later = stage.wait()
    stage.load = 0.0
    stage.room.something_changed()
    await asyncio.sleep(0)
    assert stage.room.controller.waiting == 0
    later.cancel()
    assert [str(cause) for cause in ended] == ["client-disconnect"]
    assert stage.account.held_bytes == 0


async def test_producers_that_wait_are_awaited_when_the_turn_has_come():
    release, begun = asyncio.Event(), asyncio.Event()

    async def produce(request, endpoints, state):
        begun.set()
        await release.wait()

    stage = Busy(producers=[async_producer_of(produce)])
    later = Delivered(stage.wait())
    leaves = stage.wait()
    stage.load = 0.0
    stage.room.something_changed()
    await begun.wait()
    assert not later.results
    leaves.cancel()
    release.set()
    assert isinstance(await later.result(), Routed)


async def test_a_client_that_leaves_before_its_producers_begin_leaves_nothing_that_python_warns_of():
    begun = []

    async def produce(request, endpoints, state):
        begun.append(request)

    stage = Busy(producers=[async_producer_of(produce)])
    leaves = stage.wait()
    stage.load = 0.0
    stage.room.something_changed()
    while leaves._inner is None:  # noqa: ASYNC110 - the turn tells no event
        await asyncio.sleep(0)
    assert not begun
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        leaves.cancel()
        del leaves
        await asyncio.sleep(0)
        gc.collect()
    assert (begun, [str(each.message) for each in warned]) == ([], [])


async def test_endpicks_own_mistake_costs_one_request_and_the_others_go_on(monkeypatch):
    stage = Busy()
    broken, good = Delivered(stage.wait(x_request_id="broken")), Delivered(stage.wait(x_request_id="good"))
    decide = stage.director.decide

    def once(incoming, begun=None):
        if incoming.headers["x-request-id"] == "broken":
            raise RuntimeError("a bug")
        return decide(incoming, begun)

    monkeypatch.setattr(stage.room, "director", type("Fragile", (), {"decide": staticmethod(once), "refuse": stage.director.refuse})())
    stage.load = 0.0
    stage.room.something_changed()
    await broken.come.wait()
    assert [str(error) for error in broken.errors] == ["a bug"]
    assert isinstance(await good.result(), Routed)


async def test_short_of_memory_requests_of_negative_priority_go_first_and_no_new_ones_wait():
    stage = Busy(limit_bytes=100_000)
    batch, normal = Delivered(stage.wait(x_llm_d_inference_objective="batch")), Delivered(stage.wait())
    stage.account.hold_parsed(85_000 - stage.account.held_bytes)
    stage.room.something_changed()
    told = await batch.result()
    assert (told.status, told.reason) == (429, "rejected-overloaded")
    assert not normal.results
    assert isinstance(stage.decide(x_llm_d_inference_objective="batch"), Refused)
    stage.account.hold_parsed(10_000)
    stage.room.something_changed()
    assert (await normal.result()).reason == "rejected-overloaded"


async def test_a_body_that_is_not_understood_never_waits():
    stage = Busy()
    assert stage.refuse(b"{").status == 400
    assert stage.refuse({**CHAT, "model": ""}).status == 400
    assert stage.room.controller.waiting == 0


@pytest.fixture
def nothing_kept(monkeypatch):
    monkeypatch.setattr("endpick.requests.waiting.KEPT_PARSED_BYTES", 0)


async def test_what_bodies_became_is_given_up_where_many_wait_and_is_there_again_when_the_turn_comes(nothing_kept):
    routed_with = []
    look = plugin_of(PreRequest, "look", before_request=lambda request, *_: routed_with.append(request))
    stage = Busy(pre_request=[look])
    later = stage.wait(x_request_id="one")
    (entry,) = next(iter(stage.room.controller.bands)).entries()
    assert entry.request is later.built.request
    assert (entry.request.payload, entry.request.model, entry.request.id, entry.request.size_bytes) == (None, "m", "one", 66)
    assert entry.request.prompt.texts == (b"".join(entry.request.prompt.pieces[0]),) == (b"userHello",)
    assert (entry.request.prompt.media, entry.request.prompt.estimated_tokens) == ((), 3)
    assert stage.account.held_bytes == 0
    told = Delivered(later)
    stage.load = 0.0
    stage.room.something_changed()
    assert isinstance(await told.result(), Routed)
    assert [(request.payload, request.prompt.texts) for request in routed_with] == [(CHAT, (b"userHello",))]


async def test_a_parser_that_fails_the_second_time_has_the_request_refused(nothing_kept):
    answers = [ParsedRequest(model="m", payload={"model": "m"}), RuntimeError("broken"), RuntimeError("broken")]

    def parse(path, headers, body):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    stage = Busy(parsers=[parser_of("fickle", parse=parse)])
    later = stage.wait()
    (entry,) = next(iter(stage.room.controller.bands)).entries()
    assert entry.request.prompt.texts == ()
    told = Delivered(later)
    stage.load = 0.0
    stage.room.something_changed()
    refused = await told.result()
    assert (refused.status, refused.message) == (500, "plugin 'fickle' failed")


async def test_a_parser_that_may_be_skipped_and_fails_the_second_time_leaves_the_body_unread(nothing_kept):
    answers, records = [ParsedRequest(model="m", payload={"model": "m"})], []
    stage = Busy(parsers=[parser_of("fickle", on_fault=OnFault.SKIP, parse=lambda path, headers, body: answers.pop())])
    pipeline = replace(stage.pipeline, scheduler=sampled(stage.pipeline.scheduler, lambda: True, records.append))
    stage.director.switch(pipeline)
    told = Delivered(stage.wait())
    stage.load = 0.0
    stage.room.something_changed()
    assert isinstance(await told.result(), Routed)
    assert [(record.model, record.unread) for record in records] == [("m", "plugin 'fickle' failed: IndexError: pop from empty list")]


async def test_what_bodies_became_is_kept_while_little_waits():
    stage = Busy()
    later = stage.wait()
    (entry,) = next(iter(stage.room.controller.bands)).entries()
    assert entry.request.payload == CHAT
    assert stage.account.parsed_bytes == stage.room.parsed_bytes > 0
    later.cancel()
    assert stage.account.parsed_bytes == stage.room.parsed_bytes == 0
