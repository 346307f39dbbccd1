"""The admin API of a serving process, and the verbs that ask it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from zipfile import ZipFile

import aiohttp
import pytest

from endpick_lab.decisions import read_decisions
from integration.plugins.serving import Picker, serving

pytestmark = pytest.mark.asyncio

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: label-selector-filter, name: big, parameters: {matchLabels: {size: big}}}
- {type: max-score-picker}
- {type: queue-scorer}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: big}, {pluginRef: queue-scorer, weight: 3}, {pluginRef: max-score-picker}]
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
"""
ENDPOINTS = """\
endpoints:
- {name: a, address: 127.0.0.1, port: "1", labels: {size: big}}
- {name: b, address: 127.0.0.1, port: "2", labels: {size: small}}
"""
PATHS = (
    "config",
    "plan",
    "endpoints",
    "decisions",
    "decisions?values=1",
    "decisions/one",
    "plugins",
    "reloads",
    "log",
    "debug/plugins/state",
    "openapi.json",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "endpoints.yaml").write_text(ENDPOINTS)
    (tmp_path / "request.json").write_text('{"model": "m", "messages": [{"role": "user", "content": "hi"}]}')
    return tmp_path


async def get(picker: Picker, path: str, **headers: str) -> tuple[int, dict[str, object]]:
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{picker.metrics_port}/{path}", headers=headers) as response:
        return response.status, await response.json()


async def verb(run_cli, picker: Picker, *arguments: str | Path, flag: str = "--url") -> object:
    return await asyncio.to_thread(run_cli, *arguments, flag, f"http://127.0.0.1:{picker.metrics_port}")


async def recorded(picker: Picker, request_id: str) -> None:
    """Ask, and wait until the decision is recorded: it is when the stream ends."""
    await picker.ask(request_id=request_id)
    async with asyncio.timeout(10):
        while (await get(picker, f"decisions/{request_id}"))[0] != 200:  # noqa: ASYNC110 - recorded by another process
            await asyncio.sleep(0.01)


async def test_every_path_answers(folder):
    async with serving(folder, "--decision-sampling=1") as picker:
        await recorded(picker, "one")
        answers = {path: await get(picker, path) for path in PATHS}
        assert {path: status for path, (status, _) in answers.items()} == dict.fromkeys(PATHS, 200)
        decision = answers["decisions/one"][1]
        assert answers["decisions?values=1"][1] == {"decisions": [decision]}
        assert answers["decisions"][1] == {"decisions": [decision | {"endpoints": []}]}
        assert decision["plan"] == answers["plan"][1]["hash"] == answers["config"][1]["hash"]
        assert [each["name"] for each in answers["endpoints"][1]["endpoints"]] == ["a", "b"]
        (scorer,) = [each for each in answers["plugins"][1]["plugins"] if each["name"] == "queue-scorer"]
        assert (scorer["calls"], scorer["faults"], scorer["breaker"]) == (1, 0, "closed")
        documented = answers["openapi.json"][1]["paths"]
        assert {path.replace("{id}", "one").strip("/") for path in documented} == {path.partition("?")[0] for path in PATHS}


async def test_failures_are_found_although_they_were_sampled(folder):
    (folder / "endpoints.yaml").write_text(ENDPOINTS.replace("size: big", "size: tiny"))
    async with serving(folder, "--decision-sampling=1") as picker:
        await recorded(picker, "refused")
        found = (await get(picker, "decisions?why=error"))[1]["decisions"]
        assert [(one["id"], one["why"], one["status"]) for one in found] == [("refused", "sampled", 429)]


async def test_reloads_are_listed_with_their_changes(folder):
    async with serving(folder) as picker:
        (folder / "config.yaml").write_text(CONFIG.replace("weight: 3", "weight: 0.5"))
        picker.reload()
        await picker.logged("configuration replaced")
        (latest, started) = (await get(picker, "reloads"))[1]["reloads"]
        assert (started["trigger"], started["newHash"], latest["oldHash"]) == ("start", latest["oldHash"], started["newHash"])
        assert (latest["trigger"], latest["result"]) == ("signal", "applied")
        assert latest["changes"] == [{"text": "queue-scorer: weight 3 → 0.5 in profile default", "routes": True}]
        assert (await get(picker, "config"))[1]["hash"] == latest["newHash"]


async def test_secrets_of_the_configuration_are_masked(folder):
    unused = "plugins:\n- {type: label-selector-filter, name: unused, parameters: {matchLabels: {api-token: hunter2}}}\n"
    (folder / "config.yaml").write_text(CONFIG.replace("plugins:\n", unused, 1))
    async with serving(folder) as picker:
        _, answer = await get(picker, "config")
        assert {"api-token": "***"} in [one["parameters"].get("matchLabels") for one in answer["plugins"]]
        assert "hunter2" not in str(answer)


async def test_unknown_and_malformed_requests_are_told(folder):
    async with serving(folder) as picker:
        status, answer = await get(picker, "decisions/none")
        assert (status, answer["error"].partition(";")[0]) == (404, "no decision about request 'none' is recorded")
        assert await get(picker, "decisions?limit=many") == (400, {"error": "limit is a number from 1, not 'many'"})


async def test_the_port_of_all_interfaces_answers_loopback_clients(folder):
    async with serving(folder, "--host=") as picker:
        assert (await get(picker, "config"))[0] == 200


async def test_a_token_is_required_if_there_is_one(folder):
    (folder / "token").write_text("s3cret\n")
    async with serving(folder, "--admin-token-file=token") as picker:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert (await get(picker, "config", **headers))[0] == 403
        assert (await get(picker, "config", Authorization="Bearer s3cret"))[0] == 200
        assert (await picker.health())[0] == 200, "health and metrics need none"


@pytest.mark.parametrize("option", ["--admin-token-file=missing", "--decision-log=missing/decisions.jsonl"])
async def test_files_that_cannot_be_opened_refuse_the_start(folder, option):
    with pytest.raises(AssertionError, match="E0808"):
        async with serving(folder, option):
            pass


async def test_a_thousand_requests_at_once_are_answered(folder):
    async with serving(folder) as picker:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1000)) as client:

            async def status() -> int:
                async with client.get(f"http://127.0.0.1:{picker.metrics_port}/endpoints") as response:
                    return response.status

            assert await asyncio.gather(*(status() for _ in range(1000))) == [200] * 1000
        assert (await picker.ask())[1] == 0


async def test_why_explains_a_request(folder, run_cli):
    async with serving(folder, "--decision-sampling=1") as picker:
        await recorded(picker, "one")
        result = await verb(run_cli, picker, "why", "one")
        assert result.exit_code == 0
        assert "request one for model 'm' went to 127.0.0.1:1" in result.stdout
        assert "profile default: filter big left default/a only; it dropped default/b" in result.stdout
        document = json.loads((await verb(run_cli, picker, "why", "one", "--format", "json")).stdout)
        assert document["reasons"][0]["decisive"] == "big"


async def test_why_explains_an_endpoint_without_traffic(folder, run_cli):
    async with serving(folder, "--decision-sampling=1") as picker:
        for number in range(3):
            await recorded(picker, f"r{number}")
        result = await verb(run_cli, picker, "why", "--endpoint", "b")
        assert "picked in 0 of the last 3 recorded decisions\n  3 times filter big dropped it\n" in result.stdout
        missing = await verb(run_cli, picker, "why", "--endpoint", "c")
        assert (missing.exit_code, missing.stderr) == (5, "error: there is no endpoint 'c' in the pool; known are default/a, default/b\n")


async def test_try_takes_the_pool_of_a_running_picker(folder, run_cli):
    async with serving(folder) as picker:
        result = await verb(run_cli, picker, "try", folder / "config.yaml", "--request", folder / "request.json", flag="--from")
        assert result.exit_code == 0
        assert "the request goes to 127.0.0.1:1" in result.stdout
        assert "default/a, default/b: no 'waiting-queue-size'" in result.stderr


async def test_bundle_has_what_a_bug_report_needs(folder, run_cli):
    async with serving(folder, "--decision-sampling=1") as picker:
        await recorded(picker, "one")
        result = await verb(run_cli, picker, "bundle", "-o", folder / "bundle.zip")
        assert result.exit_code == 0
        with ZipFile(folder / "bundle.zip") as bundle:
            parts = {name: bundle.read(name).decode() for name in bundle.namelist()}
    assert {"config.json", "decisions.json", "log.json", "metrics.txt", "healthz.txt"} <= parts.keys()
    assert json.loads(parts["decisions.json"])["decisions"][0]["id"] == "one"
    assert parts["healthz.txt"] == "ok\n"
    assert "endpick_decision_records_total" in parts["metrics.txt"]


async def test_a_bundle_that_fails_leaves_the_file_alone(tmp_path, run_cli):
    earlier = tmp_path / "bundle.zip"
    earlier.write_text("precious")
    result = await asyncio.to_thread(run_cli, "bundle", "-o", str(earlier), "--url", "http://127.0.0.1:1")
    assert result.exit_code == 5
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]


async def test_verbs_say_that_no_picker_answers(run_cli):
    result = await asyncio.to_thread(run_cli, "why", "one", "--url", "http://127.0.0.1:1")
    assert (result.exit_code, result.stderr) == (
        5,
        "error: no answer from http://127.0.0.1:1: [Errno 111] Connection refused; is endpick running there?\n",
    )


async def test_a_decision_log_can_be_replayed(folder, run_cli):
    async with serving(folder, "--decision-sampling=1", "--decision-log=decisions.jsonl") as picker:
        for number in range(3):
            assert (await picker.ask("hello " * 200, request_id=f"r{number}"))[0] == "127.0.0.1:1"
    (folder / "small.yaml").write_text(CONFIG.replace("size: big", "size: small").replace("queue-scorer", "prefix-cache-scorer"))

    for config, moved in (("config.yaml", 0), ("small.yaml", 3)):
        ran = run_cli("replay", str(folder / config), "--decisions", str(folder / "decisions.jsonl"), "--format", "json")
        report = json.loads(ran.stdout)
        assert (report["requests"], report["moved"]) == (3, moved), ran.stderr
    assert report["reasons"] == [{"reason": "filter big dropped it", "requests": 3}]
    assert all(one.prompt_tokens >= 300 for one in read_decisions(folder / "decisions.jsonl").trace())
