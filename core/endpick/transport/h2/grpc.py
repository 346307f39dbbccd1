"""gRPC on HTTP/2: messages in DATA frames, statuses in trailers, deadlines in a header."""

from __future__ import annotations

import re
from struct import Struct
from typing import Final
from urllib.parse import quote_from_bytes

from endpick.extproc.stream import GrpcStatus
from endpick.transport.envelope import require_small_envelope
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
"""Compressed flag, length."""
MESSAGE_HEAD_BYTES: Final = 5

RESPONSE_HEADERS: Final = encode(((b":status", b"200"), (b"content-type", b"application/grpc")))

_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class MessageTooLargeError(Exception):
    """A message is longer than the limit."""


class CompressedMessageError(Exception):
    """A message is compressed, which was never agreed to."""


class MessageAssembler:
    """Puts together the messages of a stream where one DATA frame is not one message."""

    def __init__(self, max_message_bytes: int, max_envelope_bytes: int, body_fields: frozenset[int]) -> None:
        self._max_message_bytes = max_message_bytes
        self._max_short_bytes = max_envelope_bytes + MESSAGE_HEAD_BYTES
        """A message that is no longer, its head included, is all right whatever it holds."""
        self._body_fields = body_fields
        self._partial = bytearray()
        self._needed = MESSAGE_HEAD_BYTES

    @property
    def held_bytes(self) -> int:
        """Bytes of a message whose end has not arrived."""
        return len(self._partial)

    def feed(self, payload: bytes | memoryview) -> list[bytes]:
        """Messages that a payload completes.

        Raises:
            MessageTooLargeError: as soon as the length is known.
            CompressedMessageError: the compressed flag is set.
            EnvelopeError: as soon as the fields that are too long have begun.
        """
        if self._partial:
            self._partial += payload
            held, needed = len(self._partial), self._needed
            if held <= needed and needed > self._max_short_bytes:
                self._require_small_envelope(self._partial, 0, held)
            if held < needed:
                return []
            if held == needed > MESSAGE_HEAD_BYTES:  # a message ends where its frame does, as nearly always: it is copied once
                message = bytes(memoryview(self._partial)[MESSAGE_HEAD_BYTES:])
                self._partial, self._needed = bytearray(), MESSAGE_HEAD_BYTES
                return [message]
            data = bytes(self._partial)
            self._partial.clear()
        else:
            data = bytes(payload)
        messages = []
        position = 0
        self._needed = MESSAGE_HEAD_BYTES
        while len(data) - position >= MESSAGE_HEAD_BYTES:
            compressed, length = MESSAGE_HEAD.unpack_from(data, position)
            if compressed:
                raise CompressedMessageError
            if length > self._max_message_bytes:
                raise MessageTooLargeError(f"a message of {length} bytes, {self._max_message_bytes} is the most")
            stop = position + MESSAGE_HEAD_BYTES + length
            if length + MESSAGE_HEAD_BYTES > self._max_short_bytes:
                self._require_small_envelope(data, position, min(stop, len(data)))
            if stop > len(data):
                self._needed = stop - position
                break
            messages.append(data[position + MESSAGE_HEAD_BYTES : stop])
            position = stop
        self._partial += data[position:]
        return messages

    def _require_small_envelope(self, data: bytes | bytearray, position: int, stop: int) -> None:
        start = position + MESSAGE_HEAD_BYTES
        if stop > start:
            require_small_envelope(data, start, stop, self._body_fields, self._max_short_bytes - MESSAGE_HEAD_BYTES)


def trailers(status: int, message: str = "") -> bytes:
    """The header block that ends a stream."""
    fields = [(b"grpc-status", b"%d" % status)]
    if message:
        # Percent-encoding of everything but printable ASCII, as the gRPC protocol has it.
        printable = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
        fields.append((b"grpc-message", quote_from_bytes(message.encode(), printable).encode()))
    return encode(fields)


OK_TRAILERS: Final = trailers(GrpcStatus.OK)


def parse_timeout(value: bytes) -> float | None:
    """Seconds that a `grpc-timeout` header gives the call; None, so no limit, for a value that is malformed."""
    match = _TIMEOUT.fullmatch(value)
    return None if match is None else int(match[1]) * _UNIT_SECONDS[match[2]]
