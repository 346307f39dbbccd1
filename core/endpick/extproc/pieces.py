"""Parses body messages without protobuf."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

REQUEST_BODY: Final = 0x22
RESPONSE_BODY: Final = 0x2A
"""Tags in `ProcessingRequest`."""

_END: Final = b"\x10\x01"
"""`end_of_stream: true` of an `HttpBody`."""
_NOTHING_BUT_THE_END: Final = b"\x02\x10\x01"


def body_piece(message: bytes) -> tuple[int, int, bool] | None:
    """Start and stop of the body, and whether it ends; None to leave the message to protobuf."""
    length = len(message)
    if length < 4 or (message[0] != RESPONSE_BODY and message[0] != REQUEST_BODY):
        return None
    more, last = _heads(message[0], length)
    if message.startswith(more):
        return len(more), length, False
    if message.startswith(last) and message.endswith(_END):
        return len(last), length - len(_END), True
    return (length, length, True) if message[1:] == _NOTHING_BUT_THE_END else None


def response_piece_head(length: int) -> bytes:
    """The bytes before a response chunk in a message of this length."""
    return _heads(RESPONSE_BODY, length)[0]


@lru_cache(maxsize=8192)
def _heads(tag: int, length: int) -> tuple[bytes, bytes]:
    """The bytes before a chunk, and before the last one."""
    return _head(tag, length - 1, 0), _head(tag, length - 1, len(_END))


def _head(tag: int, rest: int, after: int) -> bytes:
    """Tags and lengths before a body with `rest` bytes after the tag and `after` bytes after the body."""
    whole = _announced(rest)
    size = _announced(whole - 1 - after)
    return bytes((tag,)) + varint(whole) + b"\x0a" + varint(size) if size > 0 else NO_HEAD


NO_HEAD: Final = b"\x00"


def _announced(total: int) -> int:
    """The length that with its own varint takes `total` bytes; -1 if none."""
    for size in range(1, 6):
        if total > size and len(varint(total - size)) == size:
            return total - size
    return -1


def varint(number: int) -> bytes:
    """Protobuf encoding of a number."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
