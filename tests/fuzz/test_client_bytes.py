"""Bytes that clients send through a gateway, and that model servers answer them with."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import ParsedRequest, Rejection
from endpick_builtin.parsers.anthropic import AnthropicParser
from endpick_builtin.parsers.grpc_parsers import VertexAIParser, VllmGRPCParser
from endpick_builtin.parsers.openai import OpenAIParser
from endpick_builtin.parsers.token_ids import SGLangHTTPParser, VllmHTTPParser
from fuzz.bounds import bounded, mixed
from unit.scheduling.workbench import instance

PARSER = instance(OpenAIParser).plugin
PATHS = st.sampled_from(
    ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/conversations", "/", "", "/v1/chat/completions?x"]
)
FIELDS = st.sampled_from(
    [
        "model",
        "prompt",
        "messages",
        "input",
        "items",
        "content",
        "role",
        "type",
        "text",
        "tools",
        "instructions",
        "max_tokens",
        "stream",
        "n",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | FIELDS, inner, max_size=4),
    max_leaves=12,
)
BODY = st.one_of(
    st.dictionaries(FIELDS, JSON, max_size=6).map(lambda body: json.dumps(body).encode(errors="surrogatepass")),
    mixed(
        b'{"model":"m"',
        b',"prompt":',
        b'"a"',
        b"[",
        b"]",
        b"{",
        b"}",
        b":",
        b",",
        b"1e999",
        b"-",
        b'"\\ud800"',
        b"\\u0000",
        b"NaN",
        b"\xff",
    ),
)


@given(PATHS, BODY)
def test_openai_body_is_parsed_or_rejected(path, body):
    result = bounded(lambda sent: PARSER.parse(path, {}, sent), body)

    assert isinstance(result, ParsedRequest | Rejection)
    if isinstance(result, Rejection):
        assert 400 <= result.status < 500
    else:
        rewritten = PARSER.rewrite_model(body, result, "other")
        assert isinstance(rewritten, bytes)


ENGINE_FIELDS = st.sampled_from(
    [
        *(
            "model",
            "messages",
            "system",
            "tools",
            "content",
            "role",
            "type",
            "text",
            "source",
            "data",
            "url",
            "input",
            "image",
            "tool_result",
        ),
        *("token_ids", "input_ids", "features", "mm_hashes", "mm_placeholders", "offset", "length", "sampling_params", "max_tokens"),
    ]
)
ENGINE_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9) | st.floats() | st.sampled_from(["image", "text", "tool_result", "base64", "\ud800"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ENGINE_FIELDS, inner, max_size=4),
    max_leaves=12,
)
ENGINE_BODY = st.one_of(st.dictionaries(ENGINE_FIELDS, ENGINE_JSON, max_size=6).map(lambda body: json.dumps(body).encode()), BODY)


@pytest.mark.parametrize(
    ("plugin", "path"),
    [
        (AnthropicParser, "/v1/messages"),
        (VllmHTTPParser, "/inference/v1/generate"),
        (SGLangHTTPParser, "/generate"),
    ],
)
@given(data=st.data())
def test_engine_bodies_are_parsed_or_rejected(plugin, path, data):
    check_parser(instance(plugin).plugin, path, data.draw(ENGINE_BODY))


FRAMES = mixed(b"\0\0\0\0", b"\0\0\0\0\x07\x1a\x05test1", b"\x12\x05\x12\x03\x01\x02\x03", b"\x3a", b"\x2a", b'{"model":"m"}', b"\xff\xff")


@pytest.mark.parametrize(
    ("plugin", "path"),
    [
        (VllmGRPCParser, "/vllm.grpc.engine.VllmEngine/Generate"),
        (VllmGRPCParser, "/vllm.grpc.engine.VllmEngine/Embed"),
        (VertexAIParser, "/a.PredictionService/RawPredict"),
    ],
)
@given(data=st.data())
def test_grpc_frames_are_parsed_or_rejected(plugin, path, data):
    message = data.draw(FRAMES)
    framed = data.draw(st.sampled_from([message, b"\0" + len(message).to_bytes(4, "big") + message]))
    parser = instance(plugin).plugin
    check_parser(parser, path, framed)
    usage = bounded(lambda sent: parser.usage(sent, True), framed)
    assert usage is None or usage.prompt_tokens >= 0


def check_parser(parser, path, body):
    """What is read can be rendered, and be asked for another model; or the client is told."""
    result = bounded(lambda sent: parser.parse(path, {}, sent), body)
    if isinstance(result, Rejection):
        assert result.status == 400
        return
    assert all(isinstance(text, bytes) for text in bounded(lambda sent: result.prompt.texts, body))
    assert len(result.prompt.media) <= len(body)
    assert isinstance(parser.rewrite_model(body, result, "other"), bytes)


ANSWER = mixed(
    b"data: ",
    b"data:",
    b"\n\n",
    b"\r\n",
    b"event: message\n",
    b"[DONE]",
    b'{"usage":{"prompt_tokens":1,"completion_tokens":2}}',
    b'{"type":"message_start","message":{"usage":{"input_tokens":3}}}',
    b'{"meta_info":{"prompt_tokens":1,"completion_tokens":2}}',
    b'{"usage":',
    b'"usage"',
    b'{"prompt_tokens":',
    b"99999999999999999999",
    b"-1",
    b"1.5",
    b"null",
    b"}",
    b"{",
    b"[",
    b"\xff",
)


@pytest.mark.parametrize("plugin", [OpenAIParser, AnthropicParser, SGLangHTTPParser])
@given(answer=ANSWER, streaming=st.booleans())
def test_usage_never_fails(plugin, answer, streaming):
    parser = instance(plugin).plugin
    usage = bounded(lambda sent: parser.usage(sent, streaming), answer)

    assert usage is None or all(count is None or count >= 0 for count in (usage.prompt_tokens, usage.completion_tokens))
