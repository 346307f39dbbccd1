"""Header messages, read without protobuf, which makes four objects for each header: nearly every gateway writes them alike."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.extproc.headers import LONGEST_NAME, MOST_NAMES

REQUEST_HEADERS: Final = 0x12
RESPONSE_HEADERS: Final = 0x1A
"""Tags of `ProcessingRequest.request_headers` and `.response_headers`: the first byte of a message with headers."""

_HEADERS: Final = 0x0A
"""Tag of `HttpHeaders.headers`, and of the headers in it."""
_END: Final = b"\x18\x01"
"""`end_of_stream: true` of an `HttpHeaders`."""
_KEY: Final = 0x0A
_VALUE: Final = 0x12
_RAW_VALUE: Final = 0x1A
_SETTINGS_BYTES: Final = 32
"""What stands beside the headers in so few bytes is how the gateway is configured, if anything: the same for all its requests."""
_names: Final[dict[bytes, str]] = {}
"""As those of `headers`, by the bytes that gateways write."""
_parsed: Final = ProcessingRequest.FromString


def header_message(message: bytes) -> tuple[dict[str, str], bool, ProcessingRequest] | None:
    """The headers that a message brings, whether the body ends with them, and what else is in the message.

    Headers are as `read_headers` has them. None for every other message, and for one that is written in an unusual way. What it reads,
    protobuf would read alike: every byte of the message is accounted for.

    Raises:
        DecodeError: what else there is in the message cannot be decoded.
    """
    if len(message) < 4 or (message[0] != REQUEST_HEADERS and message[0] != RESPONSE_HEADERS):
        return None
    try:
        start, stop = _extent(message, 1)
        if message[start] != _HEADERS:
            return None
        first, end = _extent(message, start + 1)
        headers = _headers(message, first, end) if end <= stop <= len(message) else None
    except (IndexError, UnicodeDecodeError):
        return None
    if headers is None or message[end:stop] not in (b"", _END):
        return None
    beside = message[stop:]
    rest = _settings(beside) if len(beside) <= _SETTINGS_BYTES else _parsed(beside)
    return None if rest.WhichOneof("request") is not None else (headers, end < stop, rest)


def _headers(message: bytes, position: int, end: int) -> dict[str, str] | None:
    """What a `HeaderMap` between these positions says; None where it has to be left to protobuf.

    Raises:
        IndexError: the message ends too early.
        UnicodeDecodeError: a name or a value is not UTF-8.
    """
    headers: dict[str, str] = {}
    while position < end:
        if message[position] != _HEADERS:
            return None
        # Most lengths fit a byte, and are read here to be spared the call.
        size = message[position + 1]
        position += 2
        if size > 0x7F:
            position, stop = _extent(message, position - 1)
        else:
            stop = position + size
        if message[position] != _KEY:
            return None
        size = message[position + 1]
        at = position + 2 + size
        if size > 0x7F or at > stop:
            return None
        written = message[position + 2 : at]
        name = _names.get(written) or _lower(written)
        if at == stop:
            headers[name] = ""
        else:
            if message[at] != _RAW_VALUE and message[at] != _VALUE:
                return None
            size = message[at + 1]
            at += 2
            if size > 0x7F:
                at, value_stop = _extent(message, at - 1)
            else:
                value_stop = at + size
            if value_stop != stop:
                return None
            headers[name] = message[at:stop].decode()
        position = stop
    return headers if position == end else None


@lru_cache(maxsize=64)
def _settings(beside: bytes) -> ProcessingRequest:
    """Shared by all messages with these bytes: those who get it only read it."""
    return _parsed(beside)


def _lower(name: bytes) -> str:
    lowered = name.decode().lower()
    if len(_names) < MOST_NAMES and len(name) <= LONGEST_NAME:
        _names[name] = lowered
    return lowered


def _extent(message: bytes, position: int) -> tuple[int, int]:
    """Where the field whose length stands at `position` begins and ends. Beyond the message if its length takes more than three bytes."""
    size = shift = 0
    for _ in range(3):
        byte = message[position]
        position += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return position, position + size
        shift += 7
    return position, len(message) + 1
