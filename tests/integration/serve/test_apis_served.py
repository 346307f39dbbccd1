"""`endpick serve` with requests to every API, small and large, and with objectives: what is routed, exchanged, refused and shed."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from integration.plugins.serving import serving
from integration.serve.bodies import begin, send
from unit.builtin.vectors import in_request

pytestmark = [pytest.mark.long, pytest.mark.asyncio]

CONFIG = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
objectives:
- {name: batch, priority: -1}
models:
- {name: chat, targets: [{model: chat-8b-v1, weight: 3}, {model: chat-8b-v2, weight: 0}]}
- {name: either, targets: [{model: one}, {model: two}]}
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: random-picker}
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: random-picker}]}
requestHandler:
  parsers:
  - {pluginRef: openai-parser}
  - {pluginRef: anthropic-parser}
  - {pluginRef: vllmhttp-parser}
  - {pluginRef: sglanghttp-parser}
  - {pluginRef: vllmgrpc-parser}
  - {pluginRef: vertexai-parser}
  - {pluginRef: passthrough-parser}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
"""
MESSAGES = [{"role": "user", "content": "hi"}]
JSON_APIS = {
    "/v1/chat/completions": {"model": "m", "messages": MESSAGES},
    "/v1/messages": {"model": "m", "messages": MESSAGES, "max_tokens": 3},
    "/inference/v1/generate": {"model": "m", "token_ids": [1, 2, 3]},
}
REWRITE = {"x-gateway-model-name-rewrite": "other"}
LARGE = b" " * 2**21


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "endpoints.yaml").write_text('endpoints:\n- {name: a, address: 127.0.0.1, port: "1"}\n')
    return tmp_path


def generate(text: bytes) -> bytes:
    """A request to generate from a text, in a gRPC frame, by hand."""
    size = len(text)
    varint = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21])
    message = b"\x1a" + varint + text
    return b"\0" + len(message).to_bytes(4, "big") + message


async def test_every_api_is_routed_and_rewritten(folder):
    async with serving(folder) as picker:
        for path, body in JSON_APIS.items():
            for more in (b"", LARGE):
                written = json.dumps(body, separators=(",", ":")).encode() + more
                assert await send(picker, written, path) == (0, written)
                assert await send(picker, written, path, REWRITE) == (0, written.rstrip().replace(b'"m"', b'"other"'))
                status, _ = await send(picker, b"[1]" + more, path)
                assert status == 400
        for path, small, large in [
            ("/generate", b'{"input_ids":[1]}', b'{"input_ids":[1]}' + LARGE),
            ("/v1/messages/count_tokens", b"as it is", b"as it is" + LARGE),
            ("/vllm.grpc.engine.VllmEngine/Generate", generate(b"hi"), generate(b"hi" * 2**20)),
            ("/anything", b"\xff", b"\xff" * 2**21),
        ]:
            assert await send(picker, small, path) == (0, small)
            assert await send(picker, large, path) == (0, large)
        vertex = in_request(b'{"model":"m","messages":[{"role":"user","content":"x"}]}')
        path = "/google.cloud.aiplatform.v1.PredictionService/ChatCompletions"
        assert await send(picker, vertex, path) == (0, vertex)
        status, body = await send(picker, vertex, path, REWRITE)
        assert (status, b'"model":"other"' in body, body[:1]) == (0, True, b"\0")
        assert int.from_bytes(body[1:5], "big") == len(body) - 5


async def test_raw_vertex_requests_are_chat_or_completions(folder):
    async with serving(folder) as picker:
        for method in ("RawPredict", "StreamRawPredict"):
            path = f"/google.cloud.aiplatform.v1.PredictionService/{method}"
            for data in (b'{"model":"m","messages":[{"role":"user","content":"x"}]}', b'{"model":"m","prompt":"x"}'):
                assert await send(picker, in_request(data), path) == (0, in_request(data))
            assert (await send(picker, in_request(b'{"model":"m"}'), path))[0] == 400


@pytest.mark.parametrize(
    "service", ["", "liveness", "readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor", "x"]
)
async def test_health_is_answered_for_any_name_on_both_ports(folder, service):
    async with serving(folder) as picker:
        for port in (picker.port, picker.health_port):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_llm_d_chart_for_grpc_servers_is_served(folder):
    text = (Path(__file__).parents[2] / "fixtures/configs/chart-vllm-grpc.yaml").read_text()
    (folder / "config.yaml").write_text(text)
    async with serving(folder, "--endpoints", "endpoints.yaml") as picker:
        body = generate(b"hi")
        assert await send(picker, body, "/vllm.grpc.engine.VllmEngine/Generate") == (0, body)
        assert (await send(picker, None, "/v1/chat/completions"))[0] == 400


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","prompt":"\\ud800"}',
        b'{"model":"m","prompt":"\xff"}',
    ],
    ids=["half-a-pair", "not-utf8"],
)
@pytest.mark.parametrize("more", [b"", LARGE], ids=["small", "large"])
async def test_invalid_unicode_is_routed(folder, body, more):
    async with serving(folder) as picker:
        assert await send(picker, body + more) == (0, body + more)
        rewritten = '{"model":"other","prompt":"\ufffd"}'.encode()
        assert await send(picker, body + more, headers=REWRITE) == (0, rewritten)


async def test_negative_priority_is_shed_by_a_full_pool(folder):
    body = json.dumps({"model": "m", "prompt": "x"}).encode()
    batch = {"x-llm-d-inference-objective": "batch"}
    async with serving(folder) as picker:
        assert (await send(picker, body, headers=batch))[0] == 0
        call = await begin(picker, body, "/v1/completions")
        answer = await call.read()
        assert answer.WhichOneof("response") == "request_headers"

        refused = await begin(picker, body, "/v1/completions", batch)
        refusal = (await refused.read()).immediate_response
        assert (refusal.status.code, refusal.body) == (
            429,
            b"inference error: ResourceExhausted - system saturated, sheddable request dropped",
        )
        told = {option.header.key: option.header.raw_value for option in refusal.headers.set_headers}
        assert told["x-llm-d-request-dropped-reason"] == b"rejected-saturated"
        assert (await send(picker, body))[0] == 0
        call.cancel()


@pytest.mark.parametrize("more", [b"", LARGE], ids=["small", "large"])
async def test_configured_models_are_rewritten(folder, more):
    async with serving(folder) as picker:
        for headers in ({}, REWRITE):
            assert await send(picker, b'{"model":"chat","prompt":"x"}' + more, headers=headers) == (
                0,
                b'{"model":"chat-8b-v1","prompt":"x"}',
            )
        assert await send(picker, b'{"model":"m","prompt":"x"}' + more) == (0, b'{"model":"m","prompt":"x"}' + more)
        answers = {(await send(picker, b'{"model":"either","prompt":"x"}' + more))[1][:14] for _ in range(24)}
        assert answers == {b'{"model":"one"', b'{"model":"two"'}  # one of them alone: 1 in 8 million
