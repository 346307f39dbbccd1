"""Hook objects of a real distribution in a serving process: when each hook is called, and that none can harm the data plane."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from itertools import groupby
from pathlib import Path

import jsonschema
import pytest
from referencing import Registry

from integration.plugins.serving import serving

pytestmark = pytest.mark.long

ENDPOINTS = '{"endpoints": [{"name": "a", "address": "127.0.0.1", "port": "1"}, {"name": "b", "address": "127.0.0.1", "port": "2"}]}'
CONFIG = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
  - {{name: pool, type: file-discovery, parameters: {{path: endpoints.yaml}}}}
  - {{name: queue, type: queue-scorer}}
  - {{name: best, type: max-score-picker}}
schedulingProfiles:
  - name: {profile}
    plugins:
      - {{pluginRef: queue, weight: 2}}
      - pluginRef: best
dataLayer:
  discovery: {{endpoints: {{pluginRef: pool}}}}
hooks: [{hooks}]
"""
SCHEMA = Path(__file__).parents[3] / "schemas" / "decision.v2.json"
ALL = "--decision-sampling=1"
RECORDED, SHOWN, DROPPED = ((("event", event),) for event in ("recorded", "shown", "dropped"))


@pytest.fixture
def folder(tmp_path):
    """`folder("hooks.sleepy", …)`: where to serve a configuration that names these hook objects."""

    def write(*hooks, profile="default"):
        (tmp_path / "endpoints.yaml").write_text(ENDPOINTS)
        (tmp_path / "config.yaml").write_text(CONFIG.format(profile=profile, hooks=", ".join(f"{{name: {name}}}" for name in hooks)))
        return tmp_path

    return write


def traced(folder: Path) -> list[dict[str, object]]:
    trace = folder / "trace.jsonl"
    return [json.loads(line) for line in trace.read_text().splitlines()] if trace.exists() else []


async def until_shown(picker, count: int) -> None:
    async with asyncio.timeout(20):
        while (await picker.samples("endpick_decision_records_total")).get(SHOWN) != count:  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.02)


@pytest.mark.asyncio
async def test_every_hook_is_called_in_the_documented_order(fixture_project, folder):
    where = folder("hooks.everything")
    async with serving(where, ALL, path=[fixture_project("hook-objects")]) as picker:
        await picker.ask(request_id="first")
        await until_shown(picker, 1)
        folder("hooks.everything", profile="renamed")
        picker.reload()
        await picker.logged("configuration replaced")
        await picker.ask(request_id="second")

    calls = traced(where)
    assert [hook for hook, _ in groupby(call["hook"] for call in calls)] == [
        *("register", "plugin_loaded", "validate", "configure", "startup", "decision"),
        *("register", "plugin_loaded", "validate", "config_reload", "decision", "shutdown"),
    ]
    loaded = Counter(call["type"] for call in calls if call["hook"] == "plugin_loaded")
    assert {"file-discovery", "queue-scorer", "max-score-picker", "single-profile-handler"} <= loaded.keys()
    assert set(loaded.values()) == {2}, "once for each plan"
    (started,) = [call for call in calls if call["hook"] == "startup"]
    assert {"pool", "queue", "best"} <= set(started["instances"])
    assert {"hook": "config_reload", "profiles": [["default"], ["renamed"]]} in calls


@pytest.mark.asyncio
async def test_a_decision_record_tells_what_every_plugin_said(fixture_project, folder):
    where = folder("hooks.everything")
    async with serving(where, ALL, path=[fixture_project("hook-objects")]) as picker:
        destination, _ = await picker.ask(request_id="abc")
        await until_shown(picker, 1)

    (record,) = [call["record"] for call in traced(where) if call["hook"] == "decision"]
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()), registry=Registry()).validate(record)
    assert (record["id"], record["model"], record["destinations"][0]) == ("abc", "m", destination)
    assert [endpoint["name"] for endpoint in record["endpoints"]] == ["default/a", "default/b"]
    (run,) = record["runs"]
    assert (run["profile"], run["picker"], run["candidates"]) == ("default", "best", ["default/a", "default/b"])
    (scorer,) = run["scorers"]
    assert (scorer["instance"], scorer["type"], scorer["weight"]) == ("queue", "queue-scorer", 2.0)


@pytest.mark.asyncio
async def test_failing_observer_is_logged_once(fixture_project, folder):
    where = folder("hooks.faulty-observer", "hooks.everything")
    async with serving(where, ALL, path=[fixture_project("hook-objects")]) as picker:
        assert {status for _, status in [await picker.ask() for _ in range(5)]} == {0}
        await until_shown(picker, 5)

    assert [call["hook"] for call in traced(where)].count("decision") == 5
    (event,) = [event for event in picker.events if "cannot watch" in str(event["event"])]
    assert "the hook object 'hooks.faulty-observer' from hook-objects 1.0 failed in endpick_decision" in event["event"]


@pytest.mark.asyncio
async def test_a_failing_observer_is_counted_and_stops_no_other(fixture_project, folder):
    where = folder("hooks.quitter", "hooks.everything")
    async with serving(where, ALL, path=[fixture_project("hook-objects")]) as picker:
        assert {status for _, status in [await picker.ask() for _ in range(10)]} == {0}
        await until_shown(picker, 10)
        labels = (("hook", "endpick_decision"), ("hook_object", "hooks.quitter"), ("reason", "SystemExit"))
        assert await picker.samples("endpick_hook_faults_total") == {labels: 10}
        assert len(await picker.logged("failed in endpick_decision")) == 1
    assert [call["hook"] for call in traced(where)].count("decision") >= 10


@pytest.mark.asyncio
async def test_health_names_a_hook_object_that_does_not_return(fixture_project, folder):
    async with serving(folder("hooks.sleepy"), ALL, path=[fixture_project("hook-objects")]) as picker:
        await picker.ask()
        async with asyncio.timeout(20):
            while "'hooks.sleepy' from hook-objects 1.0 has not returned from" not in (await picker.health())[1]:  # noqa: ASYNC110 - told by another process
                await asyncio.sleep(0.05)
        assert (await picker.health())[0] == 200


@pytest.mark.asyncio
async def test_hanging_observer_blocks_neither_requests_nor_exit(fixture_project, folder):
    where = folder("hooks.sleepy")
    async with serving(where, ALL, path=[fixture_project("hook-objects")]) as picker:
        answers = [await picker.ask() for _ in range(300)]
        counts = await picker.samples("endpick_decision_records_total")

    assert {status for _, status in answers} == {0}
    assert counts == {RECORDED: 300, SHOWN: 0, DROPPED: 300 - 256 - 1}, "one hangs, 256 wait"
    assert any("a hook object does not return from endpick_decision" in str(event["event"]) for event in picker.events)


@pytest.mark.asyncio
async def test_decisions_are_recorded_only_if_watched(fixture_project, folder):
    async with serving(folder("hooks.everything"), "--decision-sampling=0", path=[fixture_project("hook-objects")]) as picker:
        await picker.ask()
    async with serving(folder("hooks.module"), ALL, path=[fixture_project("hook-objects")]) as unwatched:
        await unwatched.ask()
        assert await unwatched.samples("endpick_decision_records_total") == {RECORDED: 1, SHOWN: 0, DROPPED: 0}

    assert "decision" not in [call["hook"] for call in traced(folder("hooks.everything"))]


@pytest.mark.asyncio
async def test_hook_object_can_veto_a_reload(fixture_project, folder):
    where = folder("hooks.rules")
    async with serving(where, path=[fixture_project("hook-objects")]) as picker:
        folder("hooks.rules", profile="renamed")
        picker.reload()
        await picker.logged("configuration refused; the old one keeps serving")

        assert (await picker.ask())[1] == 0
        outcomes = await picker.samples("endpick_config_reloads_total")
        assert outcomes == {(("outcome", "refused"),): 1, (("outcome", "applied"),): 0, (("outcome", "unchanged"),): 0}

    (veto,) = [event for event in picker.events if event.get("code") == "E0707"]
    assert "the house does not change its profiles during office hours" in veto["event"]
    assert veto["place"].startswith("config.yaml:14:")


@pytest.mark.asyncio
async def test_failing_hook_metrics_leave_the_rest_of_the_page(fixture_project, folder):
    async with serving(folder("hooks.uncountable"), ALL, path=[fixture_project("hook-objects")]) as picker:
        assert (await picker.ask())[1] == 0
        assert sum((await picker.samples("endpick_plugin_info")).values()) > 3
        await picker.logged("metrics of hook objects are left out")
