"""Any order of messages in any mode: answered or refused, decided once, finished once."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from endpick.extproc.session import Session, SessionSettings
from endpick.extproc.stream import ProtocolError
from endpick.requests.model import BodyMode, CloseCause, Decision, IncomingRequest, Refused, Routed
from unit.extproc import conversation as say
from unit.extproc.conversation import ENDPOINT, NotedExchange, Reply, kinds, read, talk

LIMIT = 200
MODES = st.sampled_from(BodyMode)
CHUNKS = st.binary(max_size=30)


class _Promise:
    def __await__(self):
        yield


class Director:
    """Decides at once or later, as told; counts."""

    def __init__(self, decision: Decision, later: bool, wants: bool = True) -> None:
        self.wants = wants
        self.decision = decision
        self.later = later
        self.asked = 0

    def wants_body(self, headers: Mapping[str, str]) -> bool:
        return self.wants

    def decide(self, incoming: IncomingRequest) -> Decision | Awaitable[Decision]:
        self.asked += 1
        return _Promise() if self.later else self.decision


class Stream(RuleBasedStateMachine):
    """A gateway that sends any message at any time."""

    @initialize(later=st.booleans(), refuse=st.booleans(), hold=st.booleans(), wants=st.booleans(), reads=st.booleans())
    def open(self, later: bool, refuse: bool, hold: bool, wants: bool, reads: bool) -> None:
        self.exchange = NotedExchange(wants_chunks=wants, rewrite=self._hold if hold else lambda chunk, end: None)
        decision = Refused(429, "ResourceExhausted", "no") if refuse else Routed((ENDPOINT,), self.exchange)
        self.director = Director(decision, later, reads)
        self.session = Session(self.director, SessionSettings(max_request_body_bytes=LIMIT))
        self.replies: list[Reply] = []
        self.broken = False
        self.closed = False
        self.held = b""

    def _hold(self, chunk: bytes, end: bool) -> bytes:
        out, self.held = (self.held + chunk, b"") if end else (self.held, chunk)
        return out

    def _receive(self, message: bytes) -> None:
        try:
            self.replies += talk(self.session, message)
        except ProtocolError:
            self.broken = True
            self.session.close(CloseCause.ERROR)
            self.closed = True

    @precondition(lambda self: not self.closed)
    @rule(end=st.booleans(), request=MODES, response=MODES, early=st.booleans())
    def request_headers(self, end: bool, request: BodyMode, response: BodyMode, early: bool) -> None:
        self._receive(say.request_headers(end=end, request_body=request, response_body=response, early=early))

    @precondition(lambda self: not self.closed)
    @rule(chunk=CHUNKS, end=st.booleans())
    def request_body(self, chunk: bytes, end: bool) -> None:
        self._receive(say.request_body(chunk, end))

    @precondition(lambda self: not self.closed)
    @rule()
    def request_trailers(self) -> None:
        self._receive(say.request_trailers())

    @precondition(lambda self: not self.closed)
    @rule(end=st.booleans())
    def response_headers(self, end: bool) -> None:
        self._receive(say.response_headers(end=end))

    @precondition(lambda self: not self.closed)
    @rule(chunk=CHUNKS, end=st.booleans())
    def response_body(self, chunk: bytes, end: bool) -> None:
        self._receive(say.response_body(chunk, end))

    @precondition(lambda self: not self.closed)
    @rule()
    def response_trailers(self) -> None:
        self._receive(say.response_trailers())

    @precondition(lambda self: not self.closed)
    @rule(message=st.binary(max_size=20))
    def garbage(self, message: bytes) -> None:
        self._receive(message)

    @precondition(lambda self: self.session.waiting is not None)
    @rule(fails=st.booleans())
    def resolve(self, fails: bool) -> None:
        try:
            replies = self.session.fail(LookupError()) if fails else self.session.resume(self.director.decision)
        except ProtocolError:
            self.broken = True
            self.session.close(CloseCause.ERROR)
            self.closed = True
        else:
            self.replies += [read(reply) for reply in replies]

    @rule(cause=st.sampled_from(CloseCause))
    def close(self, cause: CloseCause) -> None:
        self.session.close(cause)
        self.closed = True

    @precondition(lambda self: self.closed)
    @rule()
    def resolve_too_late(self) -> None:
        if self.director.later and self.director.asked and not self.exchange.finishes:
            assert self.session.resume(self.director.decision) == ()

    @invariant()
    def waits_for_nothing_once_finished(self) -> None:
        assert not self.session.finished or self.session.waiting is None

    @invariant()
    def decided_at_most_once(self) -> None:
        assert self.director.asked <= 1

    @invariant()
    def finished_at_most_once_and_always_after_the_end(self) -> None:
        assert len(self.exchange.finishes) <= 1
        routed = any(reply.headers.get("x-gateway-destination-endpoint") for reply in self.replies)
        assert not (routed and self.closed) or len(self.exchange.finishes) == 1

    @invariant()
    def the_end_was_shown_once(self) -> None:
        assert sum(end for _, end in self.exchange.chunks) <= 1

    @invariant()
    def one_answer_routes_or_refuses(self) -> None:
        routing = [reply for reply in self.replies if reply.clear_route_cache]
        refusing = [reply for reply in self.replies if reply.kind == "immediate_response"]
        assert len(routing) + len(refusing) <= 1
        assert bool(refusing) <= self.session.finished

    @invariant()
    def a_live_session_that_was_asked_has_answered_or_waits(self) -> None:
        if self.director.asked and not self.closed:
            answered = any(reply.clear_route_cache or reply.kind == "immediate_response" for reply in self.replies)
            assert answered or self.session.waiting is not None


Stream.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestStream = Stream.TestCase


@given(
    request=st.lists(st.binary(min_size=1, max_size=100), max_size=6),
    response=st.lists(st.binary(min_size=1, max_size=100), max_size=6),
    request_end=st.sampled_from(["own message", "last chunk", "trailers"]),
    response_end=st.sampled_from(["own message", "last chunk", "trailers"]),
    reads=st.booleans(),
)
def test_bodies_pass_however_they_are_cut(request, response, request_end, response_end, reads):
    exchange = NotedExchange()
    session = Session(Director(Routed((ENDPOINT,), exchange), later=False, wants=reads))
    sent = [say.request_headers()]
    sent += _cut(request, request_end, say.request_body, say.request_trailers())
    sent += [say.response_headers()]
    sent += _cut(response, response_end, say.response_body, say.response_trailers())
    replies = talk(session, *sent)
    for part, chunks, end in (("request", request, request_end), ("response", response, response_end)):
        bodies = [reply for reply in replies if reply.kind == f"{part}_body"]
        assert b"".join(reply.body or b"" for reply in bodies) == b"".join(chunks)
        assert [reply.end for reply in bodies].count(True) == (0 if end == "trailers" else 1)
        assert not bodies or bodies[-1].end == (end != "trailers")
        assert kinds(replies).count(f"{part}_trailers") == (1 if end == "trailers" else 0)
    assert exchange.finishes == [CloseCause.END]
    assert b"".join(chunk for chunk, _ in exchange.chunks) == b"".join(response)


def _cut(chunks: list[bytes], end: str, body, trailers: bytes) -> list[bytes]:
    if end == "trailers":
        return [*(body(chunk) for chunk in chunks), trailers]
    if end == "own message" or not chunks:
        return [*(body(chunk) for chunk in chunks), body(b"", end=True)]
    return [*(body(chunk) for chunk in chunks[:-1]), body(chunks[-1], end=True)]
