"""Plugins that fail again and again, or hold the event loop, in a real `endpick serve`."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from integration.plugins.serving import serving

pytestmark = pytest.mark.long

FIRST, LAST = "127.0.0.1:1", "127.0.0.1:2"
SUSPECT = ("plugin_name", "suspect")


async def state_of_suspect(picker) -> float:
    (state,) = [value for labels, value in (await picker.samples("endpick_plugin_circuit_state")).items() if SUSPECT in labels]
    return state


@pytest.mark.asyncio
async def test_circuit_of_a_failing_scorer_opens_and_closes(fixture_project, folder):
    options = ("--circuit-faults=4", "--circuit-cool-down=1s")
    async with serving(folder("faulty.raises"), *options, path=[fixture_project("faulty-scorers")]) as picker:
        assert await state_of_suspect(picker) == 0
        assert {await picker.ask() for _ in range(10)} == {(LAST, 0)}

        assert sum((await picker.samples("endpick_plugin_faults_total")).values()) == 4
        assert sum((await picker.samples("endpick_plugin_left_out_total")).values()) == 6
        assert await state_of_suspect(picker) == 2
        status, text = await picker.health()
        assert (status, text.splitlines()[0]) == (200, "ok")
        assert "suspect (faulty.raises, faulty-scorers 2.3) is left out for" in text
        (event,) = await picker.logged("is left out for 1 s")
        assert str(event["event"]).endswith("requests are decided without it meanwhile: 4 of 4 calls failed")

        async with asyncio.timeout(20):
            while not [event for event in picker.events if "left out for 2 s" in str(event["event"])]:
                await picker.ask()
                await asyncio.sleep(0.05)
        assert len(await picker.logged("is called again, after it was left out because 4 of 4 calls failed")) == 1
        assert sum((await picker.samples("endpick_plugin_faults_total")).values()) == 5


@pytest.mark.asyncio
async def test_a_scorer_that_holds_the_event_loop_is_left_out(fixture_project, folder):
    async with serving(folder("faulty.slow"), "--circuit-cool-down=60s", path=[fixture_project("faulty-scorers")]) as picker:
        answers = [await picker.ask() for _ in range(6)]
        assert answers == [(FIRST, 0)] * 3 + [(LAST, 0)] * 3, "what a late call answers counts"
        assert sum((await picker.samples("endpick_plugin_late_calls_total")).values()) == 3
        (event,) = await picker.logged("longer than --plugin-time-budget")
        assert "blocked the event loop for" in str(event["event"])


@pytest.mark.asyncio
async def test_a_plugin_with_a_larger_budget_is_not_late(fixture_project, folder):
    options = ("--plugin-time-budget=20s",)
    async with serving(folder("faulty.slow"), *options, path=[fixture_project("faulty-scorers")]) as picker:
        assert {await picker.ask() for _ in range(6)} == {(FIRST, 0)}
        assert await picker.samples("endpick_plugin_late_calls_total") == {}


@pytest.mark.asyncio
async def test_blocked_loop_is_logged_and_fails_health(fixture_project, folder):
    async with serving(folder("faulty.slow"), "--stall-limit=500ms", path=[fixture_project("faulty-scorers")]) as picker:
        assert await picker.ask(model="stall:0.8") == (FIRST, 0)
        status, text = await picker.health()
        stood_still = re.fullmatch(r"the event loop stood still for (\d+\.\d) s\n", text)
        assert (status, float(stood_still[1]) >= 0.8) == (503, True), "longer where another process had the processor"
        during, *_ = await picker.logged("plugin 'suspect' (faulty_scorers.Slow) runs Slow.score in")
        assert "the event loop has stood still for" in str(during["event"])
        assert "time.sleep(" in str(during["event"])
        assert sum((await picker.samples("endpick_loop_stalls_total")).values()) >= 1
        async with asyncio.timeout(20):
            while (await picker.health())[0] != 200:  # noqa: ASYNC110 - told by another process
                await asyncio.sleep(0.05)


@pytest.mark.asyncio
async def test_doctor_asks_a_serving_process(fixture_project, folder, run_cli):
    options = ("--circuit-faults=1", "--circuit-cool-down=60s")
    async with serving(folder("faulty.raises"), *options, path=[fixture_project("faulty-scorers")]) as picker:
        url = f"http://127.0.0.1:{picker.metrics_port}"
        well = await asyncio.to_thread(run_cli, "doctor", "--strict", "--serving", url)
        await picker.ask()
        ill = await asyncio.to_thread(run_cli, "doctor", "--strict", "--serving", url)
        told = json.loads((await asyncio.to_thread(run_cli, "doctor", "--serving", url, "--format", "json")).stdout)
    gone = await asyncio.to_thread(run_cli, "doctor", "--strict", "--serving", url)

    assert (well.exit_code, ill.exit_code, gone.exit_code) == (0, 5, 5)
    assert f"{url} is ready\n" in well.stdout
    assert "suspect (faulty.raises, faulty-scorers 2.3) is left out for" in ill.stdout
    assert told["serving"]["ready"] is True
    assert len(told["serving"]["remarks"]) == 1
    assert f"{url} is not ready\nno answer from {url}: " in gone.stdout
