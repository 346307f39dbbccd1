"""Hook objects of an installed distribution in a serving process: when each hook is called, and that none can harm the data plane."""

from __future__ import annotations

import asyncio
import json
import sysconfig
from itertools import groupby
from pathlib import Path

import aiohttp
import jsonschema
import pytest
from referencing import Registry

from installing import make_venv, pip_install
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
"""
SCHEMA = Path(__file__).parents[3] / "schemas" / "decision.v2.json"
ALL = "--decision-sampling=1"
RECORDED, SHOWN, DROPPED = ((("event", event),) for event in ("recorded", "shown", "dropped"))


@pytest.fixture
def folder(tmp_path):
    """`folder()`: where to serve a configuration."""

    def write(profile="default"):
        (tmp_path / "endpoints.yaml").write_text(ENDPOINTS)
        (tmp_path / "config.yaml").write_text(CONFIG.format(profile=profile))
        return tmp_path

    return write


def traced(folder: Path) -> list[dict[str, object]]:
    trace = folder / "trace.jsonl"
    return [json.loads(line) for line in trace.read_text().splitlines()] if trace.exists() else []


async def page(picker, path: str) -> tuple[int, object]:
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{picker.metrics_port}{path}") as response:
        return response.status, await response.json()


async def until_shown(picker, count: int) -> None:
    async with asyncio.timeout(20):
        while (await picker.samples("endpick_decision_records_total")).get(SHOWN) != count:  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.02)


async def follow_a_life(picker, folder) -> None:
    """Decide, reload, decide."""
    await picker.ask(request_id="first")
    await until_shown(picker, 1)
    folder(profile="renamed")
    picker.reload()
    await picker.logged("configuration replaced")
    await picker.ask(request_id="second")
    await until_shown(picker, 2)


LIFE = ["validate", "configure", "admin_pages", "started", "decided", "validate", "reloaded", "decided", "stopping"]


@pytest.mark.asyncio
async def test_every_hook_is_called_in_the_documented_order(installed_hooks, folder):
    where = folder()
    async with serving(where, ALL, path=installed_hooks("hooks.everything")) as picker:
        await follow_a_life(picker, folder)

    calls = traced(where)
    assert [hook for hook, _ in groupby(call["hook"] for call in calls)] == LIFE
    (started,) = [call for call in calls if call["hook"] == "started"]
    assert {"pool", "queue", "best"} <= set(started["instances"])
    assert {"hook": "reloaded", "profiles": ["renamed"]} in calls
    assert {"hook": "stopping", "profiles": ["renamed"]} in calls


@pytest.mark.asyncio
async def test_installed_distribution_works_without_configuration(folder, run_cli, tmp_path):
    source, where = tmp_path / "watchers", folder()
    source.mkdir()
    (source / "watchers.py").write_text((Path(__file__).parents[2] / "fixtures/plugins/hook-objects/hook_objects/watching.py").read_text())
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "watchers"\nversion = "1.0"\n'
        '[project.entry-points."endpick.hooks.v1"]\n"hooks.everything" = "watchers:Everything"\n"hooks.wrapping" = "watchers:Around"\n'
        '[tool.hatch.build.targets.wheel]\nonly-include = ["watchers.py"]\n'
    )
    python = make_venv(tmp_path / "venv", [Path(sysconfig.get_path("purelib"))])
    pip_install(python, source)

    async with serving(where, ALL, python=python) as picker:
        await follow_a_life(picker, folder)
        (status, shown), (_, described) = await page(picker, "/hooks/trace"), await page(picker, "/openapi.json")
        (_, stolen) = await page(picker, "/config")

    hooks = [call["hook"] for call in traced(where)]
    assert [hook for hook, _ in groupby(hooks) if not hook.startswith("around")] == LIFE
    assert hooks[hooks.index("decided") - 1 : hooks.index("decided") + 2] == ["around begins", "decided", "around ends"]
    assert (status, shown["calls"] > 5) == (200, True)
    assert described["paths"]["/hooks/trace"]["get"]["summary"] == "What has been called."
    assert "stolen" not in stolen
    assert len([event for event in picker.events if "cannot add the page" in str(event["event"])]) == 2
    examined = run_cli("doctor", python=python, path=[])
    assert "error[E0811]: the moon is missing" in examined.stdout
    assert "hooks.wrapping" in examined.stdout


@pytest.mark.asyncio
async def test_a_decision_record_tells_what_every_plugin_said(installed_hooks, folder):
    where = folder()
    async with serving(where, ALL, path=installed_hooks("hooks.everything")) as picker:
        destination, _ = await picker.ask(request_id="abc")
        await until_shown(picker, 1)

    (record,) = [call["record"] for call in traced(where) if call["hook"] == "decided"]
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()), registry=Registry()).validate(record)
    assert (record["id"], record["model"], record["destinations"][0]) == ("abc", "m", destination)
    assert [endpoint["name"] for endpoint in record["endpoints"]] == ["default/a", "default/b"]
    (run,) = record["runs"]
    assert (run["profile"], run["picker"], run["candidates"]) == ("default", "best", ["default/a", "default/b"])
    (scorer,) = run["scorers"]
    assert (scorer["instance"], scorer["type"], scorer["weight"]) == ("queue", "queue-scorer", 2.0)


@pytest.mark.asyncio
async def test_failures_are_logged_once_counted_and_stop_no_other(installed_hooks, folder):
    where = folder()
    async with serving(where, ALL, path=installed_hooks("hooks.faulty-observer", "hooks.quitter", "hooks.everything")) as picker:
        assert {status for _, status in [await picker.ask() for _ in range(5)]} == {0}
        await until_shown(picker, 5)
        folder(profile="renamed")
        picker.reload()
        await picker.logged("failed in endpick_reloaded: RuntimeError: cannot follow")
        status, broken = await page(picker, "/hooks/broken")
        counted = await picker.samples("endpick_hook_faults_total")

    assert [call["hook"] for call in traced(where)].count("decided") == 5
    failed = "the hook object 'hooks.faulty-observer' from watchers 1.0 failed in endpick_"
    logged = [event for event in picker.events if failed in str(event["event"])]
    assert [str(event["event"]).removeprefix(failed).partition(":")[0] for event in logged] == [
        "admin_pages",
        "decided",
        "reloaded",
        "stopping",
    ]
    assert [event.get("code") for event in logged] == [None, None, "E0705", "E0704"]
    assert (status, broken) == (500, {"error": f"{failed}admin_pages: SystemExit: cannot answer"})
    assert {(dict(labels)["hook_object"], dict(labels)["hook"], dict(labels)["reason"]): count for labels, count in counted.items()} == {
        ("hooks.faulty-observer", "endpick_admin_pages", "RuntimeError"): 1,
        ("hooks.faulty-observer", "endpick_admin_pages", "SystemExit"): 1,
        ("hooks.faulty-observer", "endpick_decided", "RuntimeError"): 5,
        ("hooks.faulty-observer", "endpick_reloaded", "RuntimeError"): 1,
        ("hooks.quitter", "endpick_decided", "SystemExit"): 5,
    }


@pytest.mark.asyncio
async def test_health_names_a_hook_object_that_does_not_return(installed_hooks, folder):
    async with serving(folder(), ALL, path=installed_hooks("hooks.sleepy")) as picker:
        await picker.ask()
        async with asyncio.timeout(20):
            while "'hooks.sleepy' from watchers 1.0 has not returned from" not in (await picker.health())[1]:  # noqa: ASYNC110 - told by another process
                await asyncio.sleep(0.05)
        assert (await picker.health())[0] == 200


@pytest.mark.asyncio
async def test_hanging_observer_blocks_neither_requests_nor_exit(installed_hooks, folder):
    async with serving(folder(), ALL, path=installed_hooks("hooks.sleepy")) as picker:
        answers = [await picker.ask() for _ in range(300)]
        counts = await picker.samples("endpick_decision_records_total")

    assert {status for _, status in answers} == {0}
    assert counts == {RECORDED: 300, SHOWN: 0, DROPPED: 300 - 256 - 1}, "one hangs, 256 wait"
    assert any("a hook object does not return from endpick_decided" in str(event["event"]) for event in picker.events)


@pytest.mark.asyncio
async def test_decisions_are_recorded_only_if_watched(installed_hooks, folder, tmp_path):
    async with serving(folder(), "--decision-sampling=0", path=installed_hooks("hooks.everything")) as picker:
        await picker.ask()
    async with serving(folder(), ALL) as unwatched:
        await unwatched.ask()
        assert await unwatched.samples("endpick_decision_records_total") == {RECORDED: 1, SHOWN: 0, DROPPED: 0}

    assert "decided" not in [call["hook"] for call in traced(tmp_path)]


@pytest.mark.parametrize(
    ("hook_object", "code", "message"),
    [
        ("hooks.faulty", "E0705", "failed in endpick_validate: RuntimeError: cannot judge"),
        ("hooks.faulty-wrapper", "E0706", "failed in endpick_configure: RuntimeError: cannot wrap"),
    ],
)
def test_failing_hook_object_ends_the_start(installed_hooks, folder, run_cli, hook_object, code, message):
    result = run_cli("serve", "config.yaml", "--metrics-port=0", cwd=folder(), path=installed_hooks(hook_object))

    assert result.exit_code in (4, 5)
    assert f"error[{code}]: the hook object '{hook_object}' from watchers 1.0 {message}" in result.stderr
    assert "faulty.py:" in result.stderr


@pytest.mark.asyncio
async def test_failing_hook_metrics_leave_the_rest_of_the_page(installed_hooks, folder):
    async with serving(folder(), ALL, path=installed_hooks("hooks.uncountable")) as picker:
        assert (await picker.ask())[1] == 0
        assert sum((await picker.samples("endpick_plugin_info")).values()) > 3
        await picker.logged("metrics of hook objects are left out")
        await picker.logged("a filter of the metrics is left out")
