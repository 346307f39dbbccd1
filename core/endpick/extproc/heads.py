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
    # A length takes a byte or two, and is read in place: a call for each would cost more than all the rest. One of three bytes is read as
    # more than `_LONGEST`, which no length within the message can be, so that it is left to protobuf.
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
            if message[position] != _HEADERS:
                return None
            size = message[position + 1]
            position += 2
            if size > 0x7F:
                size += (message[position] << 7) - 0x80
                position += 1
            following = position + size
            size = message[position + 1]
            at = position + 2 + size
            if message[position] != _KEY or size > 0x7F or at > following:
                return None
            written = message[position + 2 : at]
            name = _names.get(written) or _lower(written)
            if at == following:
                headers[name] = ""
            else:
                if message[at] != _RAW_VALUE and message[at] != _VALUE:
                    return None
                size = message[at + 1]
                at += 2
                if size > 0x7F:
                    size += (message[at] << 7) - 0x80
                    at += 1
                if at + size != following:
                    return None
                headers[name] = message[at:following].decode()
            position = following
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


def _lower(name: bytes) -> str:
    lowered = name.decode().lower()
    if len(_names) < MOST_NAMES and len(name) <= LONGEST_NAME:
        _names[name] = lowered
    return lowered
