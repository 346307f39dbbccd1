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
        self._needed = 0
        """How long the message under way is, its head included; 0 while that is not known."""
        self.held_bytes = 0
        """Bytes of a message whose end has not arrived."""

    def feed(self, buffer: bytes, start: int, stop: int) -> list[bytes]:
        """Messages that the payload `buffer[start:stop]` completes.

        Raises:
            MessageTooLargeError: as soon as the length is known.
            CompressedMessageError: the compressed flag is set.
            EnvelopeError: as soon as the fields that are too long have begun.
        """
        held = self.held_bytes
        if held + stop - start < self._needed:  # a long message goes on, and does not end here
            self._partial += memoryview(buffer)[start:stop]
            self.held_bytes = held + stop - start
            if self._needed > self._max_short_bytes:
                self._require_small_envelope(self._partial, 0, self.held_bytes)
            return []
        messages: list[bytes] = []
        position = self._go_on(buffer, start, stop, messages) if held else start
        while stop - position >= MESSAGE_HEAD_BYTES:
            length = self._whole(buffer, position)
            end = position + length
            if length > self._max_short_bytes:
                self._require_small_envelope(buffer, position, min(end, stop))
            if end > stop:
                self._needed = length
                break
            messages.append(buffer[position + MESSAGE_HEAD_BYTES : end])
            position = end
        if position < stop:
            self._partial += memoryview(buffer)[position:stop]
        self.held_bytes = len(self._partial)
        return messages

    def _go_on(self, buffer: bytes, position: int, stop: int, messages: list[bytes]) -> int:
        """Add to the message under way what of the payload is its own; returns where the next begins."""
        partial = self._partial
        if not self._needed:
            position = self._take(buffer, position, stop, MESSAGE_HEAD_BYTES)
            if len(partial) < MESSAGE_HEAD_BYTES:
                return position
            self._needed = self._whole(partial, 0)
        position = self._take(buffer, position, stop, self._needed)
        if self._needed > self._max_short_bytes:
            self._require_small_envelope(partial, 0, len(partial))
        if len(partial) == self._needed:
            messages.append(bytes(memoryview(partial)[MESSAGE_HEAD_BYTES:]))
            self._partial, self._needed = bytearray(), 0
        return position

    def _take(self, buffer: bytes, position: int, stop: int, needed: int) -> int:
        """Add what the message under way, or its head, still needs; returns where what is not its own begins."""
        stop = min(stop, position + needed - len(self._partial))
        self._partial += memoryview(buffer)[position:stop]
        return stop

    def _whole(self, data: bytes | bytearray, position: int) -> int:
        """How long the message that begins there is, its head included."""
        compressed, length = MESSAGE_HEAD.unpack_from(data, position)
        if compressed:
            raise CompressedMessageError
        if length > self._max_message_bytes:
            raise MessageTooLargeError(f"a message of {length} bytes, {self._max_message_bytes} is the most")
        return MESSAGE_HEAD_BYTES + int(length)

    def _require_small_envelope(self, data: bytes | bytearray, position: int, arrived: int) -> None:
        """Check what has arrived, up to `arrived`, of a long message that begins at `position`."""
        start = position + MESSAGE_HEAD_BYTES
        if arrived > start:
            require_small_envelope(data, start, arrived, self._body_fields, self._max_short_bytes - MESSAGE_HEAD_BYTES)


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
