"""A process that is short of memory: what it refuses, what it says, and that it recovers by itself."""

from __future__ import annotations

import asyncio
import os
import sys

import grpc
import pytest

from integration.plugins.serving import METHOD, Picker, serving
from integration.serve.gateway import until

pytestmark = pytest.mark.asyncio

CONFIG = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: acme.hoarder}
dataLayer:
  discovery: {pluginRef: file-discovery}
"""
HOARDER = """
from pathlib import Path

from endpick.api import DataProducer


class Hoarder(DataProducer):
    def produce(self, request, endpoints, state):
        pass

    def learnt_bytes(self):
        return int(Path("learnt").read_text())

    def forget_some(self):
        if Path("forgetful").exists():
            Path("learnt").write_text("0")
        Path("forgot").write_text(Path("learnt").read_text())
"""
LIMIT = 1 << 30
OPTIONS = ("--max-memory=1Gi",)


@pytest.fixture
def hoarder(tmp_path, make_distribution):
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "endpoints.yaml").write_text('endpoints: [{name: a, address: 127.0.0.1, port: "1"}]\n')
    (tmp_path / "learnt").write_text("0")
    return make_distribution("acme-hoarder", {"acme.hoarder": "hoarder:Hoarder"}, modules={"hoarder": HOARDER})


async def stage(picker: Picker) -> str:
    found = await picker.samples("endpick_overload_stage")
    return next(labels[0][1] for labels, value in found.items() if value)


async def reaches(picker: Picker, name: str) -> None:
    async def reached() -> bool:
        return await stage(picker) == name

    await until(reached, f"stage {name}")


async def actions(picker: Picker) -> dict[str, float]:
    return {labels[0][1]: value for labels, value in (await picker.samples("endpick_overload_actions_total")).items()}


async def learns(picker: Picker, folder, share: float, name: str) -> None:
    """Have the plugin say that with what it has learnt so much is in use, whatever the process itself takes."""
    (folder / "learnt").write_text(str(int(share * LIMIT)))
    await reaches(picker, name)


async def test_requests_and_then_streams_are_refused_until_there_is_memory_again(tmp_path, hoarder):
    async with serving(tmp_path, *OPTIONS, path=[hoarder]) as picker:
        assert await picker.ask() == ("127.0.0.1:1", 0)
        assert await stage(picker) == "normal"

        await learns(picker, tmp_path, 0.85, "refusing")
        refused = await (await picker.announce()).read()
        assert refused.immediate_response.status.code == 503
        assert await picker.health() == (200, "ok\nshort of memory: new requests are refused\n")
        (told,) = await picker.logged("short of memory: new requests are refused")
        assert told["stage"] == "refusing"
        assert told["limit_bytes"] == LIMIT
        assert told["learnt_bytes"] == int(0.85 * LIMIT)

        await learns(picker, tmp_path, 1.1, "closing")
        call = picker.channel.stream_stream(METHOD)()
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert (await picker.health())[0] == 200, "probes are answered: the process is not to be killed for what will pass"

        await learns(picker, tmp_path, 0.0, "normal")
        assert await picker.ask() == ("127.0.0.1:1", 0)
        assert await picker.health() == (200, "ok\n")
        counted = await actions(picker)
        assert (counted["request_refused"], counted["stream_refused"] >= 1, counted["request_shed"]) == (1, True, 0)
        assert (await picker.logged("less short of memory: everything is served"))[0]["stage"] == "normal"


async def test_plugins_forget_when_memory_gets_short_and_everything_is_served_meanwhile(tmp_path, hoarder):
    (tmp_path / "forgetful").touch()
    async with serving(tmp_path, *OPTIONS, path=[hoarder]) as picker:
        (tmp_path / "learnt").write_text(str(int(0.67 * LIMIT)))
        await picker.logged("less short of memory")
        assert (tmp_path / "forgot").read_text() == "0"
        assert (await actions(picker))["plugins_told_to_forget"] == 1
        assert [event["event"] for event in picker.events if "short of memory" in str(event["event"])] == [
            "short of memory: plugins forget what they can learn again; more memory for the container, --max-memory, or more replicas help",
            "less short of memory: everything is served",
        ]


async def test_a_plugin_that_fails_when_it_is_asked_is_blamed_and_harms_nothing(tmp_path, hoarder):
    (tmp_path / "learnt").write_text("much")
    async with serving(tmp_path, *OPTIONS, path=[hoarder]) as picker:
        assert await picker.ask() == ("127.0.0.1:1", 0)
        faults = await picker.samples("endpick_plugin_faults_total")
        (labels,) = (dict(labels) for labels in faults)
        assert (labels["plugin"], labels["extension_point"], labels["reason"]) == ("acme.hoarder", "Memory", "ValueError")
        assert await stage(picker) == "normal"


async def test_what_is_held_is_shown_by_what_it_is(tmp_path, hoarder):
    (tmp_path / "learnt").write_text("12345")
    async with serving(tmp_path, *OPTIONS, path=[hoarder]) as picker:
        call, _ = await picker.begin("x" * 50_000)

        async def held() -> dict[str, float]:
            return {labels[0][1]: value for labels, value in (await picker.samples("endpick_memory_held_bytes")).items()}

        while_open = await held()
        assert while_open["learnt"] == 12345
        assert 100_000 < while_open["parsed"] < 110_000
        assert 2048 < while_open["messages"] < 3000, "a stream, and its headers"
        call.cancel()

        async def given_back() -> bool:
            return (await held())["parsed"] == 0

        await until(given_back, "the request is over")


async def test_a_limit_below_what_endpick_itself_takes_is_refused_at_the_start(tmp_path, hoarder):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "endpick", "serve", "config.yaml", "--host=127.0.0.1", "--grpc-port=0"),
        *("--grpc-health-port=0", "--metrics-port=0", "--max-memory=16Mi"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(hoarder)},
        stderr=asyncio.subprocess.PIPE,
    )
    _, told = await process.communicate()
    assert process.returncode == 5
    assert b"error[E0807]: --max-memory 16Mi leaves no memory for requests: endpick itself takes " in told
