"""Parses header and body messages without protobuf, which creates four objects per header."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.extproc.messages import NO_CONTEXT, MessageContext, context_of

REQUEST_HEADERS: Final = 0x12
RESPONSE_HEADERS: Final = 0x1A  # tags in `ProcessingRequest`

_HEADERS: Final = 0x0A
_HEADERS_END: Final = b"\x18\x01"  # `end_of_stream: true` of an `HttpHeaders`
_KEY: Final = 0x0A
_VALUE: Final = 0x12
_RAW_VALUE: Final = 0x1A
_LONGEST: Final = 3 + 0x3FFF  # longer lengths take three bytes
_SETTINGS_BYTES: Final = 32  # shorter contexts are settings shared by all requests
MAX_NAMES: Final = 1024
MAX_NAME_LENGTH: Final = 64
_names: Final[dict[bytes, str]] = {}  # bounded, because clients choose names
_message_of: Final = ProcessingRequest.FromString


def header_message(message: bytes) -> tuple[dict[str, str], bool, MessageContext] | None:
    """Headers, end of stream and context; None to leave the message to protobuf. Raises DecodeError or ProtocolError."""
    if len(message) < 4 or (message[0] != REQUEST_HEADERS and message[0] != RESPONSE_HEADERS):
        return None
    # Lengths of up to two bytes are read in place; longer ones exceed `_LONGEST`.
    headers: dict[str, str] = {}
    try:
        size = message[1]
        position = 2
        if size > 0x7F:
            size += (message[2] << 7) - 0x80
            position = 3
        stop = position + size
        size = message[position + 1]
        if message[position] != _HEADERS or stop > len(message) or stop > _LONGEST:
            return None
        position += 2
        if size > 0x7F:
            size += (message[position] << 7) - 0x80
            position += 1
        end = position + size
        if end > stop:
            return None
        while position < end:  # nearly every header has a known name and one-byte lengths
            size = message[position + 1]
            at = position + 5 + message[position + 3]
            name = _names.get(message[position + 2 : at])
            following = position + 2 + size
            if name is not None and size <= 0x7F and message[position] == _HEADERS and message[at] + at + 1 == following:
                headers[name] = message[at + 1 : following].decode()
                position = following
            else:
                header = _header(message, position)
                if header is None:
                    return None
                name, value, position = header
                headers[name] = value
    except (IndexError, UnicodeDecodeError):
        return None
    if position != end or message[end:stop] not in (b"", _HEADERS_END):
        return None
    rest = message[stop:]
    if not rest:
        return headers, end < stop, NO_CONTEXT
    context = _cached_context(rest) if len(rest) <= _SETTINGS_BYTES else _context(rest)
    return None if context is None else (headers, end < stop, context)


def _context(rest: bytes) -> MessageContext | None:
    message = _message_of(rest)
    return None if message.WhichOneof("request") is not None else context_of(message)


_cached_context: Final = lru_cache(maxsize=64)(_context)


def _header(message: bytes, position: int) -> tuple[str, str, int] | None:
    size = message[position + 1]
    start = position + 2
    if size > 0x7F:
        size += (message[start] << 7) - 0x80
        start += 1
    end = start + size
    size = message[start + 1]
    at = start + 2 + size
    if message[position] != _HEADERS or message[start] != _KEY or size > 0x7F or at > end:
        return None
    if at == end:
        return message[start + 2 : at].decode().lower(), "", end
    if message[at] != _RAW_VALUE and message[at] != _VALUE:
        return None
    at += 1
    name = _names.get(message[start:at]) or _remembered(message[start:at])
    size = message[at]
    at += 1
    if size > 0x7F:
        size += (message[at] << 7) - 0x80
        at += 1
    return (name, message[at:end].decode(), end) if at + size == end else None


def _remembered(encoded: bytes) -> str:
    name = encoded[2:-1].decode().lower()
    if len(_names) < MAX_NAMES and len(name) <= MAX_NAME_LENGTH:
        _names[encoded] = name
    return name


REQUEST_BODY: Final = 0x22
RESPONSE_BODY: Final = 0x2A  # tags in `ProcessingRequest`

_BODY_END: Final = b"\x10\x01"  # `end_of_stream: true` of an `HttpBody`
_NOTHING_BUT_THE_END: Final = b"\x02\x10\x01"


def body_piece(message: bytes) -> tuple[int, int, bool] | None:
    """Start and stop of the body, and end of stream; None to leave the message to protobuf."""
    length = len(message)
    if length < 4 or (message[0] != RESPONSE_BODY and message[0] != REQUEST_BODY):
        return None
    more, last = _heads(message[0], length)
    if message.startswith(more):
        return len(more), length, False
    if message.startswith(last) and message.endswith(_BODY_END):
        return len(last), length - len(_BODY_END), True
    return (length, length, True) if message[1:] == _NOTHING_BUT_THE_END else None


def response_piece_head(length: int) -> bytes:
    """The bytes before the chunk in a message of this length."""
    return _heads(RESPONSE_BODY, length)[0]


@lru_cache(maxsize=8192)
def _heads(tag: int, length: int) -> tuple[bytes, bytes]:
    """The bytes before a chunk, and before the last one."""
    return _head(tag, length - 1, 0), _head(tag, length - 1, len(_BODY_END))


def _head(tag: int, rest: int, after: int) -> bytes:
    """`rest` bytes follow the tag, `after` bytes the body."""
    whole = _announced(rest)
    size = _announced(whole - 1 - after)
    return bytes((tag,)) + varint(whole) + b"\x0a" + varint(size) if size > 0 else NO_HEAD


NO_HEAD: Final = b"\x00"


def _announced(total: int) -> int:
    """The length that takes `total` bytes including its varint; -1 if none."""
    for size in range(1, 6):
        if total > size and len(varint(total - size)) == size:
            return total - size
    return -1


def varint(number: int) -> bytes:
    """Encode a number."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
