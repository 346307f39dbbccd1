"""Bodies of megabytes: no part of them is copied, and what the gateway gets is the same."""

from __future__ import annotations

import pytest

from endpick._proto.ext_proc_pb2 import HttpBody, ProcessingRequest, ProcessingResponse
from endpick.extproc.session import Session, SessionSettings
from endpick.extproc.stream import LongMessage, LongReply, ProtocolError, SessionCounters
from endpick.requests.long_body import LongBody
from endpick.requests.model import BodyMode, Routed
from unit.extproc.conversation import (
    ENDPOINT,
    NotedDirector,
    NotedExchange,
    kinds,
    read,
    request_body,
    request_headers,
    response_body,
    response_headers,
    talk,
)
from unit.extproc.test_session_ends import LaterDirector

PIECES = [bytes([letter]) * 60_000 for letter in range(40)]
WHOLE = b"".join(PIECES)


def long_message(message: bytes, body: bytes) -> LongMessage:
    """The same message, as a transport takes it apart."""
    rest = ProcessingRequest.FromString(message)
    getattr(rest, rest.WhichOneof("request")).ClearField("body")
    pieces = [body[at : at + 16_000] for at in range(0, len(body), 16_000)]
    return LongMessage(rest.SerializeToString(), LongBody(pieces), len(message))


def test_a_long_body_goes_on_in_the_memory_in_which_it_came():
    session = Session(NotedDirector())
    messages = [request_body(piece) for piece in PIECES]
    for message in (request_headers(), *messages):
        assert list(session.receive(message)) == []
    replies = session.receive(request_body(b"", end=True))
    assert b"".join(reply.body or b"" for reply in map(read, replies)) == WHOLE
    assert [read(reply).end for reply in replies][-2:] == [False, True]
    long = [part for reply in replies if isinstance(reply, LongReply) for part in reply.parts if len(part) > 100]
    assert sum(map(len, long)) > len(WHOLE) - 40 * 100
    assert all(isinstance(part, memoryview) and any(part.obj is message for message in messages) for part in long)


@pytest.mark.parametrize("mode", [BodyMode.FULL_DUPLEX_STREAMED, BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL])
@pytest.mark.parametrize("replaced", [None, WHOLE[::-1]])
def test_the_gateway_is_told_the_same_whatever_a_long_body_is_kept_in(mode, replaced):
    told = []
    for body in (replaced, None if replaced is None else LongBody([memoryview(replaced)[:100_000], replaced[100_000:]])):
        for cut in (False, True):
            session = Session(NotedDirector(Routed((ENDPOINT,), NotedExchange(), {"x-a": "b"}, body, {"n": {"k": "v"}})))
            message = request_body(WHOLE, end=True)
            head = request_headers({"content-length": "7"}, request_body=mode, early=True)
            replies = talk(session, head, long_message(message, WHOLE) if cut else message)
            unchanged = WHOLE if mode is BodyMode.FULL_DUPLEX_STREAMED else b""
            assert b"".join(reply.body or b"" for reply in replies) == (replaced or unchanged)
            told.append(replies)
    assert all(replies == told[0] for replies in told[1:])


def test_the_director_gets_a_long_body_in_pieces_and_a_short_one_as_bytes():
    director = NotedDirector()
    talk(Session(director), request_headers(), *[request_body(piece) for piece in PIECES], request_body(b"", end=True))
    talk(Session(director), request_headers(), request_body(PIECES[0]), request_body(PIECES[1], end=True))
    long, short = [asked.body for asked in director.asked]
    assert isinstance(long, LongBody)
    assert long.whole() == WHOLE
    assert short == PIECES[0] + PIECES[1]


def test_a_body_of_thousands_of_short_pieces_is_kept_in_few():
    director, session = NotedDirector(), Session(NotedDirector())
    session = Session(director)
    session.receive(request_headers())
    session.receive(request_body(bytes(2**20)))
    for _ in range(5000):
        session.receive(request_body(b"0123456789"))
    session.receive(request_body(b"", end=True))
    body = director.asked[0].body
    assert isinstance(body, LongBody)
    assert (len(body), len(body.pieces) < 25) == (2**20 + 50_000, True)


def test_a_response_in_one_long_message_passes():
    exchange = NotedExchange(rewrite=lambda chunk, end: chunk.lower())
    session = Session(NotedDirector(Routed((ENDPOINT,), exchange)))
    talk(session, request_headers(response_body=BodyMode.BUFFERED), request_body(b"{}", end=True), response_headers())
    content = b"ANSWER" * 100_000
    (reply,) = talk(session, long_message(response_body(content, end=True), content))
    assert reply.body == content.lower()
    assert b"".join(chunk for chunk, _ in exchange.chunks) == content
    assert [is_last for _, is_last in exchange.chunks] == [False, False, False, True]


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize(("wants", "rewrites"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("mode", [BodyMode.FULL_DUPLEX_STREAMED, BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL])
def test_the_gateway_and_the_exchange_are_told_the_same_of_a_long_answer(mode, wants, rewrites, end):
    content = b"ANSWER" * 600_000
    told = []
    for cut in (False, True):
        exchange = NotedExchange(wants_chunks=wants, rewrites=rewrites, rewrite=lambda chunk, end: chunk.lower() if rewrites else None)
        session = Session(NotedDirector(Routed((ENDPOINT,), exchange)))
        talk(session, request_headers(response_body=mode), request_body(b"{}", end=True), response_headers())
        message = response_body(content, end=end)
        replies = talk(session, long_message(message, content) if cut else message)
        said = b"".join(reply.body or b"" for reply in replies), kinds(replies)[-1], replies[-1].end
        told.append((said, exchange.finishes, [is_last for _, is_last in exchange.chunks if is_last]))
        assert not wants or b"".join(chunk for chunk, _ in exchange.chunks) == content
    assert told[0] == told[1]


@pytest.mark.parametrize("found", [None, b"B", PIECES[39][:1]])
def test_a_long_answer_is_shown_in_parts_and_replaced_as_a_whole_where_any_of_them_is(found):
    exchange = NotedExchange(rewrite=lambda chunk, end: chunk.replace(found, b"?") if found and found in chunk else None)
    exchange.tells_metadata, exchange.response_metadata = True, lambda: {"n": {"k": "v"}}
    session = Session(NotedDirector(Routed((ENDPOINT,), exchange)))
    headers = response_headers({"content-length": str(len(WHOLE))})
    talk(session, request_headers(response_body=BodyMode.BUFFERED), request_body(b"{}", end=True), headers)
    (reply,) = session.receive_long(long_message(response_body(WHOLE, end=True), WHOLE))
    assert max(len(chunk) for chunk, _ in exchange.chunks) < 2**18 + 16_000
    told = ProcessingResponse.FromString(reply if isinstance(reply, bytes) else reply.whole())
    assert told.response_body.response.body_mutation.body == (WHOLE.replace(found, b"?") if found and found in WHOLE else b"")
    assert told.dynamic_metadata.fields["n"].struct_value.fields["k"].string_value == "v"
    assert told.response_body.response.HasField("header_mutation") is (found is not None and found in WHOLE)


def odd_message(content: bytes) -> bytes:
    """The same in a message with more in it than a body."""
    message = ProcessingRequest.FromString(response_body(content, end=True))
    message.observability_mode = True
    return message.SerializeToString()


AS_TRANSPORTS_GIVE_IT = [
    lambda content: long_message(response_body(content, end=True), content),
    lambda content: response_body(content, end=True),
    odd_message,
]


@pytest.mark.parametrize("message", AS_TRANSPORTS_GIVE_IT, ids=["in pieces", "as one", "with more in it"])
@pytest.mark.parametrize("held_back", [None, b"held"])
def test_the_midst_of_tens_of_megabytes_passes_unseen_behind_what_was_held_back(held_back, message):
    content = b"first" + b"." * (3 << 20) + b"midst" + b"." * (3 << 20) + b"last"
    exchange = NotedExchange()
    exchange.held_back = held_back
    session = Session(NotedDirector(Routed((ENDPOINT,), exchange)))
    talk(session, request_headers(response_body=BodyMode.BUFFERED), request_body(b"{}", end=True), response_headers())
    (reply,) = talk(session, message(content))
    seen = b"".join(chunk for chunk, _ in exchange.chunks)
    assert exchange.unseen + len(seen) == len(content)
    assert len(seen) < (4 << 20) + 300_000
    assert seen.startswith(b"first")
    assert seen.endswith(b"last")
    assert b"midst" not in seen
    if held_back is None:
        assert reply.body is None
    else:
        before, after = reply.body.split(held_back)
        assert before + after == content
        assert len(before) >= 2 << 20


def test_a_long_message_without_a_body_ends_the_answer_all_the_same():
    session = Session(NotedDirector(Routed((ENDPOINT,), NotedExchange(rewrites=False))))
    talk(session, request_headers(), request_body(b"{}", end=True), response_headers())
    message = response_body(b"", end=True)
    replies = talk(session, LongMessage(message, LongBody([]), len(message)))
    assert [reply.end for reply in replies] == [True]


def test_a_long_answer_is_neither_joined_nor_copied_into_the_replies():
    session = Session(NotedDirector(Routed((ENDPOINT,), NotedExchange(rewrites=False))))
    talk(session, request_headers(), request_body(b"{}", end=True), response_headers())
    replies = session.receive_long(long_message(response_body(WHOLE, end=True), WHOLE))
    copied = sum(len(reply) for reply in replies if isinstance(reply, bytes))
    assert copied < 17_000
    assert sum(map(len, replies)) > len(WHOLE)


def test_a_long_message_that_comes_too_early_waits_for_the_decision():
    session = Session(LaterDirector())
    message = ProcessingRequest(response_body=HttpBody(body=WHOLE, end_of_stream=True)).SerializeToString()
    talk(session, request_headers(), request_body(b"{}", end=True), response_headers(), long_message(message, WHOLE))
    replies = [read(reply) for reply in session.resume(Routed((ENDPOINT,), NotedExchange()))]
    assert kinds(replies)[:3] == ["request_headers", "request_body", "response_headers"]
    assert b"".join(reply.body or b"" for reply in replies[3:]) == WHOLE


def test_of_messages_that_come_before_the_decision_no_more_are_kept_than_a_gateway_sends():
    counters = SessionCounters()
    session = Session(LaterDirector(), SessionSettings(max_early_messages=5), counters)
    talk(session, request_headers(), request_body(b"{}", end=True), response_headers())
    for _ in range(4):
        assert list(session.receive(response_body(b"x"))) == []
    with pytest.raises(ProtocolError, match="too many messages came while the decision was being awaited"):
        session.receive(response_body(b"x"))
    assert counters.messages_too_early == 1


@pytest.mark.parametrize("replaced", [None, b"other"])
def test_replies_to_a_body_of_thousands_of_messages_are_one_that_is_repeated(replaced):
    session = Session(NotedDirector(Routed((ENDPOINT,), NotedExchange(), body=replaced)))
    session.receive(request_headers(request_body=BodyMode.STREAMED, early=True))
    for _ in range(4999):
        session.receive(request_body(b"x"))
    replies = session.receive(request_body(b"", end=True))
    assert len(replies) < 5
    counted = [(read(reply), 1 if isinstance(reply, bytes) else reply.times) for reply in replies if read(reply).kind == "request_body"]
    assert sum(times for _, times in counted) == 5000
    assert [reply.body for reply, _ in counted] == ([None] if replaced is None else [replaced, b""])
