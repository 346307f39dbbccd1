"""Requests in the Endpoint Picker Protocol's own mode, FULL_DUPLEX_STREAMED."""

from __future__ import annotations

import pytest

from endpick._proto.ext_proc_pb2 import HeaderValueOption, ProcessingRequest, ProcessingResponse
from endpick.extproc.session import Session, SessionSettings
from endpick.extproc.stream import ProtocolError
from endpick.requests.model import Refused, Routed
from unit.extproc.conversation import (
    ENDPOINT,
    NotedDirector,
    NotedExchange,
    Reply,
    headers_message,
    kinds,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    talk,
)

DESTINATION = {"x-gateway-destination-endpoint": ENDPOINT}


def test_nothing_is_answered_before_the_body_is_complete():
    director = NotedDirector()
    session = Session(director)
    assert talk(session, request_headers(), request_body(b'{"mod'), request_body(b'el":1}')) == []
    assert director.asked == []


def test_destination_is_in_header_and_metadata():
    director = NotedDirector()
    answers = talk(Session(director), request_headers(), request_body(b'{"mod'), request_body(b'el":1}', end=True))
    assert answers == [
        Reply("request_headers", DESTINATION, clear_route_cache=True, metadata={"envoy.lb": DESTINATION}),
        Reply("request_body", body=b'{"model":1}', end=True),
    ]
    assert director.asked[0].body == b'{"model":1}'


@pytest.mark.parametrize(("given", "seen"), [("", "client"), ("gateway", "gateway")])
def test_the_span_of_the_gateway_goes_before_the_clients(given, seen):
    director = NotedDirector()
    session = Session(director)
    session.connect(lambda _: None, None, given)
    talk(session, request_headers({"traceparent": "client"}), request_body(b"{}", end=True))
    assert director.asked[0].headers["traceparent"] == seen


def test_end_of_body_may_be_an_empty_message():
    answers = talk(Session(NotedDirector()), request_headers(), request_body(b"{}"), request_body(b"", end=True))
    assert answers[1:] == [Reply("request_body", body=b"{}", end=True)]


def test_empty_body_is_ended():
    director = NotedDirector()
    answers = talk(Session(director), request_headers(), request_body(b"", end=True))
    assert answers[1:] == [Reply("request_body", body=b"", end=True)]
    assert director.asked[0].body == b""


def test_fallbacks_are_joined_by_commas():
    several = ("10.0.0.1:8000", "[fd00::1]:8000", "10.0.0.3:8001")
    director = NotedDirector(Routed(several, NotedExchange()))
    answer = talk(Session(director), request_headers(end=True))[0]
    joined = {"x-gateway-destination-endpoint": "10.0.0.1:8000,[fd00::1]:8000,10.0.0.3:8001"}
    assert answer.headers == joined
    assert answer.metadata == {"envoy.lb": joined}


def test_request_without_body_is_decided_at_its_headers():
    director = NotedDirector()
    answers = talk(Session(director), request_headers({":method": "GET"}, end=True))
    assert kinds(answers) == ["request_headers"]
    assert director.asked[0].body is None
    assert director.asked[0].headers[":method"] == "GET"


def test_request_trailers_end_the_body():
    answers = talk(Session(NotedDirector()), request_headers(), request_body(b"{}"), request_trailers())
    assert answers[1:] == [Reply("request_body", body=b"{}", end=False), Reply("request_trailers")]


def test_request_trailers_without_body_are_answered():
    director = NotedDirector()
    answers = talk(Session(director), request_headers(), request_trailers())
    assert kinds(answers) == ["request_headers", "request_trailers"]
    assert director.asked[0].body == b""


@pytest.mark.parametrize(
    ("size", "sizes"),
    [
        (0, [0]),
        (61_000, [61_000]),
        (62_000, [62_000]),
        (62_001, [62_000, 1]),
        (63_000, [62_000, 1000]),
        (125_000, [62_000, 62_000, 1000]),
    ],
)
def test_body_is_sent_in_chunks_of_62000_bytes(size, sizes):
    body = bytes(n % 251 for n in range(size))
    answers = talk(Session(NotedDirector()), request_headers(), request_body(body, end=True))[1:]
    assert [len(answer.body) for answer in answers] == sizes
    assert [answer.end for answer in answers] == [False] * (len(sizes) - 1) + [True]
    assert b"".join(answer.body for answer in answers) == body


def test_replaced_body_updates_content_length():
    decision = Routed((ENDPOINT,), NotedExchange(), body=b'{"model":"other"}')
    announced = talk(Session(NotedDirector(decision)), request_headers({"content-length": "2"}), request_body(b"{}", end=True))
    assert announced[0].headers["content-length"] == "17"
    assert announced[1] == Reply("request_body", body=b'{"model":"other"}', end=True)
    chunked = talk(Session(NotedDirector(decision)), request_headers(), request_body(b"{}", end=True))
    assert "content-length" not in chunked[0].headers


def test_unchanged_body_keeps_content_length():
    answers = talk(Session(NotedDirector()), request_headers({"content-length": "2"}), request_body(b"{}", end=True))
    assert answers[0].headers == DESTINATION


def test_request_without_body_gets_no_body():
    decision = Routed((ENDPOINT,), NotedExchange(), body=b"made up")
    answers = talk(Session(NotedDirector(decision)), request_headers({"content-length": "0"}, end=True))
    assert answers == [Reply("request_headers", DESTINATION, clear_route_cache=True, metadata={"envoy.lb": DESTINATION})]


def test_headers_and_metadata_of_the_decision_are_sent():
    decision = Routed(
        (ENDPOINT,),
        NotedExchange(),
        {"X-Request-Id": "42", "x-prefiller-host-port": "10.0.0.9:8000"},
        dynamic_metadata={"envoy.lb": {"cost": 3.5}, "acme": {"cached": True, "zone": "b"}},
    )
    answer = talk(Session(NotedDirector(decision)), request_headers(end=True))[0]
    assert answer.headers == {**DESTINATION, "x-request-id": "42", "x-prefiller-host-port": "10.0.0.9:8000"}
    assert answer.metadata == {"envoy.lb": {"cost": 3.5, **DESTINATION}, "acme": {"cached": True, "zone": "b"}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Transfer-Encoding", "chunked"),
        ("connection", "close"),
        ("te", "trailers"),
        ("content-length", "3"),
        ("X-Gateway-Destination-Endpoint", "6.6.6.6:666"),
        ("x-gateway-destination-endpoint-served", "6.6.6.6:666"),
        (":path", "/elsewhere"),
    ],
)
def test_protected_headers_are_not_set(name, value):
    exchange = NotedExchange(added={name: value, "x-good": "yes"})
    decision = Routed((ENDPOINT,), exchange, {name: value, "x-good": "yes"})
    session = Session(NotedDirector(decision))
    assert talk(session, request_headers(end=True))[0].headers == {**DESTINATION, "x-good": "yes"}
    assert talk(session, response_headers())[0].headers == {"x-good": "yes"}


def test_last_value_of_a_repeated_header_wins():
    message = ProcessingRequest()
    for name, value, raw in [("X-A", "old", b""), ("x-b", "no", b"yes"), ("x-c", "1", b""), ("x-c", "2", b"")]:
        message.request_headers.headers.headers.add(key=name, value=value, raw_value=raw)
    message.request_headers.end_of_stream = True
    director = NotedDirector()
    Session(director).receive(message.SerializeToString())
    assert director.asked[0].headers == {"x-a": "old", "x-b": "yes", "x-c": "2"}


def test_header_value_that_is_not_text_is_replaced():
    message = ProcessingRequest()
    message.request_headers.headers.headers.add(key="x-bytes", raw_value=b"\xff\xfe")
    message.request_headers.end_of_stream = True
    director = NotedDirector()
    Session(director).receive(message.SerializeToString())
    assert director.asked[0].headers == {"x-bytes": "\ufffd\ufffd"}


def test_decision_knows_the_arrival_time():
    director = NotedDirector()
    times = iter([12.5, 99.0])
    talk(Session(director, clock=lambda: next(times)), request_headers(), request_body(b"", end=True))
    assert director.asked[0].received_at == 12.5


def test_refusal_is_an_immediate_response():
    session = Session(NotedDirector(Refused(429, "ResourceExhausted", "system saturated", "rejected-saturated")))
    answers = talk(session, request_headers(), request_body(b"{}", end=True))
    assert answers == [
        Reply(
            "immediate_response",
            {"x-llm-d-request-dropped-reason": "rejected-saturated"},
            b"inference error: ResourceExhausted - system saturated",
            status=429,
        )
    ]
    assert session.finished
    assert session.receive(response_headers()) == ()


@pytest.mark.parametrize(("status", "sent"), [(400, 400), (412, 412), (503, 503), (799, 500), (0, 500), (600, 500), (100, 500)])
def test_status_the_gateway_would_reject_becomes_500(status, sent):
    session = Session(NotedDirector(Refused(status, "Any", "")))
    assert talk(session, request_headers(end=True)) == [Reply("immediate_response", body=b"inference error: Any - ", status=sent)]


def test_body_over_the_limit_is_413():
    director = NotedDirector()
    session = Session(director, SessionSettings(max_request_body_bytes=10))
    assert talk(session, request_headers(), request_body(b"12345"), request_body(b"67890")) == []
    answers = talk(session, request_body(b"!"))
    assert [(answer.kind, answer.status) for answer in answers] == [("immediate_response", 413)]
    assert answers[0].body == b"inference error: PayloadTooLarge - the request body is larger than the limit of 10 bytes"
    assert session.finished
    assert director.asked == []


def test_request_the_gateway_answers_is_not_decided():
    session = Session(director := NotedDirector())
    answers = talk(session, request_headers(), request_body(b"{"), response_headers(), request_body(b"}", end=True))
    assert kinds(answers) == ["response_headers"]
    assert director.asked == []


def test_full_duplex_is_the_default_mode():
    message = headers_message("request_headers", {":method": "POST"})
    answers = talk(Session(director := NotedDirector()), message, request_body(b"{}", end=True))
    assert kinds(answers) == ["request_headers", "request_body"]
    assert director.asked[0].body_modes.sees_response_body


def test_client_headers_are_overwritten():
    reply = Session(NotedDirector()).receive(request_headers({"x-gateway-destination-endpoint": "6.6.6.6:1"}, end=True))[0]
    mutation = ProcessingResponse.FromString(reply).request_headers.response.header_mutation
    assert [(option.header.raw_value, option.append_action) for option in mutation.set_headers] == [
        (ENDPOINT.encode(), HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD)
    ]


@pytest.mark.parametrize("message", [b"", b"\x2a", b"\x00\x2a"])
def test_truncated_message_ends_the_stream(message):
    session = Session(NotedDirector())
    talk(session, request_headers(end=True), response_headers(), response_body(b"one"))
    with pytest.raises(ProtocolError):
        session.receive(message)


@pytest.mark.parametrize("size", [1, 61_999, 62_000, 62_001, 130_000])
def test_response_chunk_of_any_size_passes(size):
    session = Session(director := NotedDirector())
    piece = b"x" * size
    answers = talk(session, request_headers(end=True), response_headers(), response_body(piece), response_body(piece, end=True))
    assert b"".join(answer.body for answer in answers[2:]) == 2 * piece
    assert [answer.end for answer in answers] == [False] * (len(answers) - 1) + [True]
    assert director.exchange.chunks == [(piece, False), (piece, True)]
