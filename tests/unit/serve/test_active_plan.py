"""A reload replaces what serves or leaves it as it is, and at the end every instance has been stopped, once."""

from __future__ import annotations

import asyncio
import itertools
import threading

import pytest
import pytest_asyncio

from endpick.api import Endpoint
from endpick.config import load_config
from endpick.data.collection import CollectionLoop
from endpick.host.discovery import discover
from endpick.host.planning.plan import Plan, PlanOutcome
from endpick.host.planning.planner import make_plan
from endpick.serve import active_plan
from endpick.serve import deployment as deployment_module
from endpick.serve.active_plan import MOST_PLANNING, WatchedFile, reload_once
from endpick.serve.deployment import deploy
from unit.serve.recorded_process import SERVING, STOPPED, Process, RecordingScorer, Waiting, offered, planned


@pytest_asyncio.fixture
async def process() -> Process:
    return await Process.begun(planned())


@pytest.mark.asyncio
@pytest.mark.parametrize("stop", ["", "fail", "cancel", "exit"])
async def test_a_veto_stands_also_when_a_fresh_instance_does_not_stop(process, caplog, stop):
    assert not await process.reload(planned("vetoed", stop=stop))

    assert process.serving == SERVING
    assert STOPPED == {"vetoed": 1}
    assert "not on a Friday" in caplog.text
    assert ("did not stop" in caplog.text) == bool(stop)
    await process.active.end()
    assert STOPPED == {"vetoed": 1, SERVING: 1}


@pytest.mark.asyncio
@pytest.mark.parametrize("start", ["fail", "cancel", "exit"])
async def test_an_instance_that_does_not_start_refuses_the_reload_and_no_more(process, start):
    assert not await process.reload(planned("unwilling", start=start))

    assert process.serving == SERVING
    await process.active.end()
    assert STOPPED == {SERVING: 1}


def plan_of_many(count: int, salt: str = "") -> Plan:
    """A plan with so many recording scorers, of which one is used, and a warning of each of the others."""
    instances = "".join(f"- {{type: test.recording, name: i{number}{salt}}}\n" for number in range(count))
    text = f"""\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
- {{type: test.ready}}
{instances}schedulingProfiles: [{{name: default, plugins: [{{pluginRef: i0{salt}}}]}}]
dataLayer: {{discovery: {{pluginRef: test.ready}}}}
"""
    plugins = (*discover(), offered("test.recording", "RecordingScorer"), offered("test.ready", "ReadyDiscovery"))
    outcome = make_plan(load_config(text=text), plugins)
    assert outcome.plan is not None, outcome.diagnostics
    return outcome.plan


@pytest.mark.asyncio
async def test_what_a_reload_leaves_behind_is_asked_what_it_has_learnt_until_it_is_stopped(process):
    for name in ("second", "third"):
        assert await process.reload(planned(name))
    assert [instance.name for instance in process.active.all_instances()].count("test.ready") == 1
    assert {SERVING, "second", "third"} < {instance.name for instance in process.active.all_instances()}
    assert SERVING not in {instance.name for instance in process.active.instances()}
    await process.active.end()
    assert {SERVING, "second"}.isdisjoint(instance.name for instance in process.active.all_instances())


@pytest.mark.asyncio
async def test_an_instance_that_blocks_at_each_endpoint_that_leaves_is_left_out(process, monkeypatch):
    heard = []
    seconds = itertools.count()
    monkeypatch.setattr("endpick.serve.active_plan.perf_counter", lambda: float(next(seconds)))
    monkeypatch.setattr(RecordingScorer, "endpoint_removed", lambda scorer, name: heard.append(name), raising=False)
    table = process.runtime.table
    table.replace_all([Endpoint(f"e{number}", "10.0.0.1", number + 1) for number in range(10)])
    table.replace_all([])
    assert len(heard) == 3
    await process.active.end()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (OSError(28, "No space left on device"), "a reload failed: [Errno 28] No space left on device; the old configuration serves\n"),
        (MemoryError("none left"), "a reload failed; the old configuration serves\nTraceback"),
    ],
)
async def test_what_keeps_a_configuration_from_being_read_refuses_the_reload_and_no_more(process, caplog, problem, told):
    def without_room() -> PlanOutcome:
        raise problem

    assert not await reload_once(process.active, process.runtime, process.plan.hooks, without_room)

    assert told in caplog.text
    assert process.serving == SERVING
    await process.active.end()


@pytest.mark.asyncio
async def test_a_plan_that_does_not_end_is_given_up_and_the_next_one_serves_until_there_are_too_many(process, caplog, monkeypatch):
    may_end = threading.Event()

    def endless() -> PlanOutcome:
        may_end.wait(20)
        return PlanOutcome(planned("late"))

    monkeypatch.setattr(active_plan, "PLANNING_SECONDS", 0.0)
    for number in range(1, MOST_PLANNING + 1):
        assert not await reload_once(process.active, process.runtime, process.plan.hooks, endless)
        assert caplog.text.count("a reload was given up") == number
    monkeypatch.setattr(active_plan, "PLANNING_SECONDS", 60.0)
    assert not await process.reload(planned("new"))
    assert "a reload was not begun" in caplog.text
    may_end.set()
    while process.active.planning:  # noqa: ASYNC110 - threads end
        await asyncio.sleep(0)
    assert process.serving == SERVING
    assert await process.reload(planned("new"))
    assert process.serving == "new"
    await process.active.end()


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["hook-fail", "hook-cancel", "hook-exit"])
async def test_a_hook_object_that_fails_refuses_the_reload_and_no_more(process, name):
    assert not await process.reload(planned(name))

    assert process.serving == SERVING
    assert {name: 1} == STOPPED
    await process.active.end()


@pytest.mark.asyncio
async def test_the_end_in_the_middle_of_a_reload_leaves_nothing_running(process):
    reloading = asyncio.ensure_future(process.reload(planned("endless")))
    await Waiting.begun.wait()
    reloading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reloading
    await process.active.end()

    assert STOPPED == {"endless": 1, SERVING: 1}


@pytest.mark.asyncio
async def test_the_end_between_two_pipelines_stops_the_instances_of_both(process, monkeypatch):
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
    await process.active.end()

    assert STOPPED == {"second": 1, SERVING: 1}


@pytest.mark.asyncio
async def test_instances_left_behind_that_still_drain_are_stopped_at_the_end(process):
    assert await process.reload(planned("second"))
    assert not STOPPED
    await process.active.end()

    assert STOPPED == {SERVING: 1, "second": 1}


@pytest.mark.asyncio
async def test_instances_that_are_being_stopped_at_the_end_are_stopped_once():
    process = await Process.begun(planned(stop="slow"), finish_timeout_seconds=0)
    assert await process.reload(planned("second"))
    await Waiting.begun.wait()
    await process.active.end()

    assert STOPPED == {SERVING: 1, "second": 1}


@pytest.mark.asyncio
async def test_the_end_stops_every_instance_and_tells_all_that_failed(process, monkeypatch):
    assert await process.reload(planned("second", stop="fail"))

    async def failing(loop):
        raise OSError("the table is on fire")

    stop = CollectionLoop.stop
    monkeypatch.setattr(CollectionLoop, "stop", failing)
    with pytest.raises(ExceptionGroup) as group:
        await process.active.end()

    assert STOPPED == {SERVING: 1, "second": 1}
    assert [str(each) for each in group.value.exceptions] == [
        "while stopping the CollectionLoop: OSError: the table is on fire",
        "while stopping second (test.recording, tests 1.0): RuntimeError: cannot let go",
    ]
    await stop(process.active._collection)


@pytest.mark.asyncio
async def test_instances_are_stopped_when_no_pipeline_can_be_made_of_them(process, monkeypatch):
    def broken(*_):
        raise RuntimeError("cannot be bound")

    monkeypatch.setattr(deployment_module, "compile_plan", broken)
    with pytest.raises(RuntimeError, match="cannot be bound"):
        await deploy(planned("second"), process.runtime, process.active.deployment)

    assert STOPPED == {"second": 1}
    await process.active.end()


@pytest.mark.asyncio
async def test_a_change_between_the_first_reading_and_the_watch_is_noticed(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("first")
    watched = WatchedFile.as_it_is(path)
    path.write_text("second, longer")
    changed = asyncio.Event()
    watching = asyncio.ensure_future(watched.watch(changed.set))
    await asyncio.wait_for(changed.wait(), 10)
    watching.cancel()
