"""Memory of request bodies: held until the decision, limited for all streams together."""

from __future__ import annotations

import tracemalloc

import pytest

from endpick.extproc.request_phase import LARGE_BODY_BYTES
from endpick.extproc.session import Session
from endpick.extproc.stream import SessionCounters
from endpick.requests.memory import Memory, OverloadStage
from endpick.requests.model import CloseCause, Routed
from unit.extproc.conversation import ENDPOINT, NotedDirector, NotedExchange, kinds, request_body, request_headers, talk
from unit.extproc.test_session_ends import LaterDirector

DROPPED = "x-llm-d-request-dropped-reason"
PIECE = request_body(b"x" * 10_000)
END = request_body(b"", end=True)


def test_body_is_held_until_the_decision():
    memory = Memory()
    one = Session(NotedDirector(), memory=memory)
    talk(one, request_headers(), PIECE, PIECE)
    assert memory.held_bytes == 20_000
    talk(one, END)
    assert memory.held_bytes == 0


def test_body_is_held_while_the_decision_waits():
    memory = Memory()
    one = Session(LaterDirector(), memory=memory)
    talk(one, request_headers(), PIECE, END)
    assert memory.held_bytes == 10_000
    one.resume(Routed((ENDPOINT,), NotedExchange()))
    assert memory.held_bytes == 0


@pytest.mark.parametrize("until", [2, 3])
def test_body_is_released_when_the_stream_ends(until):
    memory = Memory()
    one = Session(LaterDirector(), memory=memory)
    talk(one, *[request_headers(), PIECE, END][:until])
    one.close(CloseCause.DISCONNECT)
    one.close(CloseCause.DISCONNECT)
    assert memory.held_bytes == 0


def test_body_beyond_the_budget_is_503_and_releases_its_memory():
    memory, counters = Memory(100_000), SessionCounters()
    hungry, late = (Session(NotedDirector(), counters=counters, memory=memory) for _ in range(2))
    talk(hungry, request_headers(), PIECE, PIECE)
    assert [(answer.kind, answer.status) for answer in talk(late, request_headers(), PIECE)] == [("immediate_response", 503)]
    assert memory.held_bytes == 20_000
    assert kinds(talk(hungry, END)) == ["request_headers", "request_body"]
    assert (counters.unroutable, counters.bodies_too_large, counters.buffer_exhaustions) == (1, 0, 1)


def test_requests_are_503_while_memory_is_short():
    memory, counters = Memory(), SessionCounters()
    begun = Session(NotedDirector(), memory=memory)
    talk(begun, request_headers())
    memory.stage = OverloadStage.REFUSING
    [answer] = talk(Session(NotedDirector(), counters=counters, memory=memory), request_headers())
    assert (answer.status, answer.headers[DROPPED]) == (503, "rejected-overloaded")
    assert (memory.refused, counters.unroutable, counters.buffer_exhaustions) == (1, 1, 0)
    assert kinds(talk(begun, request_body(b"{}", end=True))) == ["request_headers", "request_body"]


def test_memory_is_measured_before_a_large_body_is_parsed():
    director, memory = NotedDirector(), Memory(10**9, lambda: 10**9)
    one = Session(director, memory=memory)
    talk(one, request_headers())
    assert [answer.status for answer in talk(one, request_body(b"x" * (LARGE_BODY_BYTES + 1), end=True))] == [503]
    assert (director.asked, memory.stage) == ([], OverloadStage.REFUSING)


def test_a_body_of_tiny_chunks_takes_little_more_than_its_bytes():
    director = NotedDirector()
    one = Session(director)
    talk(one, request_headers())
    chunk = request_body(b"xy")
    tracemalloc.start()
    try:
        for _ in range(20_000):
            one.receive(chunk)
        assert tracemalloc.get_traced_memory()[0] < 150_000
    finally:
        tracemalloc.stop()
    talk(one, END)
    assert director.asked[0].body == b"xy" * 20_000
