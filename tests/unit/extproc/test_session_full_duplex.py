"""The Endpoint Picker Protocol's own dialect, message by message."""

from __future__ import annotations

import pytest

from endpick._proto.ext_proc_pb2 import HeaderValueOption, ProcessingRequest, ProcessingResponse
from endpick.extproc import headers
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


def test_the_destination_is_given_as_header_and_as_metadata_and_the_body_follows_untouched():
    director = NotedDirector()
    answers = talk(Session(director), request_headers(), request_body(b'{"mod'), request_body(b'el":1}', end=True))
    assert answers == [
        Reply("request_headers", DESTINATION, clear_route_cache=True, metadata={"envoy.lb": DESTINATION}),
        Reply("request_body", body=b'{"model":1}', end=True),
    ]
    assert director.asked[0].body == b'{"model":1}'


def test_the_end_of_the_body_may_be_an_empty_message_of_its_own():
    answers = talk(Session(NotedDirector()), request_headers(), request_body(b"{}"), request_body(b"", end=True))
    assert answers[1:] == [Reply("request_body", body=b"{}", end=True)]


def test_an_empty_body_is_ended():
    director = NotedDirector()
    answers = talk(Session(director), request_headers(), request_body(b"", end=True))
    assert answers[1:] == [Reply("request_body", body=b"", end=True)]
    assert director.asked[0].body == b""


def test_fallbacks_are_joined_by_commas_best_first_in_header_and_metadata():
    several = ("10.0.0.1:8000", "[fd00::1]:8000", "10.0.0.3:8001")
    director = NotedDirector(Routed(several, NotedExchange()))
    answer = talk(Session(director), request_headers(end=True))[0]
    joined = {"x-gateway-destination-endpoint": "10.0.0.1:8000,[fd00::1]:8000,10.0.0.3:8001"}
    assert answer.headers == joined
    assert answer.metadata == {"envoy.lb": joined}


def test_a_request_without_body_is_decided_at_its_headers():
    director = NotedDirector()
    answers = talk(Session(director), request_headers({":method": "GET"}, end=True))
    assert kinds(answers) == ["request_headers"]
    assert director.asked[0].body is None
    assert director.asked[0].headers[":method"] == "GET"


def test_request_trailers_end_a_body_that_nothing_else_has_ended():
    answers = talk(Session(NotedDirector()), request_headers(), request_body(b"{}"), request_trailers())
    assert answers[1:] == [Reply("request_body", body=b"{}", end=False), Reply("request_trailers")]


def test_request_trailers_without_any_body_are_answered():
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
def test_a_body_goes_on_in_chunks_of_at_most_62000_bytes_and_the_last_ends_it(size, sizes):
    body = bytes(n % 251 for n in range(size))
    answers = talk(Session(NotedDirector()), request_headers(), request_body(body, end=True))[1:]
    assert [len(answer.body) for answer in answers] == sizes
    assert [answer.end for answer in answers] == [False] * (len(sizes) - 1) + [True]
    assert b"".join(answer.body for answer in answers) == body


def test_a_replaced_body_brings_its_length_where_the_request_had_one():
    decision = Routed((ENDPOINT,), NotedExchange(), body=b'{"model":"other"}')
    announced = talk(Session(NotedDirector(decision)), request_headers({"content-length": "2"}), request_body(b"{}", end=True))
    assert announced[0].headers["content-length"] == "17"
    assert announced[1] == Reply("request_body", body=b'{"model":"other"}', end=True)
    chunked = talk(Session(NotedDirector(decision)), request_headers(), request_body(b"{}", end=True))
    assert "content-length" not in chunked[0].headers


def test_an_untouched_body_leaves_content_length_alone():
    answers = talk(Session(NotedDirector()), request_headers({"content-length": "2"}), request_body(b"{}", end=True))
    assert answers[0].headers == DESTINATION


def test_a_request_without_body_is_given_none():
    decision = Routed((ENDPOINT,), NotedExchange(), body=b"made up")
    answers = talk(Session(NotedDirector(decision)), request_headers({"content-length": "0"}, end=True))
    assert answers == [Reply("request_headers", DESTINATION, clear_route_cache=True, metadata={"envoy.lb": DESTINATION})]


def test_headers_and_metadata_of_the_decision_are_passed_on():
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
        ("bad name", "x"),
        ("", "x"),
        ("x-bad-value", "one\r\nx-injected: two"),
        ("x-nul", "a\0b"),
    ],
)
def test_a_header_that_is_not_a_plugins_to_set_is_left_out(name, value):
    exchange = NotedExchange(added={name: value, "x-good": "yes"})
    decision = Routed((ENDPOINT,), exchange, {name: value, "x-good": "yes"})
    session = Session(NotedDirector(decision))
    assert talk(session, request_headers(end=True))[0].headers == {**DESTINATION, "x-good": "yes"}
    assert talk(session, response_headers())[0].headers == {"x-good": "yes"}


@pytest.fixture
def nothing_told():
    """As in a process that has not told of a header yet. What is compiled does not look for other objects in their place."""
    headers._told._last.clear()
    headers._lines._spent.clear()


@pytest.mark.usefixtures("nothing_told")
def test_a_header_that_http_does_not_allow_is_named_in_the_log(caplog):
    session = Session(NotedDirector(Routed((ENDPOINT,), NotedExchange(), {"x-bad-value": "one\r\nx-injected: two", "te": "x"})))
    talk(session, request_headers(end=True))
    assert [record.getMessage() for record in caplog.records] == [
        "header 'x-bad-value' was not set: its name or its value 'one\\r\\nx-injected: two' is not valid in HTTP"
    ]


@pytest.mark.usefixtures("nothing_told")
def test_headers_that_http_does_not_allow_fill_no_log_whatever_they_are(caplog):
    for number in range(100):
        odd = {f":x-{number}": "y" * 100_000, ":x-again": "z"}
        session = Session(NotedDirector(Routed((ENDPOINT,), NotedExchange(), odd)))
        assert talk(session, request_headers(end=True))[0].headers == DESTINATION
    assert len([record for record in caplog.records if "was not set" in record.getMessage()]) <= 20
    assert all(len(record.getMessage()) < 500 for record in caplog.records)


def test_headers_are_read_from_raw_value_or_value_in_lower_case_and_the_last_wins():
    message = ProcessingRequest()
    for name, value, raw in [("X-A", "old", b""), ("x-b", "no", b"yes"), ("x-c", "1", b""), ("x-c", "2", b"")]:
        message.request_headers.headers.headers.add(key=name, value=value, raw_value=raw)
    message.request_headers.end_of_stream = True
    director = NotedDirector()
    Session(director).receive(message.SerializeToString())
    assert director.asked[0].headers == {"x-a": "old", "x-b": "yes", "x-c": "2"}


def test_a_header_value_that_is_not_text_does_not_end_the_stream():
    message = ProcessingRequest()
    message.request_headers.headers.headers.add(key="x-bytes", raw_value=b"\xff\xfe")
    message.request_headers.end_of_stream = True
    director = NotedDirector()
    Session(director).receive(message.SerializeToString())
    assert director.asked[0].headers == {"x-bytes": "\ufffd\ufffd"}


def test_the_decision_knows_when_the_request_came():
    director = NotedDirector()
    times = iter([12.5, 99.0])
    talk(Session(director, clock=lambda: next(times)), request_headers(), request_body(b"", end=True))
    assert director.asked[0].received_at == 12.5


def test_a_refusal_is_an_immediate_response_that_ends_the_stream():
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
def test_a_status_the_gateway_would_refuse_becomes_500(status, sent):
    session = Session(NotedDirector(Refused(status, "Any", "")))
    assert talk(session, request_headers(end=True)) == [Reply("immediate_response", body=b"inference error: Any - ", status=sent)]


def test_a_body_over_the_limit_is_refused_without_asking_the_director():
    director = NotedDirector()
    session = Session(director, SessionSettings(max_request_body_bytes=10))
    assert talk(session, request_headers(), request_body(b"12345"), request_body(b"67890")) == []
    answers = talk(session, request_body(b"!"))
    assert [(answer.kind, answer.status) for answer in answers] == [("immediate_response", 413)]
    assert answers[0].body == b"inference error: PayloadTooLarge - the request body is larger than the limit of 10 bytes"
    assert session.finished
    assert director.asked == []


def test_a_request_the_gateway_answers_by_itself_is_not_decided():
    session = Session(director := NotedDirector())
    answers = talk(session, request_headers(), request_body(b"{"), response_headers(), request_body(b"}", end=True))
    assert kinds(answers) == ["response_headers"]
    assert director.asked == []


def test_a_gateway_that_says_nothing_of_its_modes_speaks_full_duplex():
    message = headers_message("request_headers", {":method": "POST"})
    answers = talk(Session(director := NotedDirector()), message, request_body(b"{}", end=True))
    assert kinds(answers) == ["request_headers", "request_body"]
    assert director.asked[0].body_modes.sees_response_body


def test_headers_are_set_whatever_the_client_sent_under_the_same_name():
    reply = Session(NotedDirector()).receive(request_headers({"x-gateway-destination-endpoint": "6.6.6.6:1"}, end=True))[0]
    mutation = ProcessingResponse.FromString(reply).request_headers.response.header_mutation
    assert [(option.header.raw_value, option.append_action) for option in mutation.set_headers] == [
        (ENDPOINT.encode(), HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD)
    ]


@pytest.mark.parametrize("message", [b"", b"\x2a", b"\x00\x2a"])
def test_what_is_too_short_for_a_piece_of_a_streamed_response_ends_the_stream(message):
    session = Session(NotedDirector())
    talk(session, request_headers(end=True), response_headers(), response_body(b"one"))
    with pytest.raises(ProtocolError):
        session.receive(message)


@pytest.mark.parametrize("size", [1, 61_999, 62_000, 62_001, 130_000])
def test_a_piece_of_any_size_of_a_streamed_response_passes(size):
    session = Session(director := NotedDirector())
    piece = b"x" * size
    answers = talk(session, request_headers(end=True), response_headers(), response_body(piece), response_body(piece, end=True))
    assert b"".join(answer.body for answer in answers[2:]) == 2 * piece
    assert [answer.end for answer in answers] == [False] * (len(answers) - 1) + [True]
    assert director.exchange.chunks == [(piece, False), (piece, True)]
