"""Bytes that clients send through a gateway, and that model servers answer them with."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from endpick.api import ParsedRequest, Rejection
from endpick_builtin.parsers.openai import OpenAIParser
from endpick_builtin.parsers.structure import exceeded_limit
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
def test_a_body_is_read_or_refused_with_a_status_for_the_client(path, body):
    result = bounded(lambda sent: PARSER.parse(path, {}, sent), body)

    assert isinstance(result, ParsedRequest | Rejection)
    if isinstance(result, Rejection):
        assert 400 <= result.status < 500
    else:
        rewritten = PARSER.rewrite_model(body, result, "other")
        assert isinstance(rewritten, bytes)


@given(BODY, st.integers(1, 50), st.integers(1, 50))
def test_structure_is_counted_in_any_bytes(body, containers, values):
    assert bounded(lambda sent: exceeded_limit(sent, containers, values), body) in (None, "maxContainers", "maxValues")


ANSWER = mixed(
    b"data: ",
    b"data:",
    b"\n\n",
    b"\r\n",
    b"event: message\n",
    b"[DONE]",
    b'{"usage":{"prompt_tokens":1,"completion_tokens":2}}',
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


@given(ANSWER, st.booleans())
def test_usage_is_found_in_an_answer_or_not(answer, streaming):
    usage = bounded(lambda sent: PARSER.usage(sent, streaming), answer)

    assert usage is None or all(count is None or count >= 0 for count in (usage.prompt_tokens, usage.completion_tokens))
