"""gRPC on HTTP/2: messages in DATA frames, statuses in trailers, deadlines in a header."""

from __future__ import annotations

import re
from struct import Struct
from typing import Final
from urllib.parse import quote_from_bytes

from endpick.extproc.stream import GrpcStatus, Message
from endpick.transport.envelope import LongMessageReader
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


_LONG_PIECE_BYTES: Final = 1024
"""A piece that is shorter is joined to its neighbours at once: each alone costs some dozen bytes beside its own."""


class MessageAssembler:
    """Puts together the messages of a stream where one DATA frame is not one message."""

    def __init__(self, max_message_bytes: int, max_envelope_bytes: int, body_fields: frozenset[int]) -> None:
        self._max_message_bytes = max_message_bytes
        self._max_envelope_bytes = max_envelope_bytes
        """A message that is no longer is all right whatever it holds."""
        self._body_fields = body_fields
        self._head = b""
        """Of a message whose length is not known yet."""
        self._missing = 0
        """How much is still to come of the message under way."""
        self._pieces: list[bytes | bytearray] = []
        """What has come of it, joined once it is whole, but for short pieces."""
        self._short = bytearray()
        """Pieces that follow those."""
        self._long: LongMessageReader | None = None
        """Takes a long message, in place of the two before."""
        self.held_bytes = 0
        """Bytes of a message whose end has not arrived."""

    def feed(self, buffer: bytes, start: int, stop: int) -> list[Message]:
        """Messages that the payload `buffer[start:stop]` completes.

        Raises:
            MessageTooLargeError: as soon as the length is known.
            CompressedMessageError: the compressed flag is set.
            EnvelopeError: as soon as the fields that are too long have begun, or when a long message has come that is none.
        """
        missing = self._missing
        if stop - start < missing:
            self._missing = missing - (stop - start)
            self.held_bytes += stop - start
            self._keep(buffer, start, stop)
            return []
        messages: list[Message] = []
        position = start
        if missing:
            position += missing
            self._keep(buffer, start, position)
            messages.append(self._whole())
        while position < stop:
            if self._head or stop - position < MESSAGE_HEAD_BYTES:
                position = self._take_head(buffer, position, stop)
                if len(self._head) < MESSAGE_HEAD_BYTES:
                    break
                length = self._length(self._head, 0)
                self._head = b""
            else:
                length = self._length(buffer, position)
                position += MESSAGE_HEAD_BYTES
            end = position + length
            if length > self._max_envelope_bytes:
                self._long = LongMessageReader(self._body_fields, self._max_envelope_bytes)
            if end > stop:
                self._keep(buffer, position, stop)
                self._missing = end - stop
                self.held_bytes = MESSAGE_HEAD_BYTES + stop - position
                return messages
            if self._long is None:
                messages.append(buffer[position:end])
            else:
                self._keep(buffer, position, end)
                messages.append(self._whole())
            position = end
        self.held_bytes = len(self._head)
        return messages

    def _take_head(self, buffer: bytes, position: int, stop: int) -> int:
        """Add to the head of the next message what has come of it; returns where that ends."""
        end = min(stop, position + MESSAGE_HEAD_BYTES - len(self._head))
        self._head += buffer[position:end]
        return end

    def _length(self, data: bytes, position: int) -> int:
        """How long the message is, without its head, whose head begins there."""
        compressed, length = MESSAGE_HEAD.unpack_from(data, position)
        if compressed:
            raise CompressedMessageError
        if length > self._max_message_bytes:
            raise MessageTooLargeError(f"a message of {length} bytes, {self._max_message_bytes} is the most")
        return int(length)

    def _keep(self, buffer: bytes, start: int, stop: int) -> None:
        """Add to the message under way."""
        if self._long is not None:
            self._long.add(buffer, start, stop)
            return
        if stop - start < _LONG_PIECE_BYTES:
            self._short += memoryview(buffer)[start:stop]
            return
        if self._short:
            self._pieces.append(self._short)
            self._short = bytearray()
        self._pieces.append(buffer[start:stop])

    def _whole(self) -> Message:
        """The message under way, which is complete."""
        self._missing = 0
        long, self._long = self._long, None
        if long is not None:
            return long.message()
        self._pieces.append(self._short)
        message = b"".join(self._pieces)
        self._pieces, self._short = [], bytearray()
        return message


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
