"""`endpick serve` with large bodies: where they are parsed, what a reload changes, and that no process is left behind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import grpc
import pytest

from endpick._proto import ext_proc_pb2 as pb
from integration.plugins.serving import METHOD, Picker, serving
from integration.serve.gateway import running_gateway
from integration.serve.large import is_running, until

pytestmark = pytest.mark.asyncio

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: random-picker}
- {type: openai-parser, parameters: {maxPrompts: 4}}
- {type: obedient-parser}
requestHandler:
  parsers: [{pluginRef: openai-parser}, {pluginRef: obedient-parser}]
dataLayer:
  discovery: {pluginRef: file-discovery}
"""
OUTCOMES = "endpick_large_bodies_total"
STARTED = "a process that parses large bodies was started"
LARGE = b" " * 2**21


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "endpoints.yaml").write_text('endpoints:\n- {name: a, address: 127.0.0.1, port: "1"}\n')
    return tmp_path


@pytest.fixture
def odd(fixture_project):
    return [fixture_project("odd-parsers")]


async def begin(picker: Picker, body: bytes, path: str, headers: Mapping[str, str] | None = None) -> grpc.aio.StreamStreamCall:
    call = picker.channel.stream_stream(METHOD, pb.ProcessingRequest.SerializeToString, pb.ProcessingResponse.FromString)()
    names = {":path": path, ":method": "POST", **(headers or {})}
    written = pb.HeaderMap(headers=[pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in names.items()])
    await call.write(pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=written)))
    await call.write(pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True)))
    return call


async def send(picker: Picker, body: bytes, path: str = "/v1/completions", headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    """The status of a refusal, 0 when it is routed; and the body that goes to the model server, or that of the refusal."""
    call = await begin(picker, body, path, headers)
    sent = b""
    while True:
        answer = await call.read()
        if answer.WhichOneof("response") == "immediate_response":
            return answer.immediate_response.status.code, answer.immediate_response.body
        if answer.WhichOneof("response") == "request_body":
            streamed = answer.request_body.response.body_mutation.streamed_response
            sent += streamed.body
            if streamed.end_of_stream:
                call.cancel()
                return 0, sent


async def outcomes(picker: Picker) -> dict[str, float]:
    return {dict(labels)["outcome"]: value for labels, value in (await picker.samples(OUTCOMES)).items()}


async def helper_of(picker: Picker) -> int:
    (event,) = await picker.logged(STARTED)
    return int(str(event["pid"]))


async def test_large_bodies_are_parsed_by_a_process_that_ends_with_the_picker(folder, odd):
    body = json.dumps({"model": "m", "prompt": "hello"}).encode()
    async with serving(folder, path=odd) as picker:
        assert await send(picker, body) == (0, body)
        assert await outcomes(picker) == {}
        assert not [event for event in picker.events if event["event"] == STARTED]

        assert await send(picker, body + LARGE) == (0, body + LARGE)
        rewritten = await send(picker, body + LARGE, headers={"x-llm-d-model-name-rewrite": "other"})
        assert rewritten == (0, body.replace(b'"m"', b'"other"') + LARGE)
        status, refusal = await send(picker, b'{"model":"m","prompt":["a","b","c","d","e"]}' + LARGE)
        assert (status, b"more than 4 prompts" in refusal) == (400, True)
        assert await outcomes(picker) == {"parsed": 2, "rejected": 1}
        refusals = await picker.samples("endpick_parser_refusals_total")
        assert [(dict(labels)["plugin_name"], value) for labels, value in refusals.items()] == [("openai-parser", 1)]
        assert await picker.logged("maxPrompts raises the limit")
        helper = await helper_of(picker)
        assert is_running(helper)
    assert not is_running(helper)


async def test_a_reload_with_other_parameters_counts_for_the_next_large_body(folder, odd):
    five = b'{"model":"m","prompt":["a","b","c","d","e"]}' + LARGE
    async with serving(folder, path=odd) as picker:
        assert (await send(picker, five))[0] == 400
        (folder / "config.yaml").write_text(CONFIG.replace("maxPrompts: 4", "maxPrompts: 5"))
        picker.reload()
        await picker.logged("configuration replaced")
        assert (await send(picker, five))[0] == 0
        await helper_of(picker)  # one helper for both


async def test_a_parser_that_fails_in_the_helper_is_a_fault_of_its_instance(folder, odd):
    async with serving(folder, "--large-body=64", path=odd) as picker:
        assert (await send(picker, b"raise " * 20, "/obey"))[0] == 500
        (fault,) = (await picker.samples("endpick_plugin_faults_total")).items()
        assert (dict(fault[0])["plugin"], dict(fault[0])["extension_point"], fault[1]) == ("obedient-parser", "RequestParsing", 1)
        (told,) = await picker.logged("plugin fault in obedient-parser")
        assert "ValueError: no such word" in str(told["event"])


async def test_what_a_parser_that_fails_open_does_not_read_goes_on_as_it_came_wherever_it_is_parsed(folder, odd):
    text = CONFIG.replace("llm-d.ai", "endpick").replace("{type: obedient-parser}", "{type: obedient-parser, onFault: FailOpen}")
    (folder / "config.yaml").write_text(text)
    async with serving(folder, "--large-body=64", path=odd) as picker:
        for body in (b"raise here", b"nonsense", b"raise " * 20):
            assert await send(picker, body, "/obey") == (0, body)
            status, refusal = await send(picker, body, "/obey", {"x-llm-d-model-name-rewrite": "other"})
            assert (status, b"no model can be exchanged" in refusal) == (500, True)
        faults = await picker.samples("endpick_plugin_faults_total")
        assert ({dict(labels)["plugin"] for labels in faults}, sum(faults.values())) == ({"obedient-parser"}, 6)
        assert await outcomes(picker) == {"failed": 2}
        assert (await send(picker, b"reject it", "/obey"))[0] == 403


async def test_a_parser_that_never_ends_is_ended_and_costs_its_request_only(folder, odd):
    async with serving(folder, "--large-body=64", "--large-body-timeout=300ms", path=odd) as picker:
        status, refusal = await send(picker, b"loop " * 20, "/obey")
        assert (status, b"takes too long" in refusal) == (413, True)
        assert (await send(picker, b"fine " * 20, "/obey"))[0] == 0
        assert await outcomes(picker) == {"too_slow": 1, "parsed": 1}


async def test_a_picker_that_is_killed_takes_its_helper_along(folder, odd):
    async with serving(folder, "--large-body=64", path=odd, exit_code=-9) as picker:
        await begin(picker, b"loop " * 20, "/obey")
        helper = await helper_of(picker)
        picker.process.kill()
        await picker.process.wait()
        await until(lambda: not is_running(helper) or _is_zombie(helper), "the helper to end")


def _is_zombie(pid: int) -> bool:
    """Whether only the system's first process has yet to take note of its end."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] == "Z"


async def test_a_stream_that_ends_cancels_its_large_body(folder, odd):
    async with serving(folder, "--large-body=64", path=odd) as picker:
        assert (await send(picker, b"fine " * 20, "/obey"))[0] == 0
        call = await begin(picker, b"loop " * 20, "/obey")
        kept = await begin(picker, b"fine " * 20, "/obey")
        while not (await picker.samples("endpick_large_bodies_waiting"))[()]:
            pass
        call.cancel()
        assert (await kept.read()).WhichOneof("response") == "request_headers"
        assert await outcomes(picker) == {"parsed": 2, "cancelled": 1}


async def test_a_large_conversation_comes_through_a_real_envoy(tmp_path):
    async with running_gateway(tmp_path, servers=2, options=("--large-body=1Ki",)) as gateway:
        async with await gateway.chat("large? " * 1_000) as response:
            assert response.status == 200
            assert (await response.json())["usage"]["completion_tokens"] == 4
        async with await gateway.chat("small") as response:
            assert response.status == 200
        assert await gateway.sample(OUTCOMES, {"outcome": "parsed"}) == 1
        assert await gateway.sample("endpick_body_helper_starts_total") == 1
