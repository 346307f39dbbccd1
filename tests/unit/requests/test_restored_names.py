"""Responses name the model that the client asked for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.requests.restored_names import ModelNameRestorer
from unit.requests.stage import CHAT, JSON_OK, Stage, pieces


def restored(data, cuts=(), target="vllm-backend-01", incoming="gpt-4-proxy", content_type="application/json"):
    restorer = ModelNameRestorer(target, incoming, content_type)
    chunks = pieces(data, cuts)
    out = [(restorer.feed(chunk, False), chunk) for chunk in chunks]
    out.append((restorer.feed(b"", True), b""))
    return b"".join(chunk if new is None else new for new, chunk in out)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"id":"cmpl-123","model":"vllm-backend-01","choices":[]}', b'{"id":"cmpl-123","model":"gpt-4-proxy","choices":[]}'),
        (b'data: {"model":"vllm-backend-01"}\n\n', b'data: {"model":"gpt-4-proxy"}\n\n'),
        (b'{"model": "vllm-backend-01"}', b'{"model": "gpt-4-proxy"}'),
        (b'{"model":"vllm-backend-012"}', b'{"model":"vllm-backend-012"}'),
        (b'{"object":"x"}', b'{"object":"x"}'),
        (b"data: [DONE]\n", b"data: [DONE]\n"),
        (b'"model":"vllm-back', b'"model":"vllm-back'),
    ],
)
def test_client_model_is_restored(data, expected):
    assert restored(data) == expected


NAMES = st.sampled_from(["vllm-backend-01", "other", '{"model":"vllm-backend-01"}', '"', "\\", 'x\\"model', "\n\n"])
KEYS = st.sampled_from(["model", "id", "response", "message", "input", 'say "model', "{", "metadata"])
VALUES = st.recursive(
    NAMES | st.integers() | st.none(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4)
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=5)


def expected(document):
    """By its values: the first envelope in the order of the fields."""
    for name, value in document.items():
        if name == "model" and value == "vllm-backend-01":
            return {**document, "model": "gpt-4-proxy"}
        if name in ("response", "message") and isinstance(value, dict) and value.get("model") == "vllm-backend-01":
            return {**document, name: {**value, "model": "gpt-4-proxy"}}
    return document


def as_lines(document, indent, start):
    text = json.dumps(document, indent=indent, separators=None if indent else (",", ":"), ensure_ascii=False).encode()
    return b"\n".join(start + line for line in text.split(b"\n"))


@given(DOCUMENTS, st.sampled_from([None, 1]), st.lists(st.integers(0, 500), max_size=12))
def test_only_the_envelope_of_a_body_is_restored(document, indent, cuts):
    assert restored(as_lines(document, indent, b""), cuts) == as_lines(expected(document), indent, b"")


@given(
    st.lists(DOCUMENTS, max_size=4),
    st.sampled_from([None, 1]),
    st.sampled_from([b"\n\n", b"\n\r\n", b'\n\n: a "comment\n\n', b"\n\ndata: [DONE]\n\n"]),
    st.lists(st.integers(0, 900), max_size=30),
)
def test_only_the_envelope_of_each_event_is_restored(documents, indent, separator, cuts):
    sent = b"".join(as_lines(document, indent, b"data: ") + separator for document in documents)
    wanted = b"".join(as_lines(expected(document), indent, b"data: ") + separator for document in documents)
    assert restored(sent, cuts, content_type="text/event-stream") == wanted


@given(st.lists(DOCUMENTS, max_size=4), st.lists(st.integers(0, 900), max_size=30))
def test_only_the_envelope_of_each_line_is_restored(documents, cuts):
    sent = b"".join(as_lines(document, None, b"") + b"\n" for document in documents)
    wanted = b"".join(as_lines(expected(document), None, b"") + b"\n" for document in documents)
    assert restored(sent, cuts, content_type="application/x-ndjson") == wanted


@pytest.mark.parametrize("content_type", ["application/grpc", "audio/wav", "image/png"])
def test_body_that_is_not_json_stays_as_it_is(content_type):
    exchange = Stage().route({**CHAT, "model": "mine"}, x_llm_d_model_name_rewrite="theirs").exchange
    exchange.response_headers({":status": "200", "content-type": content_type}, None)
    assert not exchange.rewrites
    assert exchange.response_chunk(b'{"model":"theirs"}', True) is None


def test_chunk_without_model_is_unchanged():
    restorer = ModelNameRestorer("a", "b")
    assert restorer.feed(b'data: {"choices":[]}\n\n', False) is None
    assert restorer.feed(b'data: {"mod', False) == b"data: {"
    assert restorer.feed(b'el":"a"}\n\n', False) == b'"model":"b"}\n\n'
    assert restorer.feed(b"", True) is None


def test_exchange_restores_the_client_model():
    exchange = Stage().route({**CHAT, "model": "mine"}, x_llm_d_model_name_rewrite="theirs").exchange
    exchange.response_headers(JSON_OK, None)
    sent = exchange.response_chunk(json.dumps({"model": "theirs", "choices": []}).encode(), True)
    assert json.loads(sent) == {"model": "mine", "choices": []}


def test_escaped_names_are_restored():
    assert restored(b'{"model":"a\\"b"}', target='a"b', incoming='c"d') == b'{"model":"c\\"d"}'
