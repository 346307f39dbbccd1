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
_LONGEST: Final = 3 + 0x3FFF
"""Where headers end at the latest whose length takes two bytes."""
_SETTINGS_BYTES: Final = 32
"""What stands beside the headers in so few bytes is how the gateway is configured, if anything: the same for all its requests."""
_names: Final[dict[bytes, str]] = {}
"""As those of `headers`, by what gateways write: the tag of the name, its length, the name and the tag of the value."""
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
    # A length takes a byte or two, and is read in place: a call for each would cost more than all the rest. One of three bytes is read as
    # more than `_LONGEST`, which no length within the message can be, so that it is left to protobuf. Of nearly every header the name is
    # known and the lengths take a byte.
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
        while position < end:
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
    if position != end or message[end:stop] not in (b"", _END):
        return None
    beside = message[stop:]
    rest = _settings(beside) if len(beside) <= _SETTINGS_BYTES else _parsed(beside)
    return None if rest.WhichOneof("request") is not None else (headers, end < stop, rest)


@lru_cache(maxsize=64)
def _settings(beside: bytes) -> ProcessingRequest:
    """Shared by all messages with these bytes: those who get it only read it."""
    return _parsed(beside)


def _header(message: bytes, position: int) -> tuple[str, str, int] | None:
    """The header that begins here, name and value, and where it ends: one with a new name, a long value or none.

    None if it has to be left to protobuf.

    Raises:
        IndexError: the message ends too early.
        UnicodeDecodeError: a name or a value is not UTF-8.
    """
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
    name = _names.get(message[start:at]) or _learnt(message[start:at])
    size = message[at]
    at += 1
    if size > 0x7F:
        size += (message[at] << 7) - 0x80
        at += 1
    return (name, message[at:end].decode(), end) if at + size == end else None


def _learnt(written: bytes) -> str:
    """The name in lower case, remembered unless there are too many; `written` is as in `_names`."""
    name = written[2:-1].decode().lower()
    if len(_names) < MOST_NAMES and len(name) <= LONGEST_NAME:
        _names[written] = name
    return name
