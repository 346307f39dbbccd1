"""Body messages, read without protobuf: a streamed answer comes in some eighty of them, all of one shape."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

REQUEST_BODY: Final = 0x22
RESPONSE_BODY: Final = 0x2A
"""Tags of `ProcessingRequest.request_body` and `.response_body`: the first byte of a message that holds nothing else."""

_END: Final = b"\x10\x01"
"""`end_of_stream: true` of an `HttpBody`."""
_NOTHING_BUT_THE_END: Final = b"\x02\x10\x01"


def body_piece(message: bytes) -> tuple[int, int, bool] | None:
    """Where the bytes of a body message start and stop, and whether they are the last.

    None for every other message, and for a body message with more in it. What it reads, protobuf would read alike: every byte of the
    message is accounted for.
    """
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
    """What a message of this length begins with if it holds a piece of a response body that goes on, and nothing else."""
    return _heads(RESPONSE_BODY, length)[0]


@lru_cache(maxsize=8192)
def _heads(tag: int, length: int) -> tuple[bytes, bytes]:
    """What precedes the bytes of a body in a message of this length: of one that goes on, and of the last."""
    return _head(tag, length - 1, 0), _head(tag, length - 1, len(_END))


def _head(tag: int, rest: int, after: int) -> bytes:
    """Tag and length of `HttpBody`, then of its `body`, after which `after` bytes follow; what no message begins with if there is no such.

    Args:
        tag: Of the field in `ProcessingRequest`.
        rest: Bytes behind the tag.
        after: Bytes behind the body.
    """
    whole = _announced(rest)
    size = _announced(whole - 1 - after)
    return bytes((tag,)) + varint(whole) + b"\x0a" + varint(size) if size > 0 else NO_HEAD


NO_HEAD: Final = b"\x00"
"""No body message begins with it."""


def _announced(total: int) -> int:
    """The number that announces so many bytes behind it that they and its varint are `total`; -1 where there is none."""
    for size in range(1, 6):
        if total > size and len(varint(total - size)) == size:
            return total - size
    return -1


def varint(number: int) -> bytes:
    """A number, seven bits a byte, the least significant first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
