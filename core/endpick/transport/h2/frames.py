"""HTTP/2 frames on the wire (RFC 9113 §4 and §6): splitting bytes into them and writing them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct

from endpick.transport.h2.faults import ErrorCode, H2ConnectionError

__all__ = [
    "ACK",
    "CONTINUATION",
    "DATA",
    "END_HEADERS",
    "END_STREAM",
    "FRAME_HEAD",
    "FRAME_HEAD_BYTES",
    "HEADERS",
    "MAX_STREAM_ID",
    "PADDED",
    "PREFACE",
    "PRIORITY_FIELDS",
    "SETTINGS_ACK",
    "Frame",
    "FrameParser",
    "FrameType",
    "goaway",
    "headers",
    "ping",
    "rst_stream",
    "settings",
    "window_update",
]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_STREAM_ID = 2**31 - 1

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FIELDS = 0x20

FRAME_HEAD = Struct(">HBBBI")
"""Payload length in two parts (struct has no 24 bits), type, flags, stream."""
FRAME_HEAD_BYTES = FRAME_HEAD.size

_WINDOW_UPDATE = Struct(">HBBBII")
_RST_STREAM = _WINDOW_UPDATE
_SETTING = Struct(">HI")

Frame = tuple[int, int, int, int, int]
"""Type, flags, stream, and where in `FrameParser.buffer` the payload starts and ends."""


class FrameType(IntEnum):
    """The frames of RFC 9113; others are ignored."""

    DATA = 0x0
    HEADERS = 0x1
    PRIORITY = 0x2
    RST_STREAM = 0x3
    SETTINGS = 0x4
    PUSH_PROMISE = 0x5
    PING = 0x6
    GOAWAY = 0x7
    WINDOW_UPDATE = 0x8
    CONTINUATION = 0x9


# Plain integers for what is looked at in every frame: a member of an enumeration costs several times as much to compare or pack.
DATA = FrameType.DATA.value
HEADERS = FrameType.HEADERS.value
RST_STREAM = FrameType.RST_STREAM.value
WINDOW_UPDATE = FrameType.WINDOW_UPDATE.value
CONTINUATION = FrameType.CONTINUATION.value


class FrameParser:
    """Splits what arrives into whole frames, however it was cut."""

    def __init__(self, max_payload_bytes: int) -> None:
        self.buffer = b""
        """The bytes that the offsets of the frame just given refer to."""
        self._max_payload_bytes = max_payload_bytes
        self._partial = bytearray()
        self._needed = FRAME_HEAD_BYTES

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Whole frames, in order. Exhaust the iterator before feeding again.

        Payloads are offsets rather than bytes, so that a message is copied once, out of the bytes that the socket gave.

        Raises:
            H2ConnectionError: a frame is longer than was announced as acceptable; frames before it have been given.
        """
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed:
                return
            data = bytes(self._partial)
            self._partial.clear()
        self.buffer = data
        unpack = FRAME_HEAD.unpack_from
        position = 0
        end = len(data)
        while end - position >= FRAME_HEAD_BYTES:
            high, low, kind, flags, stream_id = unpack(data, position)
            length = high << 8 | low
            if length > self._max_payload_bytes:
                raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes, {self._max_payload_bytes} is the most")
            stop = position + FRAME_HEAD_BYTES + length
            if stop > end:
                self._needed = stop - position
                break
            yield kind, flags, stream_id & MAX_STREAM_ID, position + FRAME_HEAD_BYTES, stop
            position = stop
        else:
            self._needed = FRAME_HEAD_BYTES
        self._partial += data[position:]
        # What the socket gave can be a quarter of a megabyte, and a connection may say nothing for hours.
        self.buffer = b""


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    length = _SETTING.size * len(values)
    return FRAME_HEAD.pack(0, length, FrameType.SETTINGS, 0, 0) + b"".join(_SETTING.pack(*item) for item in values.items())


SETTINGS_ACK = FRAME_HEAD.pack(0, 0, FrameType.SETTINGS, ACK, 0)


def headers(stream_id: int, block: bytes, *, end_stream: bool) -> bytes:
    """A HEADERS frame that holds the whole block."""
    flags = END_HEADERS | END_STREAM if end_stream else END_HEADERS
    return FRAME_HEAD.pack(len(block) >> 8, len(block) & 0xFF, HEADERS, flags, stream_id) + block


def rst_stream(stream_id: int, code: int) -> bytes:
    """A RST_STREAM frame."""
    return _RST_STREAM.pack(0, 4, RST_STREAM, 0, stream_id, code)


def ping(data: bytes, *, ack: bool) -> bytes:
    """A PING frame with its eight bytes."""
    return FRAME_HEAD.pack(0, 8, FrameType.PING, ACK if ack else 0, 0) + data


def goaway(last_stream_id: int, code: int, reason: str = "") -> bytes:
    """A GOAWAY frame; `reason` is for whoever reads a capture or the peer's log."""
    payload = last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + reason.encode()[:200]
    return FRAME_HEAD.pack(0, len(payload), FrameType.GOAWAY, 0, 0) + payload


def window_update(stream_id: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame."""
    return _WINDOW_UPDATE.pack(0, 4, WINDOW_UPDATE, 0, stream_id, increment)
