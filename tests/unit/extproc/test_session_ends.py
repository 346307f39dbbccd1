"""How streams end: awaited decisions, faults, protocol errors, and clients that disconnect."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
from collections.abc import Awaitable, Mapping

import pytest

from endpick.extproc.messages import ONE_MESSAGE_MODES
from endpick.extproc.session import MAX_EARLY_MESSAGES, Session, SessionSettings, session_factory
from endpick.extproc.stream import GrpcStatus, ProtocolError, SessionCounters
from endpick.requests.model import BodyMode, CloseCause, Decision, IncomingRequest, Refused, Routed
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
    response_trailers,
    talk,
)


class LaterDirector:
    """Decides when the test resolves what it returned; an awaitable that never was a coroutine leaves nothing behind."""

    def __init__(self) -> None:
        self.promise = _Promise()

    def wants_body(self, headers: Mapping[str, str]) -> bool:
        return True

    def decide(self, incoming: IncomingRequest) -> Awaitable[Decision]:
        return self.promise


class _Promise:
    def __await__(self):
        yield


class RaisingDirector:
    def wants_body(self, headers: Mapping[str, str]) -> bool:
        return True

    def decide(self, incoming: IncomingRequest) -> Decision:
        raise LookupError("no such thing")


def waiting_session(counters: SessionCounters | None = None) -> Session:
    session = Session(LaterDirector(), SessionSettings(max_request_body_bytes=1000), counters)
    assert talk(session, request_headers(), request_body(b"{}", end=True)) == []
    assert session.waiting is not None
    return session


def routed(exchange: NotedExchange) -> Routed:
    return Routed((ENDPOINT,), exchange)


def test_awaited_decision_is_left_to_the_transport():
    director = LaterDirector()
    session = Session(director)
    talk(session, request_headers(), request_body(b"{}", end=True))
    assert session.waiting is director.promise
    answers = [read(reply) for reply in session.resume(routed(NotedExchange()))]
    assert kinds(answers) == ["request_headers", "request_body"]
    assert session.waiting is None


def test_messages_while_waiting_are_answered_later():
    session = waiting_session()
    assert talk(session, response_headers(), response_body(b"early", end=True)) == []
    exchange = NotedExchange()
    answers = [read(reply) for reply in session.resume(routed(exchange))]
    assert kinds(answers) == ["request_headers", "request_body", "response_headers", "response_body"]
    assert exchange.finishes == [CloseCause.END]


def test_refusal_drops_messages_received_while_waiting():
    session = waiting_session()
    talk(session, response_headers())
    answers = [read(reply) for reply in session.resume(Refused(503, "ServiceUnavailable", "gone"))]
    assert [(answer.kind, answer.status) for answer in answers] == [("immediate_response", 503)]
    assert session.finished


def test_disorder_while_waiting_fails_after_the_decision():
    session = waiting_session(counters := SessionCounters())
    talk(session, request_headers())
    with pytest.raises(ProtocolError, match="request headers came twice"):
        session.resume(routed(exchange := NotedExchange()))
    session.close(CloseCause.ERROR)
    assert exchange.finishes == [CloseCause.ERROR]
    assert counters.protocol_errors[GrpcStatus.INVALID_ARGUMENT] == 1


def test_early_messages_are_limited():
    session = waiting_session(counters := SessionCounters())
    talk(session, *[response_body(b"")] * MAX_EARLY_MESSAGES)
    with pytest.raises(ProtocolError, match="too many messages") as caught:
        talk(session, response_body(b""))
    assert caught.value.status == GrpcStatus.RESOURCE_EXHAUSTED
    assert counters.protocol_errors[GrpcStatus.RESOURCE_EXHAUSTED] == 1


@pytest.mark.parametrize(("cause", "heard"), [("END", "RESET"), ("RESET", "RESET"), ("DISCONNECT", "DISCONNECT"), ("DRAIN", "DRAIN")])
def test_decision_after_the_end_is_finished(cause, heard):
    session = waiting_session()
    session.close(CloseCause[cause])
    assert session.waiting is None
    assert session.resume(routed(exchange := NotedExchange())) == ()
    assert exchange.finishes == [CloseCause[heard]]


def test_refusal_after_the_end_does_nothing():
    session = waiting_session(counters := SessionCounters())
    session.close(CloseCause.RESET)
    assert session.resume(Refused(429, "ResourceExhausted", "late")) == ()
    assert session.fail(LookupError("late")) == ()
    assert counters.decision_faults == 0


@pytest.mark.parametrize("result", [None, "10.0.0.1:8000", NotedExchange()])
def test_result_that_is_no_decision_is_500(result, caplog):
    session = waiting_session(counters := SessionCounters())
    with caplog.at_level(logging.CRITICAL):
        answers = [read(reply) for reply in session.resume(result)]
    assert [answer.status for answer in answers] == [500]
    assert counters.decision_faults == 1


def test_failure_while_waiting_is_500_without_details(caplog):
    session = waiting_session(counters := SessionCounters())
    answers = [read(reply) for reply in session.fail(LookupError("secret"))]
    assert [(answer.kind, answer.status) for answer in answers] == [("immediate_response", 500)]
    assert answers[0].body == b"inference error: Internal - the request could not be routed"
    assert session.finished
    assert counters.decision_faults == 1
    assert "secret" in caplog.text


def test_raising_director_is_500(caplog):
    counters = SessionCounters()
    session = Session(RaisingDirector(), counters=counters)
    answers = talk(session, request_headers(end=True))
    assert [answer.status for answer in answers] == [500]
    assert session.finished
    assert counters.decision_faults == 1
    assert "no such thing" in caplog.text


def test_decision_that_cannot_be_serialised_is_500(caplog):
    exchange = NotedExchange()
    decision = Routed((ENDPOINT,), exchange, {"x-number": 3})  # type: ignore[dict-item]
    session = Session(NotedDirector(decision))
    assert [answer.status for answer in talk(session, request_headers(end=True))] == [500]
    session.close(CloseCause.END)
    assert exchange.finishes == [CloseCause.ERROR]
    assert "could not be decided" in caplog.text


@pytest.mark.parametrize("cause", [CloseCause.END, CloseCause.DRAIN])
@pytest.mark.parametrize("until", range(5))
def test_exchange_is_finished_once_on_disconnect(until, cause):
    session = Session(director := NotedDirector())
    messages = [request_headers(), request_body(b"{}"), request_body(b"", end=True), response_headers(), response_body(b"x")]
    talk(session, *messages[: until + 1])
    session.close(cause)
    session.close(CloseCause.END)
    seen_as = CloseCause.RESET if cause is CloseCause.END else cause
    assert director.exchange.finishes == ([seen_as] if until >= 2 else [])
    assert session.finished
    assert session.receive(messages[-1]) == ()


def test_closing_an_unused_stream_does_nothing():
    director = NotedDirector()
    Session(director).close(CloseCause.DISCONNECT)
    assert director.asked == []


def test_raising_finish_is_contained(caplog):
    class Broken(NotedExchange):
        def finish(self, cause: CloseCause) -> None:
            super().finish(cause)
            raise LookupError("finish")

    session = Session(NotedDirector(routed(broken := Broken())), counters=(counters := SessionCounters()))
    talk(session, request_headers(end=True))
    session.close(CloseCause.RESET)
    assert broken.finishes == [CloseCause.RESET]
    assert counters.exchange_faults == 1
    assert "finish of the exchange failed" in caplog.text


@pytest.mark.parametrize("method", ["response_headers", "response_chunk", "response_metadata"])
def test_raising_exchange_is_not_called_again(method, caplog):
    exchange = NotedExchange()
    calls: list[str] = []

    def broken(*arguments: object) -> None:
        calls.append(method)
        raise LookupError(method)

    setattr(exchange, method, broken)
    counters = SessionCounters()
    session = Session(NotedDirector(routed(exchange)), counters=counters)
    answers = talk(session, request_headers(end=True), response_headers(), response_body(b"a"), response_body(b"b", end=True))
    assert [answer.body for answer in answers] == [None, None, b"a", b"b"]
    assert calls == [method]
    assert counters.exchange_faults == 1
    assert exchange.finishes == [CloseCause.END]
    assert f"{method} of the exchange failed" in caplog.text


@pytest.mark.parametrize("faulty", [{"added": {"x-number": 3}}, {"metadata": {"acme": {"list": []}}}])
def test_values_that_cannot_be_serialised_are_left_out(faulty, caplog):
    counters = SessionCounters()
    session = Session(NotedDirector(routed(exchange := NotedExchange(**faulty))), counters=counters)
    answers = talk(session, request_headers(end=True), response_headers(), response_body(b"a", end=True))
    assert [(answer.kind, answer.body) for answer in answers[1:]] == [("response_headers", None), ("response_body", b"a")]
    assert counters.exchange_faults == 1
    assert exchange.finishes == [CloseCause.END]
    assert "passes as it is" in caplog.text


def test_rewrite_failing_halfway_ends_the_stream(caplog):
    def rewrite(chunk: bytes, end: bool) -> bytes:
        if chunk == b"two":
            raise LookupError("half way")
        return b"ONE"

    session = Session(NotedDirector(routed(exchange := NotedExchange(rewrite=rewrite))))
    talk(session, request_headers(end=True), response_headers(), response_body(b"one"))
    with pytest.raises(ProtocolError, match="could not be rewritten") as caught:
        session.receive(response_body(b"two"))
    assert caught.value.status == GrpcStatus.INTERNAL
    session.close(CloseCause.ERROR)
    assert exchange.finishes == [CloseCause.ERROR]
    assert "half way" in caplog.text


BEGUN = [request_headers(end=True)]
ANSWERED = [*BEGUN, response_headers(), response_body(b"", end=True)]


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([request_body(b"{}")], "a request body came before the request headers"),
        ([request_trailers()], "request trailers came before the request headers"),
        ([response_body(b"")], "a response body came before the response headers"),
        ([response_trailers()], "response trailers came before the response headers"),
        ([request_headers(), request_headers()], "request headers came twice"),
        ([*BEGUN, request_headers()], "request headers came twice"),
        ([request_headers(request_body=BodyMode.NONE), request_body(b"x")], "request_body_mode is NONE"),
        ([*BEGUN, response_body(b"")], "a response body came before the response headers"),
        ([*BEGUN, response_headers(), response_headers()], "response headers came twice"),
        ([*ANSWERED, response_headers()], "response headers came twice"),
        (
            [request_headers(end=True, response_body=BodyMode.NONE), response_headers(), response_body(b"")],
            "response_body_mode is NONE",
        ),
        ([b""], "neither headers, body nor trailers"),
        ([b"\xff\xff\xff"], "not an ext_proc message"),
        ([b"\x0a"], "not an ext_proc message"),
    ],
)
def test_message_out_of_order_ends_the_stream(messages, complaint):
    counters = SessionCounters()
    session = Session(NotedDirector(), counters=counters)
    talk(session, *messages[:-1])
    with pytest.raises(ProtocolError, match=complaint) as caught:
        session.receive(messages[-1])
    assert caught.value.status == GrpcStatus.INVALID_ARGUMENT
    assert counters.protocol_errors[GrpcStatus.INVALID_ARGUMENT] == 1


ENDS = {
    "last headers": lambda part: [],
    "last chunk": lambda part: [BODY[part](b"{}", end=True)],
    "empty chunk": lambda part: [BODY[part](b"{}"), BODY[part](b"", end=True)],
    "trailers": lambda part: [BODY[part](b"{}"), TRAILERS[part]()],
}
BODY = {"request": request_body, "response": response_body}
TRAILERS = {"request": request_trailers, "response": response_trailers}
LATE = {
    "piece": (lambda part: BODY[part](b"late"), "a {} body", "{}_body"),
    "end": (lambda part: BODY[part](b"", end=True), "a {} body", "{}_body"),
    "trailers": (lambda part: TRAILERS[part](), "{} trailers", "{}_trailers"),
}


def is_late(end: str, late: str, mode: BodyMode) -> bool:
    """Trailers may follow a body; a gateway that buffers sends it in one piece."""
    return (late != "trailers" or end == "trailers") and (mode not in ONE_MESSAGE_MODES or end in ("last headers", "last chunk"))


@pytest.mark.parametrize(
    ("part", "end", "late", "mode"),
    [case for case in itertools.product(BODY, ENDS, LATE, list(BodyMode)[1:]) if is_late(*case[1:])],
    ids=str,
)
def test_message_after_the_end_is_ignored(part, end, late, mode, caplog):
    make, subject, kind = LATE[late]
    session = Session(director := NotedDirector(), counters=(counters := SessionCounters()))
    head_end = end == "last headers"
    talk(session, request_headers(end=part == "response" or head_end, request_body=mode, response_body=mode, early=True))
    if part == "response":
        talk(session, response_headers(end=head_end))
    talk(session, *ENDS[end](part))
    finishes = list(director.exchange.finishes)
    answered = late == "trailers" or mode is not BodyMode.FULL_DUPLEX_STREAMED
    for _ in range(2):
        answers = talk(session, make(part))
        assert [(answer.kind, answer.body) for answer in answers] == [(kind.format(part), None)] * answered
    assert counters.messages_after_end == 2
    assert sum(counters.protocol_errors.values()) == 0
    assert caplog.messages == [f"{subject.format(part)} came after the end of the {part}, and was ignored"]
    assert director.exchange.finishes == finishes
    assert not session.finished


def test_sessions_of_a_factory_share_counters():
    counters = SessionCounters()
    open_session = session_factory(NotedDirector(), SessionSettings(max_request_body_bytes=1), counters)
    first, second = open_session(), open_session()
    first.receive(request_headers())
    second.receive(request_headers())
    assert [read(reply).status for reply in first.receive(request_body(b"22"))] == [413]
    assert (first.finished, second.finished) == (True, False)
    assert (counters.requests, counters.unroutable, counters.bodies_too_large) == (2, 1, 1)


@pytest.mark.asyncio
async def test_coroutine_decision_is_awaited_by_the_caller():
    async def decide() -> Decision:
        await asyncio.sleep(0)
        return routed(NotedExchange())

    session = Session(NotedDirector(decide()))
    talk(session, request_headers(end=True))
    assert session.waiting is not None
    assert kinds([read(reply) for reply in session.resume(await session.waiting)]) == ["request_headers"]


BROKEN = {
    "headers twice": [request_headers(), request_headers()],
    "a body before all else": [request_body(b"{}")],
    "nothing in it": [b""],
    "no message": [b"\xff\xff"],
    "a mode that is none": [request_headers(request_body=5)],
}


@pytest.mark.parametrize("messages", BROKEN.values(), ids=BROKEN)
def test_protocol_error_leaves_no_reference_cycle(messages):
    def is_broken() -> bool:
        session = Session(NotedDirector())
        try:
            for message in messages:
                session.receive(message)
        except ProtocolError:  # pytest.raises would keep it, and what it refers to
            session.close(CloseCause.ERROR)
            return True
        return False

    assert is_broken()  # the first time says so in the log
    gc.collect()
    gc.disable()
    try:
        assert is_broken()
        assert gc.collect() == 0
    finally:
        gc.enable()
