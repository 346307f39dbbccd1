"""The model that a client asked for is the one that its answer names."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.requests.response_body import (
    ModelNameRestorer,
)
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
def test_the_clients_model_name_is_put_back(data, expected):
    assert restored(data) == expected


FRAGMENTS = st.sampled_from(
    [b'"model":"vllm-backend-01"', b'"model": "vllm-backend-01"', b'"model":"other"', b'"model"', b'"', b'"mod', b"{", b"x", b"\n\n", b" "]
)


@given(st.lists(FRAGMENTS, max_size=12).map(b"".join), st.lists(st.integers(0, 500), max_size=12))
def test_the_name_is_put_back_however_the_body_is_cut(data, cuts):
    whole = data.replace(b'"model":"vllm-backend-01"', b'"model":"gpt-4-proxy"').replace(
        b'"model": "vllm-backend-01"', b'"model": "gpt-4-proxy"'
    )
    assert restored(data, cuts) == whole


def test_a_piece_with_nothing_to_restore_is_passed_as_it_is():
    restorer = ModelNameRestorer("a", "b")
    assert restorer.feed(b'data: {"choices":[]}\n\n', False) is None
    assert restorer.feed(b'data: {"mod', False) == b"data: {"
    assert restorer.feed(b'el":"a"}\n\n', False) == b'"model":"b"}\n\n'
    assert restorer.feed(b"", True) is None


def test_the_answer_to_a_rewritten_request_names_the_model_the_client_asked_for():
    exchange = Stage().route({**CHAT, "model": "mine"}, x_llm_d_model_name_rewrite="theirs").exchange
    exchange.response_headers(JSON_OK, None)
    sent = exchange.response_chunk(json.dumps({"model": "theirs", "choices": []}).encode(), True)
    assert json.loads(sent) == {"model": "mine", "choices": []}


def test_names_that_json_escapes_are_put_back_too():
    assert restored(b'{"model":"a\\"b"}', target='a"b', incoming='c"d') == b'{"model":"c\\"d"}'


@pytest.mark.parametrize("space", [b"", b" "])
def test_a_piece_grows_by_no_more_than_as_much_again_for_names_of_kilobytes(space):
    answer = (b'"model":' + space + b'"a",') * 50_000
    sent = restored(answer, target="a", incoming="é" * 1024)
    assert len(answer) < len(sent) < 2 * len(answer) + 70_000
    assert sent.startswith(b'"model":' + space + b'"' + "é".encode() * 1024 + b'","model":')
    assert sent.endswith(b'"model":' + space + b'"a",')


def test_every_name_is_put_back_where_they_are_as_long_as_events_are():
    events = b'data: {"model":"a","choices":[{"delta":{"content":"t"}}]}\n\n' * 5000
    assert restored(events, target="a", incoming="n" * 50).count(b"n" * 50) == 5000


def test_a_shorter_name_is_put_back_everywhere():
    assert restored(b'"model":"target"' * 5000, target="target", incoming="m") == b'"model":"m"' * 5000


def test_what_was_held_back_is_told_where_the_midst_of_an_answer_passes_unseen():
    exchange = Stage().route({**CHAT, "model": "mine"}, x_llm_d_model_name_rewrite="theirs").exchange
    exchange.response_headers(JSON_OK, None)
    assert exchange.response_chunk(b'{"model":"the', False) == b"{"
    assert exchange.response_unseen(1000) == b'"model":"the'
    assert exchange.response_unseen(1000) is None
    assert exchange.response_chunk(b'irs"}', True) is None
