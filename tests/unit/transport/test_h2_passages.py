"""The fast path for pieces of a streamed response gives the same bytes as the usual one."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpick.extproc.session import Session, SessionSettings
from endpick.extproc.stream import SessionCounters
from endpick.requests.model import EVICTED, BodyMode, CloseCause, Routed
from endpick.transport.h2 import frames
from endpick.transport.h2.frames import PADDED, FrameType
from endpick.transport.h2.stream import MESSAGE_HEAD
from endpick.transport.limits import Limits
from unit.extproc import conversation as say
from unit.extproc.conversation import ENDPOINT, NotedExchange, read
from unit.transport.peer import Peer, data, frame

INITIAL_WINDOW = 4
EDGES = (0, 1, 107, 122, 123, 124, 127, 128, 250, 4080, 4090, 4100, 16_000)
"""Around the lengths whose varint grows, and the longest payload of the fast path."""


def wire(message: bytes, compressed: int = 0) -> bytes:
    return MESSAGE_HEAD.pack(compressed, len(message)) + message


class Gateway(Peer):
    """A peer whose stream 1 has its response headers, and one exchange."""

    def __init__(self, exchange: NotedExchange, *, mode: BodyMode = say.FULL_DUPLEX, settings: dict[int, int] | None = None, **options):
        self.exchange = exchange
        self.session_counters = SessionCounters()
        director = say.NotedDirector(Routed((ENDPOINT,), exchange))
        open_session = partial(Session, director, SessionSettings(), self.session_counters)
        super().__init__(session=open_session, settings=settings, **options)
        self.open(1)
        for message in (say.request_headers(end=True, response_body=mode), say.response_headers()):
            self.message(1, message)
        self.take()

    @property
    def stream(self):
        return self.connection.streams.open[1]


def both_ways(**options) -> tuple[Gateway, Gateway]:
    """The same response on the fast path and on the usual one."""
    short, long = (Gateway(NotedExchange(rewrites=rewrites), **options) for rewrites in (False, True))
    assert short.stream.passing is not None
    assert long.stream.passing is None
    return short, long


KINDS = st.sampled_from(
    ("frame", "cut", "joined", "padded", "trailing field", "compressed", "wrong length", "headers again", "end", "trailers")
)


def sent(kind: str, piece: bytes, at: int) -> bytes:
    """Frames with a piece in a certain form, or with something else."""
    payload = wire(say.response_body(piece))
    match kind:
        case "cut":
            at %= len(payload) + 1
            return data(1, payload[:at]) + data(1, payload[at:])
        case "joined":
            return data(1, payload + payload)
        case "padded":
            return frame(FrameType.DATA, PADDED, 1, bytes((at % 9,)) + payload + bytes(at % 9))
        case "trailing field":
            return data(1, wire(say.response_body(piece) + b"\x42\x00"))
        case "compressed":
            return data(1, wire(say.response_body(piece), compressed=1))
        case "wrong length":
            return data(1, payload[:-1] if at & 1 else payload + b"\x00")
        case "headers again":
            return data(1, wire(say.response_headers()))
        case "end":
            return data(1, wire(say.response_body(piece, end=True)))
        case "trailers":
            return data(1, wire(say.response_trailers()))
    return data(1, payload)


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(
        st.tuples(st.one_of(st.just("frame"), KINDS), st.sampled_from(EDGES), st.binary(min_size=1, max_size=3), st.integers(0, 20_000)),
        max_size=8,
    ),
    window=st.sampled_from((0, 10, 300, 5000, 2**20)),
    at_once=st.booleans(),
)
def test_fast_path_gives_the_same_bytes_and_pieces(pieces, window, at_once):
    short, long = both_ways(settings={INITIAL_WINDOW: window})
    parts = [sent(kind, (text * size)[:size], at) for kind, size, text, at in pieces]
    for peer in (short, long):
        for part in [b"".join(parts)] if at_once else parts:
            peer.send(part)
    # Only an exchange that rewrites sees an empty piece.
    seen = [[piece for piece in peer.exchange.chunks if piece[0]] for peer in (short, long)]
    assert seen[0] == seen[1]
    answers = [(peer.connection.outbox.take(), peer.exchange.finishes, peer.counters.snapshot()) for peer in (short, long)]
    assert answers[0] == answers[1]
    for peer in (short, long):
        peer.send(frames.window_update(1, 2**20))
    assert short.connection.outbox.take() == long.connection.outbox.take()


def test_empty_message_is_refused_on_both_paths():
    short, long = both_ways()
    for peer in (short, long):
        peer.send(data(1, wire(b"")))
    assert short.connection.outbox.take() == long.connection.outbox.take()
    assert short.exchange.finishes == long.exchange.finishes == [CloseCause.ERROR]


def test_piece_is_echoed_observed_and_counted():
    gateway = Gateway(NotedExchange(rewrites=False))
    before = gateway.counters.snapshot()
    gateway.send(data(1, wire(say.response_body(b"data: x\n\n"))))
    [reply] = gateway.replies(1)
    assert (read(reply).body, read(reply).end) == (b"data: x\n\n", False)
    assert gateway.exchange.chunks == [(b"data: x\n\n", False)]
    after = gateway.counters.snapshot()
    assert {name: after[name] - before[name] for name in after if after[name] != before[name]} == {
        "messages_received": 1,
        "messages_sent": 1,
    }


def test_unwanted_pieces_are_not_observed():
    gateway = Gateway(NotedExchange(wants_chunks=False))
    assert gateway.stream.passing is not None
    gateway.send(data(1, wire(say.response_body(b"a"))))
    assert [read(reply).body for reply in gateway.replies(1)] == [b"a"]
    assert gateway.exchange.chunks == []


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL])
def test_other_body_modes_have_no_fast_path(mode):
    assert Gateway(NotedExchange(rewrites=False), mode=mode).stream.passing is None


def test_failing_exchange_is_not_called_again():
    def fails(chunk: bytes, end: bool) -> bytes | None:
        raise ZeroDivisionError

    gateway = Gateway(NotedExchange(rewrites=False, rewrite=fails))
    for piece in (b"a", b"b"):
        gateway.send(data(1, wire(say.response_body(piece))))
    gateway.send(data(1, wire(say.response_body(b"c", end=True))))
    assert [read(reply).body for reply in gateway.replies(1)] == [b"a", b"b", b"c"]
    assert gateway.session_counters.exchange_faults == 1
    assert gateway.exchange.chunks == [(b"a", False)]


def test_piece_after_the_end_is_ignored_on_both_paths():
    for gateway in both_ways():
        gateway.send(data(1, wire(say.response_body(b"a", end=True))))
        gateway.take()
        gateway.send(data(1, wire(say.response_body(b"b"))))
        assert gateway.take() == []
        assert gateway.exchange.chunks == [(b"a", True)]
        assert gateway.exchange.finishes == [CloseCause.END]


def test_evicted_request_leaves_the_fast_path():
    gateway = Gateway(NotedExchange(rewrites=False))
    stream = gateway.stream
    gateway.connection.streams.resume(stream, EVICTED)
    gateway.take()
    gateway.send(data(1, wire(say.response_body(b"a"))))
    assert stream.passing is None
    assert gateway.exchange.chunks == []
    assert gateway.replies(1) == []


def test_too_large_piece_is_refused():
    gateway = Gateway(NotedExchange(rewrites=False), limits=Limits(max_message_bytes=200))
    gateway.send(data(1, wire(say.response_body(b"x" * 100))))
    gateway.send(data(1, wire(say.response_body(b"x" * 300))))
    assert gateway.counters.messages_too_large == 1


def test_cut_message_passes_too():
    gateway = Gateway(NotedExchange(rewrites=False))
    payload = wire(say.response_body(b"data: x\n\n"))
    gateway.send(data(1, payload[:6]) + data(1, payload[6:]))
    [reply] = gateway.replies(1)
    assert read(reply).body == b"data: x\n\n"
