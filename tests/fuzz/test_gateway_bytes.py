"""Arbitrary bytes from a gateway: HTTP/2, HPACK, ext_proc, health and reflection."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from endpick.extproc.session import Session, SessionSettings
from endpick.extproc.stream import ProtocolError
from endpick.requests.model import CloseCause, Refused
from endpick.transport.h2 import frames
from endpick.transport.h2.frames import H2ConnectionError
from endpick.transport.h2.headers import HeaderDecoder
from endpick.transport.limits import Limits
from endpick.transport.services import HealthBoard, health_methods, reflection_methods
from fuzz.bounds import bounded, mixed
from unit.extproc import conversation as say
from unit.transport.peer import PATH, REQUEST, Peer, raw_headers

HEADERS = raw_headers(1, list(REQUEST.items()), end=False)
BLOCK = HEADERS[frames.FRAME_HEAD_BYTES :]
FRAME = st.builds(
    lambda kind, flags, stream, payload, lie: struct.pack(">HBBBI", 0, (len(payload) + lie) % 256, kind, flags, stream) + payload,
    st.integers(0, 12),
    st.integers(0, 255),
    st.sampled_from([0, 1, 2, 3, 5, 7, 2**31 - 1, 2**31, 2**32 - 1]),
    st.one_of(st.binary(max_size=24), st.just(BLOCK), st.just(b"\x00\x00\x00\x00\x02hi")),
    st.sampled_from([0, 0, 0, 0, 1, 200]),
)
CONVERSATION = st.lists(st.one_of(FRAME, FRAME, st.just(HEADERS), st.binary(max_size=8)), max_size=25)


@given(st.booleans(), CONVERSATION, st.lists(st.integers(1, 40), max_size=10))
def test_no_bytes_make_a_connection_raise(greet, pieces, cuts):
    peer = Peer(Limits(max_message_bytes=2**16), greet=greet)
    data = b"".join(pieces)

    def receive(sent: bytes) -> None:
        rest = sent
        for cut in [*cuts, len(sent)]:
            peer.send(rest[:cut])
            rest = rest[cut:]
            peer.connection.outbox.take()

    bounded(receive, data)
    peer.connection.tick(peer.now + 3600)
    peer.connection.lost()

    assert peer.counters.streams_active == 0
    assert all(len(session.causes) == 1 for session in peer.sessions)


@given(mixed(BLOCK, b"\x82", b"\x3f\xe1\x1f", b"\x00", b"\x40", b"\x0f\xff\xff\xff\xff\x0f", b"\x20"))
def test_header_block_decodes_or_is_a_connection_error(block):
    decoder = HeaderDecoder(2**14)

    try:
        fields = bounded(decoder.decode, block)
    except H2ConnectionError:
        return
    assert sum(len(name) + len(value) for name, value, *_ in fields) <= 2**14


MESSAGES = (
    say.request_headers(),
    say.request_headers(end=True),
    say.request_body(b'{"model": "m"}', end=True),
    say.request_body(b"x"),
    say.request_trailers(),
    say.response_headers(),
    say.response_body(b"data: {}\n\n"),
    say.response_body(b"", end=True),
    say.response_trailers(),
)


@given(st.lists(st.one_of(st.sampled_from(MESSAGES), mixed(*MESSAGES, b"\x0a", b"\x12\x02", b"\x08\x01")), max_size=8), st.booleans())
def test_ext_proc_messages_are_answered_or_refused(messages, refuses):
    session = Session(
        say.NotedDirector(Refused(429, "ResourceExhausted", "no") if refuses else None), SessionSettings(max_request_body_bytes=200)
    )

    try:
        for message in messages:
            bounded(session.receive, message)
    except ProtocolError:
        session.close(CloseCause.ERROR)
    else:
        session.close(CloseCause.END)


@given(mixed(b"\x0a", b"\x0a\x08liveness", b"\x0a\x00", b"\xff\xff\x01"))
def test_health_requests_are_answered_or_refused(message):
    async def ask() -> None:
        for method in health_methods(HealthBoard()).values():
            session = method.open_session()
            with suppress(ProtocolError):
                session.receive(message)
            session.close(CloseCause.END)

    asyncio.run(ask())


@given(mixed(b"\x0a\x04host", b"\x1a\x01x", b"\x22\x20envoy.service.ext_proc.v3.Process", b"\x3a\x01*", b"\x2a\x02\x0a\x01"))
def test_reflection_requests_are_answered_or_refused(message):
    for method in reflection_methods({PATH: None}).values():
        with suppress(ProtocolError):
            method.open_session().receive(message)
