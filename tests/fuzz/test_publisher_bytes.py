"""What publishers of KV events send as ZMTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from endpick_builtin.producers.precise.kv_turns import SEATS, Seats
from endpick_builtin.producers.precise.kv_zmtp import MAX_MESSAGE_BYTES, MOST_FRAMES, Connection, CutOffError, Frames, message
from fuzz.bounds import mixed

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x06\x05READY"
PIECES = mixed(
    READY,
    message(b"topic", bytes(8), b"payload"),
    b"\x04\x07\x04PING\0\0",
    b"\x04\x06\x05ERROR",
    b"\x01\x00",
    b"\x03\0\0\0\0\0\0\x40\x01" + b"x" * 16_385,
    b"\x02\0\0\0\0\0\x1f\xff\xff",
    b"\x02\x7f" + b"\xff" * 7,
)


@given(st.booleans(), st.booleans(), PIECES, st.integers(1, 40))
def test_what_a_publisher_sends_is_followed_or_cut_off(greets, introduces, sent, cut):
    """And its seat is given back, and no message is kept that is longer than one may be."""
    asyncio.run(_follow((GREETING if greets else b"") + (READY if introduces else b"") + sent, cut))


async def _follow(sent: bytes, cut: int) -> None:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    seats = Seats()
    connection = Connection(ours, b"SUB", message(b"\x01"), seats, _checked, 0.0)
    with theirs:
        try:
            for piece in (sent[:cut], sent[cut:]):
                theirs.sendall(piece)
                for need in connection.steps:
                    if need is need.BYTES:
                        break
            theirs.shutdown(socket.SHUT_WR)
            for _ in connection.steps:
                theirs.recv(1 << 16)
        except (CutOffError, OSError):
            pass
        finally:
            connection.close()
    assert seats.free == SEATS


def _checked(frames: Frames) -> Iterator[None]:
    assert len(frames) <= MOST_FRAMES
    assert sum(map(len, frames)) <= MAX_MESSAGE_BYTES + 4096
    yield
