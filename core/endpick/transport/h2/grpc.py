"""gRPC over HTTP/2: messages in DATA frames, statuses in trailers, timeouts in a header."""

from __future__ import annotations

import re
from struct import Struct
from typing import Final
from urllib.parse import quote_from_bytes

from endpick.extproc.stream import GrpcStatus
from endpick.transport.h2.hpack import encode

__all__ = [
    "MESSAGE_HEAD",
    "MESSAGE_HEAD_BYTES",
    "OK_TRAILERS",
    "RESPONSE_HEADERS",
    "CompressedMessageError",
    "MessageAssembler",
    "MessageTooLargeError",
    "parse_timeout",
    "trailers",
]

MESSAGE_HEAD: Final = Struct(">BI")
MESSAGE_HEAD_BYTES: Final = 5

RESPONSE_HEADERS: Final = encode(((b":status", b"200"), (b"content-type", b"application/grpc")))

_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class MessageTooLargeError(Exception):
    """A message exceeds the maximum size."""


class CompressedMessageError(Exception):
    """A message is compressed, although no compression was negotiated."""


class MessageAssembler:
    """Assembles messages that are cut by DATA frames, or too long for the fast path."""

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._head = b""
        self._missing = -1
        """Bytes that the current message lacks; -1 between messages."""
        self._message = bytearray()

    @property
    def is_empty(self) -> bool:
        """True between two messages."""
        return self._missing < 0 and not self._head

    def feed(self, buffer: bytes, start: int, stop: int) -> list[bytes]:
        """The messages that `buffer[start:stop]` completes.

        Raises:
            MessageTooLargeError, CompressedMessageError: the head of a message is unacceptable.
        """
        messages: list[bytes] = []
        position = start
        while position < stop:
            if self._missing < 0:
                end = min(stop, position + MESSAGE_HEAD_BYTES - len(self._head))
                self._head += buffer[position:end]
                position = end
                if len(self._head) < MESSAGE_HEAD_BYTES:
                    break
                self._begin_message()
            end = min(stop, position + self._missing)
            self._message += memoryview(buffer)[position:end]
            self._missing -= end - position
            position = end
            if not self._missing:
                messages.append(self._end_message())
        return messages

    def _begin_message(self) -> None:
        compressed, length = MESSAGE_HEAD.unpack(self._head)
        if compressed:
            raise CompressedMessageError
        if length > self._max_message_bytes:
            raise MessageTooLargeError(f"a message of {length} bytes, the maximum is {self._max_message_bytes}")
        self._head = b""
        self._missing = length

    def _end_message(self) -> bytes:
        self._missing = -1
        message = bytes(self._message)
        self._message.clear()
        return message


def trailers(status: int, message: str = "") -> bytes:
    """The header block that ends a stream with a gRPC status."""
    fields = [(b"grpc-status", b"%d" % status)]
    if message:
        # The gRPC protocol percent-encodes everything but printable ASCII.
        printable = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
        fields.append((b"grpc-message", quote_from_bytes(message.encode(), printable).encode()))
    return encode(fields)


OK_TRAILERS: Final = trailers(GrpcStatus.OK)


def parse_timeout(value: bytes) -> float | None:
    """Seconds in a `grpc-timeout` header; None if it is malformed."""
    match = _TIMEOUT.fullmatch(value)
    return None if match is None else int(match[1]) * _UNIT_SECONDS[match[2]]
