"""A running endpick takes a new configuration, or refuses it and goes on."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable

import pytest

from integration.serve.gateway import PREFIX_AWARE, RANDOM, Gateway, running_gateway, until

LONG_PROMPT = "You are a careful assistant. " * 100
OUTCOMES = "endpick_config_reloads_total"


def events(gateway: Gateway, name: str) -> list[dict[str, object]]:
    lines = gateway.children.named("endpick").output().splitlines()
    return [event for line in lines if line.startswith("{") and (event := json.loads(line))["event"] == name]


async def reload(gateway: Gateway, config: str, outcome: str) -> None:
    before = await gateway.sample(OUTCOMES, {"outcome": outcome})
    (gateway.folder / "config.yaml").write_text(config)
    gateway.children.named("endpick").process.send_signal(signal.SIGHUP)

    async def done() -> bool:
        return await gateway.sample(OUTCOMES, {"outcome": outcome}) == before + 1

    await until(done, f"a reload that is {outcome}")


async def until_health(gateway: Gateway, is_expected: Callable[[str], bool]) -> None:
    async def expected() -> bool:
        return is_expected(await gateway.health())

    await until(expected, "the expected text of /healthz")


async def served_by(gateway: Gateway, text: str) -> str:
    async with await gateway.chat(text) as response:
        assert response.status == 200
        return response.headers["x-served-by"]


@pytest.mark.asyncio
async def test_behaviour_45_invalid_configuration_keeps_the_old_one(tmp_path):
    async with running_gateway(tmp_path, servers=1) as gateway:
        await reload(gateway, PREFIX_AWARE.replace("weight: 2", "wieght: 2"), "refused")

        assert await served_by(gateway, "still there?") == "sim-0"
        lines = gateway.children.named("endpick").output()
        assert '"code":"E0201"' in lines
        assert "config.yaml:11:" in lines
        assert len(events(gateway, "configuration refused; the old one keeps serving")) == 1
        await until_health(gateway, lambda text: "config.yaml is not the configuration that serves" in text)
        assert await gateway.sample("endpick_config_drift") == 1
        await reload(gateway, f"# mended\n{PREFIX_AWARE}", "unchanged")
        await until_health(gateway, lambda text: text == "ok\n")
        assert await gateway.sample("endpick_config_drift") == 0
        (event,) = events(gateway, "configuration unchanged")
        assert event["old_hash"] == event["new_hash"]


@pytest.mark.asyncio
async def test_behaviour_45_requests_in_flight_keep_their_pipeline(tmp_path):
    slow = ("--model", "m", "--prefill-ms-per-token", "0.01", "--decode-ms", "20")
    async with running_gateway(tmp_path, servers=2, server_options=slow) as gateway:
        asking = asyncio.ensure_future(gateway.chat("a long answer please", max_tokens=60, stream=True))
        async with await asking as response:
            first = await response.content.readline()
            await reload(gateway, RANDOM, "applied")
            rest = await response.content.read()

        assert first.startswith(b"data: ")
        assert rest.rstrip().endswith(b"data: [DONE]")
        assert await gateway.sample("llm_d_epp_request_running") == 0
        assert await gateway.sample("endpick_plugin_info", {"plugin_name": "random-picker"}) == 1
        assert await gateway.sample("endpick_plugin_info", {"plugin_name": "prefix-cache-scorer"}) == 0


@pytest.mark.asyncio
async def test_learnt_state_survives_a_changed_weight(tmp_path):
    async with running_gateway(tmp_path, servers=4) as gateway:
        home = await served_by(gateway, LONG_PROMPT)

        await reload(gateway, PREFIX_AWARE.replace("weight: 3", "weight: 30"), "applied")

        assert {await served_by(gateway, f"{LONG_PROMPT} {n}") for n in range(6)} == {home}
        (event,) = events(gateway, "configuration replaced")
        assert (event["built"], event["trigger"]) == (0, "signal")
        assert event["changes"] == "prefix-cache-scorer: weight 3 → 30 in profile default"
        assert event["old_hash"] != event["new_hash"]
        assert await gateway.sample("endpick_plan_info", {"hash": str(event["new_hash"])}) == 1


@pytest.mark.asyncio
async def test_watched_configuration_is_taken_without_a_signal(tmp_path):
    async with running_gateway(tmp_path, servers=1, options=("--watch-config",)) as gateway:
        (gateway.folder / "config.yaml").write_text(RANDOM)

        async def applied() -> bool:
            return await gateway.sample(OUTCOMES, {"outcome": "applied"}) == 1

        await until(applied, "the changed file is noticed")
        assert await served_by(gateway, "hello") == "sim-0"
        assert [event["trigger"] for event in events(gateway, "configuration replaced")] == ["file"]
