"""A reload replaces the deployment or leaves it as it is; at the end every instance has been stopped once."""

from __future__ import annotations

import asyncio
import threading

import pytest
import pytest_asyncio

from endpick.api import Endpoint, PluginContext
from endpick.data.collection import CollectionLoop
from endpick.diagnostics import Code, Diagnostic
from endpick.engine import picker, reloads
from endpick.engine.building import build_plan
from endpick.engine.instances import StartRefused, start_instances
from endpick.engine.reload_log import Trigger
from endpick.host.planning.plan import PlanOutcome
from endpick.serve.process import serve
from endpick.serve.settings import Control, ServeSettings
from endpick.serve.watched_file import WatchedFile
from endpick.transport.listener import ListenSettings
from unit.engine.recorded_process import SERVING, STOPPED, Process, RecordingScorer, Waiting, planned


@pytest_asyncio.fixture
async def process() -> Process:
    return await Process.begun(planned())


@pytest.mark.asyncio
@pytest.mark.parametrize("stop", ["", "fail", "exit"])
async def test_a_refusal_stands_even_if_a_fresh_instance_does_not_stop(process, caplog, monkeypatch, stop):
    def broken(*_):
        raise RuntimeError("cannot be bound")

    monkeypatch.setattr(picker, "compile_plan", broken)
    assert not await process.reload(planned("refused", stop=stop))

    assert process.serving == SERVING
    assert STOPPED == {"refused": 1}
    assert "cannot be bound" in caplog.text
    assert ("did not stop" in caplog.text) == bool(stop)
    await process.picker.stop()
    assert STOPPED == {"refused": 1, SERVING: 1}


@pytest.mark.asyncio
@pytest.mark.parametrize("start", ["fail", "exit"])
async def test_an_instance_that_does_not_start_refuses_the_reload(process, start):
    assert not await process.reload(planned("unwilling", start=start))

    assert process.serving == SERVING
    await process.picker.stop()
    assert STOPPED == {SERVING: 1}


@pytest.mark.asyncio
async def test_what_does_not_start_is_reported_at_its_place():
    Waiting.begun = asyncio.Event()
    for start, code in (("fail", Code.E0706), ("endless", Code.E0703)):
        instances = build_plan(planned("late", start=start), lambda _: PluginContext())
        with pytest.raises(StartRefused) as refusal:
            await start_instances(instances.values(), timeout_seconds=0.01)
        (found,) = refusal.value.diagnostics
        assert (found.code, found.plugin.instance, found.span.line) == (code, "late", 5)


@pytest.mark.asyncio
async def test_a_failing_replan_refuses_the_reload(process, caplog):
    def without_room() -> PlanOutcome:
        raise OSError(28, "No space left on device")

    assert not await process.replan(without_room)

    assert "a reload failed: OSError: [Errno 28] No space left on device; the old configuration serves" in caplog.text
    assert process.serving == SERVING
    await process.picker.stop()


@pytest.mark.asyncio
async def test_planning_that_does_not_end_refuses_the_reload(process, caplog, monkeypatch):
    may_end = threading.Event()
    monkeypatch.setattr(reloads, "PLANNING_SECONDS", 0.0)

    assert not await process.replan(lambda: PlanOutcome(planned("late") if may_end.wait(20) else None))
    assert "are not loaded within 0 s; the old configuration serves" in caplog.text
    may_end.set()
    assert process.serving == SERVING
    await process.picker.stop()


@pytest.mark.asyncio
async def test_every_mistake_of_a_refused_configuration_is_logged(process, caplog):
    mistakes = tuple(Diagnostic(Code.E0501, f"mistake {number}") for number in range(3))

    assert not await process.replan(lambda: PlanOutcome(None, mistakes))
    assert [f"mistake {number}" in caplog.text for number in range(3)] == [True] * 3
    await process.picker.stop()


@pytest.mark.asyncio
async def test_instances_hear_of_removed_endpoints_despite_faults(process, monkeypatch):
    heard = []

    def endpoint_removed(scorer, name):
        heard.append(name)
        raise RuntimeError("fault")

    monkeypatch.setattr(RecordingScorer, "endpoint_removed", endpoint_removed, raising=False)
    table = process.picker.table
    table.replace_all([Endpoint(f"e{number}", "10.0.0.1", number + 1) for number in range(3)])
    table.replace_all([])
    assert sorted(heard) == ["e0", "e1", "e2"]
    await process.picker.stop()


@pytest.mark.asyncio
async def test_the_end_during_a_reload_leaves_nothing_running(process):
    reloading = asyncio.ensure_future(process.reload(planned("late", start="endless")))
    await Waiting.begun.wait()
    reloading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reloading
    await process.picker.stop()

    assert process.serving == SERVING
    assert STOPPED == {SERVING: 1}


@pytest.mark.asyncio
async def test_the_end_between_two_pipelines_stops_all_instances(process, monkeypatch):
    stop, stopping = CollectionLoop.stop, asyncio.Event()

    async def endless(loop):
        stopping.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(CollectionLoop, "stop", endless)
    reloading = asyncio.ensure_future(process.reload(planned("second")))
    await stopping.wait()
    reloading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reloading
    monkeypatch.setattr(CollectionLoop, "stop", stop)
    await process.picker.stop()

    assert STOPPED == {"second": 1, SERVING: 1}


@pytest.mark.asyncio
async def test_draining_instances_are_stopped_at_the_end(process):
    assert await process.reload(planned("second"))
    assert not STOPPED
    await process.picker.stop()

    assert STOPPED == {SERVING: 1, "second": 1}


@pytest.mark.asyncio
async def test_instances_already_stopping_are_stopped_once():
    process = await Process.begun(planned(stop="slow"), finish_timeout_seconds=0)
    assert await process.reload(planned("second"))
    await Waiting.begun.wait()
    await process.picker.stop()

    assert STOPPED == {SERVING: 1, "second": 1}


@pytest.mark.asyncio
async def test_the_end_stops_every_instance_and_reports_failures(process, monkeypatch):
    assert await process.reload(planned("second", stop="fail"))

    async def failing(loop):
        raise OSError("the table is on fire")

    stop = CollectionLoop.stop
    monkeypatch.setattr(CollectionLoop, "stop", failing)
    with pytest.raises(ExceptionGroup) as group:
        await process.picker.stop()

    assert STOPPED == {SERVING: 1, "second": 1}
    assert [str(each) for each in group.value.exceptions] == [
        "while stopping the CollectionLoop: OSError: the table is on fire",
        "while stopping second (test.recording, tests 1.0): RuntimeError: cannot let go",
    ]
    await stop(process.picker._collection)


@pytest.mark.asyncio
async def test_a_change_during_the_first_read_is_noticed(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("first")
    watched = WatchedFile.now(path)
    path.write_text("second, longer")
    changed = asyncio.Event()
    watching = asyncio.ensure_future(watched.watch(changed.set))
    await asyncio.wait_for(changed.wait(), 10)
    watching.cancel()


@pytest.mark.asyncio
async def test_a_reload_requested_while_the_picker_starts_follows_the_start():
    Waiting.begun = asyncio.Event()
    loop, order = asyncio.get_running_loop(), []

    def replan():
        order.append("replan")
        loop.call_soon_threadsafe(control.stop.set)
        return PlanOutcome(planned("second"))

    control = Control(replan)
    port = ListenSettings("127.0.0.1", 0)
    settings = ServeSettings(port, port, metrics_host="127.0.0.1", metrics_port=0, drain_timeout_seconds=0.0)
    serving = asyncio.create_task(serve(planned(start="slow"), settings, control, lambda _: order.append("started")))
    await asyncio.wait_for(Waiting.begun.wait(), 10)
    control.request_reload(Trigger.SIGNAL)
    await asyncio.wait_for(serving, 20)

    assert order == ["started", "replan"]
