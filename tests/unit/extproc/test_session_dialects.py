"""Sessions in body modes other than FULL_DUPLEX_STREAMED."""

from __future__ import annotations

import pytest

from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.extproc.session import Session
from endpick.extproc.stream import GrpcStatus, ProtocolError
from endpick.requests.model import BodyMode, BodyModes, CloseCause, Routed
from unit.extproc.conversation import (
    ENDPOINT,
    FULL_DUPLEX,
    NotedDirector,
    NotedExchange,
    Reply,
    kinds,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
    talk,
)

DESTINATION = {"x-gateway-destination-endpoint": ENDPOINT}
ROUTED_HEADERS = Reply("request_headers", DESTINATION, clear_route_cache=True, metadata={"envoy.lb": DESTINATION})
ROUTED_BODY = Reply("request_body", DESTINATION, clear_route_cache=True, metadata={"envoy.lb": DESTINATION})
ONE_MESSAGE = (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)


def replacing(body: bytes) -> NotedDirector:
    return NotedDirector(Routed((ENDPOINT,), NotedExchange(), body=body))


def rewriting(replacement: bytes) -> NotedDirector:
    return NotedDirector(Routed((ENDPOINT,), NotedExchange(rewrite=lambda chunk, end: replacement)))


def begun(director: NotedDirector, response: BodyMode, headers: dict[str, str] | None = None) -> Session:
    """A session whose response has begun."""
    session = Session(director)
    talk(session, request_headers(end=True, response_body=response), response_headers(headers))
    return session


def test_none_decides_at_the_headers():
    director = NotedDirector()
    assert talk(Session(director), request_headers(request_body=BodyMode.NONE)) == [ROUTED_HEADERS]
    assert director.asked[0].body is None
    assert not director.asked[0].body_modes.sees_request_body


def test_none_answers_request_trailers():
    answers = talk(Session(NotedDirector()), request_headers(request_body=BodyMode.NONE), request_trailers())
    assert answers == [ROUTED_HEADERS, Reply("request_trailers")]


def test_streamed_decides_at_the_headers():
    director = NotedDirector()
    session = Session(director)
    assert talk(session, request_headers(request_body=BodyMode.STREAMED)) == [ROUTED_HEADERS]
    for chunk, end in [(b"{", False), (b"}", False), (b"", True)]:
        assert talk(session, request_body(chunk, end)) == [Reply("request_body")]
    assert len(director.asked) == 1
    assert director.asked[0].body is None


def test_streamed_body_is_not_sent_back():
    session = Session(replacing(b"ignored: no plugin saw the body"))
    talk(session, request_headers(request_body=BodyMode.STREAMED))
    reply = session.receive(request_body(b"x" * 1_000_000))
    assert sum(map(len, reply)) < 10


def test_early_streamed_decides_with_the_whole_body():
    director = NotedDirector()
    session = Session(director)
    first = request_headers(request_body=BodyMode.STREAMED, early=True)
    assert talk(session, first, request_body(b"{"), request_body(b"}")) == []
    assert talk(session, request_body(b"", end=True)) == [ROUTED_HEADERS] + [Reply("request_body")] * 3
    assert director.asked[0].body == b"{}"


def test_early_streamed_replaces_the_body_in_one_reply():
    session = Session(replacing(b"other"))
    first = request_headers(request_body=BodyMode.STREAMED, early=True)
    answers = talk(session, first, request_body(b"{"), request_body(b"}"), request_body(b"", end=True))
    assert [answer.body for answer in answers[1:]] == [b"other", b"", b""]


def test_early_streamed_without_body_ends_at_the_trailers():
    first = request_headers(request_body=BodyMode.STREAMED, early=True)
    assert talk(Session(replacing(b"other")), first, request_trailers()) == [ROUTED_HEADERS, Reply("request_trailers")]


@pytest.mark.parametrize("mode", ONE_MESSAGE)
def test_buffered_routes_with_the_body(mode):
    director = NotedDirector()
    session = Session(director)
    assert talk(session, request_headers(request_body=mode)) == [Reply("request_headers")]
    assert talk(session, request_body(b"{}", end=True)) == [ROUTED_BODY]
    assert director.asked[0].body == b"{}"


@pytest.mark.parametrize("mode", ONE_MESSAGE)
def test_buffered_without_body_routes_at_the_headers(mode):
    assert talk(Session(NotedDirector()), request_headers(request_body=mode, end=True)) == [ROUTED_HEADERS]


@pytest.mark.parametrize("mode", ONE_MESSAGE)
def test_buffered_replaces_body_and_length(mode):
    session = Session(replacing(b"other"))
    answers = talk(session, request_headers({"content-length": "2"}, request_body=mode), request_body(b"{}", end=True))
    assert answers[1].headers == {**DESTINATION, "content-length": "5"}
    assert answers[1].body == b"other"


def test_buffered_body_can_be_cleared():
    answers = talk(Session(replacing(b"")), request_headers(request_body=BodyMode.BUFFERED), request_body(b"{}", end=True))
    assert answers[1].body == b""


def test_buffered_body_before_trailers_is_whole():
    director = NotedDirector()
    session = Session(director)
    answers = talk(session, request_headers(request_body=BodyMode.BUFFERED), request_body(b"{}"), request_trailers())
    assert answers[1:] == [ROUTED_BODY, Reply("request_trailers")]
    assert director.asked[0].body == b"{}"


@pytest.mark.parametrize("mode", ONE_MESSAGE)
def test_buffered_trailers_without_body_are_400(mode):
    director = NotedDirector()
    session = Session(director)
    answers = talk(session, request_headers(request_body=mode), request_trailers())
    assert [(answer.kind, answer.status) for answer in answers[1:]] == [("immediate_response", 400)]
    assert session.finished
    assert director.asked == []


def test_partial_body_is_not_parsed():
    director = NotedDirector(Routed((ENDPOINT,), NotedExchange(), body=b"would lose the rest"))
    first = request_headers(request_body=BodyMode.BUFFERED_PARTIAL)
    answers = talk(Session(director), first, request_body(b'{"trunc', end=False))
    assert answers == [Reply("request_headers"), ROUTED_BODY]
    assert director.asked[0].body is None


@pytest.mark.parametrize("mode", [BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL])
def test_unchanged_response_chunk_is_not_sent_back(mode):
    session = begun(director := NotedDirector(), mode)
    reply = session.receive(response_body(b"x" * 100_000, end=True))
    assert len(reply) == 1
    assert len(reply[0]) < 10
    assert director.exchange.chunks == [(b"x" * 100_000, True)]
    assert director.exchange.finishes == [CloseCause.END]


def test_streamed_answers_each_response_chunk_once():
    session = begun(NotedDirector(), BodyMode.STREAMED)
    for chunk, end in [(b"a", False), (b"", False), (b"b", True)]:
        assert talk(session, response_body(chunk, end)) == [Reply("response_body")]


def test_streamed_replaces_response_chunks():
    session = begun(rewriting(b""), BodyMode.STREAMED)
    assert talk(session, response_body(b"a")) == [Reply("response_body", body=b"")]
    session = begun(rewriting(b"other"), BodyMode.STREAMED)
    assert talk(session, response_body(b"a")) == [Reply("response_body", body=b"other")]


def test_streamed_trailers_after_held_back_bytes_fail():
    held = NotedExchange(rewrite=lambda chunk, end: b"tail" if end else b"")
    session = begun(NotedDirector(Routed((ENDPOINT,), held)), BodyMode.STREAMED)
    talk(session, response_body(b"tail"))
    with pytest.raises(ProtocolError, match="held back") as caught:
        session.receive(response_trailers())
    assert caught.value.status == GrpcStatus.INTERNAL


@pytest.mark.parametrize(("announced", "expected"), [({"content-length": "1"}, {"content-length": "5"}), ({}, {})])
def test_buffered_response_is_replaced_with_its_length(announced, expected):
    session = begun(rewriting(b"other"), BodyMode.BUFFERED, announced)
    assert talk(session, response_body(b"a", end=True)) == [Reply("response_body", expected, b"other")]


def test_buffered_response_before_trailers_is_whole():
    session = begun(director := NotedDirector(), BodyMode.BUFFERED)
    assert kinds(talk(session, response_body(b"a"), response_trailers())) == ["response_body", "response_trailers"]
    assert director.exchange.chunks == [(b"a", True)]


def test_exchange_without_response_bodies_sees_headers():
    session = begun(director := NotedDirector(), BodyMode.NONE, {"content-type": "a/b"})
    assert director.exchange.headers["content-type"] == "a/b"
    assert not director.asked[0].body_modes.sees_response_body
    session.close(CloseCause.END)
    assert director.exchange.chunks == []
    assert director.exchange.finishes == [CloseCause.END]


def test_reset_without_response_bodies_is_the_end():
    session = begun(director := NotedDirector(), BodyMode.NONE)
    assert director.exchange.finishes == []
    session.close(CloseCause.RESET)
    assert director.exchange.finishes == [CloseCause.END]


def test_reset_before_the_response_is_a_reset():
    session = Session(director := NotedDirector())
    talk(session, request_headers(end=True, response_body=BodyMode.NONE))
    session.close(CloseCause.RESET)
    assert director.exchange.finishes == [CloseCause.RESET]


def test_trailers_without_response_bodies_are_the_end():
    session = begun(director := NotedDirector(), BodyMode.NONE)
    assert talk(session, response_trailers()) == [Reply("response_trailers")]
    assert director.exchange.finishes == [CloseCause.END]


def test_session_exposes_the_body_modes():
    session = Session(NotedDirector())
    assert session.body_modes is None
    talk(session, request_headers(request_body=BodyMode.BUFFERED, response_body=BodyMode.NONE))
    assert session.body_modes == BodyModes(BodyMode.BUFFERED, BodyMode.NONE)


@pytest.mark.parametrize(
    ("delivery", "sees_request", "sees_response"),
    [
        (BodyModes(), True, True),
        (BodyModes(BodyMode.NONE, BodyMode.NONE), False, False),
        (BodyModes(BodyMode.STREAMED, BodyMode.STREAMED), False, True),
        (BodyModes(BodyMode.STREAMED, BodyMode.STREAMED, early_request_body=True), True, True),
        (BodyModes(BodyMode.BUFFERED, BodyMode.BUFFERED), True, True),
        (BodyModes(FULL_DUPLEX, BodyMode.NONE), True, False),
    ],
)
def test_body_modes_tell_which_bodies_are_visible(delivery, sees_request, sees_response):
    assert (delivery.sees_request_body, delivery.sees_response_body) == (sees_request, sees_response)


@pytest.mark.parametrize(("mode", "named"), [(5, "GRPC"), (9, "9")])
@pytest.mark.parametrize("option", ["request_body_mode", "response_body_mode"])
def test_unsupported_mode_names_the_option(option, mode, named):
    message = ProcessingRequest.FromString(request_headers())
    setattr(message.protocol_config, option, mode)
    with pytest.raises(ProtocolError, match=f"{option} {named}") as caught:
        Session(NotedDirector()).receive(message.SerializeToString())
    assert caught.value.status == GrpcStatus.FAILED_PRECONDITION


def test_observability_mode_is_refused():
    message = ProcessingRequest.FromString(request_headers())
    message.observability_mode = True
    with pytest.raises(ProtocolError, match="observability_mode: false") as caught:
        Session(NotedDirector()).receive(message.SerializeToString())
    assert caught.value.status == GrpcStatus.FAILED_PRECONDITION
