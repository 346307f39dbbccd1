"""Responses in the mode FULL_DUPLEX_STREAMED."""

from __future__ import annotations

import pytest

from endpick.extproc.session import Session
from endpick.requests.model import CloseCause, Routed
from unit.extproc.conversation import (
    ENDPOINT,
    NotedDirector,
    NotedExchange,
    Reply,
    request_headers,
    response_body,
    response_headers,
    response_trailers,
    talk,
)


def test_response_passes_chunk_by_chunk():
    exchange = NotedExchange(added={"x-went-into-resp-headers": "true"})
    session = Session(NotedDirector(Routed((ENDPOINT,), exchange)))
    talk(session, request_headers(end=True))
    answers = talk(session, response_headers({"content-type": "a/b"}), response_body(b"ab"), response_body(b"", end=True))
    assert answers == [
        Reply("response_headers", {"x-went-into-resp-headers": "true"}),
        Reply("response_body", body=b"ab"),
        Reply("response_body", body=b"", end=True),
    ]
    assert exchange.headers == {":status": "200", "content-type": "a/b"}
    assert exchange.chunks == [(b"ab", False), (b"", True)]
    assert exchange.finishes == [CloseCause.END]


def test_response_headers_are_unchanged_by_default():
    session = Session(NotedDirector())
    answers = talk(session, request_headers(end=True), response_headers({"set-cookie": "a=1"}))
    assert answers[1] == Reply("response_headers")


def test_events_pass_before_the_response_ends():
    events = [b"data: %d\n\n" % number for number in range(5)]
    session = Session(NotedDirector())
    talk(session, request_headers(end=True), response_headers({"content-type": "text/event-stream"}))
    for event in events:
        assert talk(session, response_body(event)) == [Reply("response_body", body=event)]
    assert talk(session, response_body(b"", end=True)) == [Reply("response_body", body=b"", end=True)]


def test_large_response_chunk_is_cut():
    session = Session(NotedDirector())
    talk(session, request_headers(end=True), response_headers())
    answers = talk(session, response_body(bytes(130_000), end=True))
    assert [(len(answer.body), answer.end) for answer in answers] == [(62_000, False), (62_000, False), (6000, True)]


def test_exchange_may_hold_bytes_back():
    held: list[bytes] = []

    def rewrite(chunk: bytes, end: bool) -> bytes:
        held.append(chunk)
        return b"".join(held).replace(b'"model":"x"', b'"model":"name"') if end else b""

    session = Session(NotedDirector(Routed((ENDPOINT,), NotedExchange(rewrite=rewrite))))
    talk(session, request_headers(end=True), response_headers())
    assert talk(session, response_body(b'{"mod'), response_body(b'el":"x"')) == []
    assert talk(session, response_body(b"}", end=True)) == [Reply("response_body", body=b'{"model":"name"}', end=True)]


def test_held_back_bytes_precede_the_trailers():
    exchange = NotedExchange(rewrite=lambda chunk, end: b"all of it" if end else b"")
    session = Session(NotedDirector(Routed((ENDPOINT,), exchange)))
    talk(session, request_headers(end=True), response_headers())
    answers = talk(session, response_body(b"all"), response_body(b" of it"), response_trailers())
    assert answers == [Reply("response_body", body=b"all of it", end=False), Reply("response_trailers")]


def test_response_trailers_end_the_response_once():
    session = Session(director := NotedDirector())
    talk(session, request_headers(end=True), response_headers(), response_body(b"x"))
    assert talk(session, response_trailers()) == [Reply("response_trailers")]
    session.close(CloseCause.RESET)
    assert director.exchange.chunks == [(b"x", False), (b"", True)]
    assert director.exchange.finishes == [CloseCause.END]


def test_exchange_without_chunks_sees_the_end_only():
    exchange = NotedExchange(wants_chunks=False)
    session = Session(NotedDirector(Routed((ENDPOINT,), exchange)))
    answers = talk(session, request_headers(end=True), response_headers(), response_body(b"a"), response_body(b"b", end=True))
    assert [answer.body for answer in answers[2:]] == [b"a", b"b"]
    assert exchange.chunks == [(b"b", True)]


@pytest.mark.parametrize(
    "ending",
    [[response_headers(end=True)], [response_headers(), response_body(b"", end=True)], [response_headers(), response_trailers()]],
    ids=["headers", "body", "trailers"],
)
def test_exchange_without_rewrites_sees_no_empty_end(ending):
    exchange = NotedExchange(rewrites=False)
    session = Session(NotedDirector(Routed((ENDPOINT,), exchange)))
    talk(session, request_headers(end=True), *ending)
    assert (exchange.chunks, exchange.finishes) == ([], [CloseCause.END])


def test_exchange_without_metadata_is_not_asked():
    exchange = NotedExchange(adds_metadata=False, metadata={"acme": {"cost": 1.0}})
    session = Session(NotedDirector(Routed((ENDPOINT,), exchange)))
    answers = talk(session, request_headers(end=True), response_headers(), response_body(b"a", end=True))
    assert answers[-1] == Reply("response_body", body=b"a", end=True)
    assert exchange.finishes == [CloseCause.END]


def test_response_without_body_is_finished():
    session = Session(director := NotedDirector())
    talk(session, request_headers(end=True), response_headers(end=True))
    assert director.exchange.chunks == [(b"", True)]
    assert director.exchange.finishes == [CloseCause.END]


@pytest.mark.parametrize(
    "ending",
    [
        [response_headers(end=True)],
        [response_headers(), response_body(b"x" * 70_000, end=True)],
        [response_headers(), response_body(b"x"), response_trailers()],
    ],
    ids=["headers", "body", "trailers"],
)
def test_metadata_is_on_the_last_message_only(ending):
    cost = {"envoy.lb": {"x-gateway-inference-request-cost": 10.0}}
    session = Session(NotedDirector(Routed((ENDPOINT,), NotedExchange(metadata=cost))))
    talk(session, request_headers(end=True))
    answers = talk(session, *ending)
    assert [dict(answer.metadata) for answer in answers] == [{}] * (len(answers) - 1) + [cost]


def test_served_endpoint_reaches_the_exchange():
    session = Session(director := NotedDirector())
    served = {"envoy.lb": {"x-gateway-destination-endpoint-served": "10.0.0.2:8000"}}
    talk(session, request_headers(end=True), response_headers(metadata=served))
    assert director.exchange.served == "10.0.0.2:8000"


def test_missing_served_endpoint_is_none():
    session = Session(director := NotedDirector())
    talk(session, request_headers(end=True), response_headers(metadata={"envoy.lb": {"else": 1}}))
    assert director.exchange.served is None


def test_stream_with_a_response_only_passes():
    answers = talk(Session(NotedDirector()), response_headers(), response_body(b'{"model":"sql-lo'), response_body(b'ra"}', end=True))
    assert answers == [
        Reply("response_headers"),
        Reply("response_body", body=b'{"model":"sql-lo'),
        Reply("response_body", body=b'ra"}', end=True),
    ]
