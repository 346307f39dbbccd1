"""JSON bodies: the structure limit, lenient parsing, and rewriting the model."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import ParsedRequest, Rejection
from endpick_builtin.parsers.anthropic import AnthropicParser
from endpick_builtin.parsers.grpc_parsers import VertexAIParser, framed, http_bodies
from endpick_builtin.parsers.json_bodies import CHECKED_BYTES, MAX_QUOTES, MAX_STRUCTURE, is_too_complex, read_leniently
from endpick_builtin.parsers.openai import OpenAIParser
from endpick_builtin.parsers.token_ids import SGLangHTTPParser, VllmHTTPParser
from unit.scheduling.workbench import instance

PADDING = b" " * CHECKED_BYTES
openai = instance(OpenAIParser).plugin


def in_http_body(body: bytes) -> bytes:
    request = http_bodies()[1]()
    request.http_body.data = body
    return framed(request.SerializeToString())


@pytest.mark.parametrize(
    ("before", "item", "cost"),
    [(b"[", b"1", 1), (b"[", b"{}", 9), (b"[", b"[]", 9), (b"{", b'"k":1', 5)],
    ids=["values", "objects", "lists", "fields"],
)
def test_structure_is_limited(before, item, cost):
    allowed = before + b",".join([item] * ((MAX_STRUCTURE - 8) // cost)) + PADDING
    assert not is_too_complex(allowed)
    assert is_too_complex(allowed + b",{" * cost)


def test_structure_within_strings_is_not_counted():
    assert not is_too_complex(orjson.dumps({"prompt": '[{,}] \\ " \\\\ ' * 300_000}))
    assert is_too_complex(orjson.dumps({"prompt": '[{,}] \\ " ' * 300_000, "x": [{}] * 200_000}))


def test_bodies_with_too_many_strings_are_too_complex():
    assert is_too_complex(b'"",' * (MAX_QUOTES // 2 + 1) + b'"' + b"{" * MAX_STRUCTURE + b'"')


def test_bodies_of_one_mebibyte_are_not_checked():
    assert not is_too_complex(b"{" * CHECKED_BYTES)


@pytest.mark.parametrize(
    ("plugin", "path", "frame"),
    [
        (OpenAIParser, "/v1/completions", bytes),
        (AnthropicParser, "/v1/messages", bytes),
        (VllmHTTPParser, "/inference/v1/generate", bytes),
        (SGLangHTTPParser, "/generate", bytes),
        (VertexAIParser, "/x.PredictionService/RawPredict", in_http_body),
    ],
)
def test_every_json_parser_limits_structure(plugin, path, frame):
    rejection = instance(plugin).plugin.parse(path, {}, frame(b"[" + b"{}," * 400_000 + b"{}]"))
    assert isinstance(rejection, Rejection)
    assert rejection.status == 413


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a":"\\ud800"}', {"a": "\ufffd"}),
        (b'{"a":"\\ud83d\\ude00\\ud83d"}', {"a": "\U0001f600\ufffd"}),
        (b'{"a":"\\\\ud800","b":"\\ud800"}', {"a": "\\ud800", "b": "\ufffd"}),
        (b'{"a":"\xff\xfe"}', {"a": "\ufffd\ufffd"}),
        (b'{"a":"\xff\\ud800"}', {"a": "\ufffd\ufffd"}),
        (b'{"a":"\\ud800","n":NaN}', None),
        (b'{"a":"\\ud800"', None),
        (b'{"a":\xff}', None),
        (b"", None),
        (b"[" * 5000, None),
        (b'{"a":"\\ud800"}' + 4 * PADDING, None),
    ],
)
def test_lenient_parsing_equals_llm_ds(body, value):
    assert read_leniently(body) == value


@pytest.mark.parametrize("levels", [100, 300, 900])
def test_deep_tools_never_fail(levels):
    deep = b"[" * levels + b"]" * levels
    for plugin, path in [(OpenAIParser, "/v1/chat/completions"), (AnthropicParser, "/v1/messages")]:
        body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":' + deep + b"}"
        parsed = instance(plugin).plugin.parse(path, {}, body)
        assert isinstance(parsed, ParsedRequest)
        assert parsed.prompt.texts[0].endswith(b"userhi")


def test_nested_tool_results_are_rendered():
    depth = 300
    content = b'[{"type":"text","text":"before"},{"type":"tool_result","tool_use_id":"id","content":' * depth
    content += b'[{"type":"tool_result","content":"innermost"}]' + b'},{"type":"text","text":"after"}]' * depth
    body = b'{"model":"m","messages":[{"role":"user","content":' + content + b"}]}"
    parsed = instance(AnthropicParser).plugin.parse("/v1/messages", {}, body)
    assert isinstance(parsed, ParsedRequest)
    assert parsed.prompt.texts == (b"user" + b"beforeid" * depth + b"innermost" + b"after" * depth,)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["model", "a", '"model"', "{"]) | st.text(), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.text(), st.booleans())
def test_rewriting_changes_only_the_model(payload, new, named):
    payload = {**payload, "prompt": "x"} | ({"model": "old"} if named else {})
    payload = payload if isinstance(payload.get("model", ""), str) else {"prompt": "x"}
    body = json.dumps(payload, indent=2).encode()
    parsed = openai.parse("/v1/completions", {}, body)
    rewritten = json.loads(openai.rewrite_model(body, parsed, new))
    assert rewritten == {**payload, "model": new}
    assert list(rewritten) == list({**payload, "model": new})
