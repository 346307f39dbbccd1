"""What the requests of all streams may hold together, and when they give it back."""

from __future__ import annotations

import tracemalloc

import pytest

from endpick._proto.ext_proc_pb2 import HttpBody, ProcessingRequest
from endpick.extproc.headers import SUBSET_KEY, SUBSET_NAMESPACE
from endpick.extproc.session import Session, SessionSettings, session_factory
from endpick.extproc.stream import GrpcStatus, ProtocolError, SessionCounters
from endpick.requests.memory import MemoryAccount, MemoryBudget
from endpick.requests.model import BodyMode, CloseCause, Routed
from unit.extproc.conversation import (
    ENDPOINT,
    NotedDirector,
    NotedExchange,
    kinds,
    request_body,
    request_headers,
    response_body,
    response_headers,
    talk,
)
from unit.extproc.test_session_ends import LaterDirector

DROPPED = "x-llm-d-request-dropped-reason"
PIECE = request_body(b"x" * 10_000)
HEAD_BYTES = len(request_headers()) + 128 * len(ProcessingRequest.FromString(request_headers()).request_headers.headers.headers)


def session(
    memory: MemoryBudget, director: NotedDirector | LaterDirector | None = None, counters: SessionCounters | None = None
) -> Session:
    return Session(director or NotedDirector(), counters=counters, memory=memory)


def test_bodies_are_held_until_the_decision_and_headers_until_the_end_of_the_stream():
    memory = MemoryBudget(10**6)
    one = session(memory)
    talk(one, request_headers(), PIECE, PIECE)
    assert 20_000 + HEAD_BYTES < memory.held_bytes < 21_000 + HEAD_BYTES
    talk(one, request_body(b"", end=True))
    assert memory.held_bytes == HEAD_BYTES
    talk(one, response_headers(), response_body(b"y" * 10_000))
    assert memory.held_bytes == HEAD_BYTES
    one.close(CloseCause.RESET)
    one.close(CloseCause.RESET)
    assert memory.held_bytes == 0


@pytest.mark.parametrize("until", [1, 2, 3])
def test_a_stream_that_ends_undecided_gives_back_what_it_held(until):
    memory = MemoryBudget(10**6)
    one = session(memory, LaterDirector())
    talk(one, *[request_headers(), PIECE, request_body(b"", end=True)][:until])
    assert memory.held_bytes > 0
    one.close(CloseCause.DISCONNECT)
    assert memory.held_bytes == 0


def test_what_is_kept_while_a_decision_is_awaited_is_given_back_with_it():
    memory = MemoryBudget(10**6)
    one = session(memory, LaterDirector())
    talk(one, request_headers(), request_body(b"{}", end=True), response_headers(), response_body(b"z" * 5000))
    assert memory.held_bytes > 5000
    one.resume(Routed((ENDPOINT,), NotedExchange()))
    assert memory.held_bytes == HEAD_BYTES


def test_a_body_under_way_is_refused_where_nearly_all_memory_is_taken_and_given_back():
    account = MemoryAccount(1_000_000)
    memory = MemoryBudget(10**9, account)
    under_way, routed = session(memory), session(memory)
    talk(routed, request_headers(), request_body(b"{}", end=True))
    talk(under_way, request_headers(), PIECE)
    account.hold_parsed(960_000)
    refused = talk(under_way, PIECE)
    assert [(answer.kind, answer.status) for answer in refused] == [("immediate_response", 503)]
    assert account.refused == 1
    assert kinds(talk(routed, response_headers(), response_body(b"y", end=True))) == ["response_headers", "response_body"]
    for each in (under_way, routed):
        each.close(CloseCause.RESET)
    assert memory.held_bytes == 0


def test_a_request_that_finds_no_memory_is_refused_and_the_next_one_served():
    open_session = session_factory(NotedDirector(), SessionSettings(max_held_bytes=25_000), counters := SessionCounters())
    hungry, late = open_session(), open_session()
    talk(hungry, request_headers(), PIECE, PIECE)
    refused = talk(late, request_headers(), PIECE)
    assert [(answer.kind, answer.status) for answer in refused] == [("immediate_response", 503)]
    assert refused[0].body is not None
    assert refused[0].body.startswith(b"inference error: ServiceUnavailable - the requests under way hold all the memory")
    assert late.finished
    late.close(CloseCause.END)
    hungry.close(CloseCause.RESET)
    assert kinds(talk(open_session(), request_headers(), request_body(b"{}", end=True))) == ["request_headers", "request_body"]
    assert (counters.unroutable, counters.bodies_too_large, counters.buffer_exhaustions) == (1, 0, 1)


def test_headers_that_find_no_memory_are_refused():
    counters = SessionCounters()
    one = session(MemoryBudget(500), counters=counters)
    assert [answer.status for answer in talk(one, request_headers({"x": "y" * 1000}, end=True))] == [503]
    assert counters.buffer_exhaustions == 1


def test_what_comes_while_a_decision_is_awaited_and_finds_no_memory_ends_the_stream():
    counters = SessionCounters()
    one = session(MemoryBudget(3000), LaterDirector(), counters)
    talk(one, request_headers(), request_body(b"{}", end=True))
    with pytest.raises(ProtocolError, match="all the memory") as caught:
        talk(one, *[response_body(b"")] * 40)
    assert caught.value.status == GrpcStatus.RESOURCE_EXHAUSTED
    assert counters.buffer_exhaustions == 1


def test_what_decoding_makes_of_a_message_is_accounted_for():
    head = ProcessingRequest.FromString(request_headers())
    hint = head.metadata_context.filter_metadata[SUBSET_NAMESPACE].fields[SUBSET_KEY]
    hint.string_value = ",".join(map("{:x}".format, range(0x1000, 0x4000)))
    for number in range(5000):
        head.request_headers.headers.headers.add(key=f"x-{number:x}", raw_value=b"1")
    first, memory = head.SerializeToString(), MemoryBudget(10**8)
    tracemalloc.start()
    try:
        one = session(memory, LaterDirector())
        one.receive(first)
        taken, _ = tracemalloc.get_traced_memory()
        assert taken / 2 < memory.held_bytes < 4 * taken
        talk(one, request_body(b"{}", end=True), response_headers())
        held = memory.held_bytes
        body = ProcessingRequest(response_body=HttpBody(body=b"x"), metadata_context=head.metadata_context)
        for number in range(5000):
            body.metadata_context.filter_metadata["x"].fields[f"{number}"].number_value = 1
        later = body.SerializeToString()
        one.receive(later)
        del body
        assert memory.held_bytes - held >= len(later)
    finally:
        tracemalloc.stop()
    one.resume(Routed((ENDPOINT,), NotedExchange()))
    assert memory.held_bytes == len(first) + 128 * len(head.request_headers.headers.headers)
    one.close(CloseCause.RESET)
    assert memory.held_bytes == 0


def test_pieces_without_a_byte_hold_nothing_however_many_come():
    memory = MemoryBudget(10**6)
    one = session(memory)
    talk(one, request_headers())
    empty = request_body(b"")
    tracemalloc.start()
    try:
        for _ in range(20_000):
            one.receive(empty)
        assert tracemalloc.get_traced_memory()[0] < 20_000
    finally:
        tracemalloc.stop()
    assert memory.held_bytes == HEAD_BYTES


def test_pieces_without_a_byte_are_accounted_for_where_each_is_owed_an_answer():
    early = request_headers(request_body=BodyMode.STREAMED, early=True)
    one = session(MemoryBudget(1000), counters=(counters := SessionCounters()))
    assert [answer.status for answer in talk(one, early, *[request_body(b"")] * 20)] == [503]
    assert counters.buffer_exhaustions == 1


def test_a_body_that_comes_byte_by_byte_is_accounted_for_by_what_it_costs():
    memory = MemoryBudget(10**6)
    one = session(memory)
    talk(one, request_headers(), *[request_body(b"xy")] * 100)
    assert memory.held_bytes > 100 * 60


def test_requests_are_refused_at_their_headers_while_the_process_has_hardly_any_memory_left():
    account = MemoryAccount(100_000)
    memory = MemoryBudget(10**6, account)
    counters = SessionCounters()
    account.hold_parsed(91_000)
    [answer] = talk(session(memory, counters=counters), request_headers())
    assert (answer.kind, answer.status, answer.headers[DROPPED]) == ("immediate_response", 503, "rejected-overloaded")
    assert (account.counts()["request_refused"], counters.unroutable, counters.buffer_exhaustions) == (1, 1, 0)

    account.hold_parsed(-91_000)
    account.measured(0, 0)
    one = session(memory)
    assert talk(one, request_headers()) == []
    account.hold_parsed(91_000)
    assert kinds(talk(one, request_body(b"{}", end=True))) == ["request_headers", "request_body"], "it had begun before"
