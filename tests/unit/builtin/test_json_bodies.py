"""Bodies that orjson refuses and llm-d routes, and what is deep in others."""

from __future__ import annotations

import json

import pytest
from endpick_builtin.parsers.structure import without_depths
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import ParsedRequest, Rejection
from endpick_builtin.parsers.anthropic import AnthropicParser
from endpick_builtin.parsers.generate import SGLangHTTPParser, VllmHTTPParser
from endpick_builtin.parsers.json_bodies import read_leniently
from endpick_builtin.parsers.openai import OpenAIParser
from endpick_builtin.parsers.vertexai import VertexAIParser
from unit.builtin.vectors import in_request
from unit.scheduling.workbench import instance

DEEP = b"[" * 2000 + b"]" * 2000


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a":"\\ud800"}', {"a": "\ufffd"}),
        (b'{"a":"\\uDC00x"}', {"a": "\ufffdx"}),
        (b'{"a":"\\ud83d\\ude00\\ud83d"}', {"a": "\U0001f600\ufffd"}),
        (b'{"a":"\\\\ud800","b":"\\ud800"}', {"a": "\\ud800", "b": "\ufffd"}),
        (b'{"a":"\xff\xfe"}', {"a": "\ufffd\ufffd"}),
        (b'{"a":"\xff\\ud800"}', {"a": "\ufffd\ufffd"}),
        (b'{"a":"\\ud800","n":NaN}', None),
        (b'{"a":"\\ud800","n":1' + b"0" * 5000 + b"}", None),
        (b'{"a":"\\ud800"', None),
        (b'{"a":\xff}', None),
        (b"", None),
        (b"[" * 5000, None),
        (b'{"a":' + b"[" * 2000 + b"}" * 2000, None),
    ],
)
def test_what_llm_d_reads_is_read_and_what_is_no_json_is_not(body, value):
    assert read_leniently(body) == value


def test_deep_bodies_are_read_down_to_two_hundred_levels():
    value = read_leniently(b'{"model":"m","deep":' + DEEP + b',"prompt":"x"}')
    assert (value["model"], value["prompt"]) == ("m", "x")
    level, depth = value["deep"], 1
    while level:
        [level], depth = level, depth + 1
    assert (level, depth) == (None, 200)


@pytest.mark.parametrize("levels", [100, 253, 300, 900, 2000])
def test_deep_tools_and_content_are_rendered_or_passed_over_but_never_fail(levels):
    deep = b"[" * levels + b"]" * levels
    for plugin, path, field in [(OpenAIParser, "/v1/chat/completions", b"tools"), (AnthropicParser, "/v1/messages", b"tools")]:
        body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"' + field + b'":' + deep + b"}"
        parsed = instance(plugin).plugin.parse(path, {}, body)
        assert isinstance(parsed, ParsedRequest)
        assert parsed.prompt.texts[0].endswith(b"userhi")


def test_results_of_tools_within_each_other_are_read_however_deep():
    depth = 500
    content = b'[{"type":"text","text":"before"},{"type":"tool_result","tool_use_id":"id","content":' * depth
    content += b'[{"type":"tool_result","content":"innermost"}]' + b'},{"type":"text","text":"after"}]' * depth
    body = b'{"model":"m","messages":[{"role":"user","content":' + content + b"}]}"
    parsed = instance(AnthropicParser).plugin.parse("/v1/messages", {}, body)
    assert isinstance(parsed, ParsedRequest)
    assert parsed.prompt.texts == (b"user" + b"beforeid" * depth + b"innermost" + b"after" * depth,)


@given(st.integers(1, 6), st.recursive(st.text(max_size=3), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner)))
def test_what_stands_deeper_is_null(deepest, value):
    cut = json.loads(without_depths(json.dumps(value).encode(), deepest))
    assert cut == expected(value, deepest)


def expected(value, left):
    if not isinstance(value, list | dict):
        return value
    if not left:
        return None
    return [expected(each, left - 1) for each in value] if isinstance(value, list) else {k: expected(v, left - 1) for k, v in value.items()}


@pytest.mark.parametrize(
    ("plugin", "path", "frame"),
    [
        (OpenAIParser, "/v1/completions", bytes),
        (AnthropicParser, "/v1/messages", bytes),
        (VllmHTTPParser, "/inference/v1/generate", bytes),
        (SGLangHTTPParser, "/generate", bytes),
        (VertexAIParser, "/x.PredictionService/RawPredict", in_request),
    ],
)
def test_every_parser_of_json_limits_structure_and_counts_what_it_refuses(plugin, path, frame):
    built = instance(plugin, maxContainers=3, maxValues=5)
    for body, allowed in [(b"[{},{},{},{}]", "3 objects and lists"), (b"[1,2,3,4,5,6]", "5 values")]:
        refused = built.plugin.parse(path, {}, frame(body))
        assert isinstance(refused, Rejection)
        assert (refused.status, refused.message) == (400, f"the request body holds more than {allowed}")
    counted = {
        limit: built.registry.get_sample_value("endpick_parser_refusals_total", {"limit": limit})
        for limit in ("maxContainers", "maxValues")
    }
    assert counted == {"maxContainers": 1.0, "maxValues": 1.0}
