"""Requests decided at their headers: upgrades, and bodies that no parser reads."""

from __future__ import annotations

import itertools

import pytest

from endpick._proto.ext_proc_pb2 import ProcessingMode, ProcessingResponse
from endpick.extproc.session import Session, SessionSettings
from endpick.requests.memory import Memory
from endpick.requests.model import BodyMode, CloseCause, Routed
from unit.extproc.conversation import (
    ENDPOINT,
    NotedDirector,
    NotedExchange,
    kinds,
    read,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    talk,
)
from unit.extproc.test_session_ends import _Promise

UPGRADE = {":method": "GET", ":path": "/v1/realtime", "connection": "Upgrade", "upgrade": "websocket"}
DUPLEX, STREAMED, NONE = BodyMode.FULL_DUPLEX_STREAMED, BodyMode.STREAMED, BodyMode.NONE
STREAMING = (DUPLEX, STREAMED)


@pytest.mark.parametrize(("request_mode", "response_mode"), list(itertools.product(BodyMode, BodyMode)), ids=str)
@pytest.mark.parametrize("headers", [UPGRADE, {}], ids=["upgrade", "unread"])
def test_decision_answers_the_headers(headers, request_mode, response_mode):
    session = Session(director := NotedDirector(wants=False))
    message = request_headers(headers, request_body=request_mode, response_body=response_mode, early=True)
    (reply,) = session.receive(message)
    answer = read(reply)
    assert (answer.kind, answer.headers["x-gateway-destination-endpoint"]) == ("request_headers", ENDPOINT)
    override = ProcessingResponse.FromString(reply)
    streams = request_mode in STREAMING and response_mode in STREAMING
    assert override.HasField("mode_override") == (bool(headers) and not streams)
    if override.HasField("mode_override"):
        assert override.mode_override == ProcessingMode(response_trailer_mode=ProcessingMode.SEND)
    (incoming,) = director.asked
    assert (incoming.body, incoming.unread) == (None, request_mode is not NONE)


@pytest.mark.parametrize("mode", STREAMING, ids=str)
def test_frames_pass_both_ways(mode):
    session = Session(director := NotedDirector(Routed((ENDPOINT,), NotedExchange(rewrites=False)), wants=False))
    exchange = director.decision.exchange
    talk(session, request_headers(UPGRADE, request_body=mode, response_body=mode))
    head = talk(session, response_headers({":status": "101"}))
    from_client = [request_body(b"a"), request_body(b"d" * 100_000), request_body(b"", end=True)]
    answers = talk(session, from_client[0], response_body(b"b"), response_body(b"c" * 100_000), *from_client[1:])
    assert kinds(head) == ["response_headers"]
    for kind, sent in (("request_body", b"a" + b"d" * 100_000), ("response_body", b"b" + b"c" * 100_000)):
        replies = [answer for answer in answers if answer.kind == kind]
        if mode is DUPLEX:
            assert b"".join(reply.body or b"" for reply in replies) == sent
        else:
            assert {reply.body for reply in replies} == {None}
    assert len([answer for answer in answers if mode is DUPLEX and answer.end]) == (mode is DUPLEX)
    assert exchange.finishes == []
    session.close(CloseCause.RESET)
    assert exchange.finishes == [CloseCause.END]


@pytest.mark.parametrize("accepted", [True, False])
def test_upgrade_without_a_response_is_a_reset(accepted):
    session = Session(director := NotedDirector(wants=False))
    talk(session, request_headers(UPGRADE), *([response_headers({":status": "101"})] if accepted else []))
    session.close(CloseCause.END)
    assert director.exchange.finishes == [CloseCause.END if accepted else CloseCause.RESET]


def waiting(limit: int, memory: Memory) -> Session:
    session = Session(NotedDirector(_Promise(), wants=False), SessionSettings(max_request_body_bytes=limit), memory=memory)
    assert talk(session, request_headers()) == []
    assert session.waiting is not None
    return session


def test_unread_body_waits_for_the_decision():
    session = waiting(100_000, memory := Memory())
    assert talk(session, *[request_body(b"x")] * 1000, request_trailers()) == []
    assert memory.held_bytes > 1000
    answers = [read(reply) for reply in session.resume(Routed((ENDPOINT,), NotedExchange()))]
    assert kinds(answers) == ["request_headers", *["request_body"] * 1000, "request_trailers"]
    assert memory.held_bytes == 0


def test_unread_body_that_waits_is_limited():
    session = waiting(10_000, memory := Memory())
    answers = talk(session, *[request_body(b"x" * 1000)] * 10)
    assert [answer.status for answer in answers] == [413]
    assert session.finished
    assert session.waiting is None
    session.close(CloseCause.END)
    assert memory.held_bytes == 0
