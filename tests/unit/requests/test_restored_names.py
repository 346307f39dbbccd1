"""Responses name the model that the client asked for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.requests.response_body import ModelNameRestorer
from unit.requests.stage import CHAT, JSON_OK, Stage, pieces


def restored(data, cuts=(), target="vllm-backend-01", incoming="gpt-4-proxy"):
    restorer = ModelNameRestorer(target, incoming)
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


FRAGMENTS = st.sampled_from(
    [b'"model":"vllm-backend-01"', b'"model": "vllm-backend-01"', b'"model":"other"', b'"model"', b'"', b'"mod', b"{", b"x", b"\n\n", b" "]
)


@given(st.lists(FRAGMENTS, max_size=12).map(b"".join), st.lists(st.integers(0, 500), max_size=12))
def test_client_model_is_restored_however_the_body_is_cut(data, cuts):
    whole = data.replace(b'"model":"vllm-backend-01"', b'"model":"gpt-4-proxy"').replace(
        b'"model": "vllm-backend-01"', b'"model": "gpt-4-proxy"'
    )
    assert restored(data, cuts) == whole


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
