"""HTTP/2 frames on the wire (RFC 9113 sections 4 and 6): bytes are split into frames, and frames written as bytes."""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from struct import Struct
from typing import Final

from endpick.transport.h2.errors import ErrorCode, H2ConnectionError
from endpick.transport.limits import Limits

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_STREAM_ID: Final = 2**31 - 1
MAX_WINDOW_BYTES: Final = 2**31 - 1
DEFAULT_WINDOW_BYTES: Final = 65_535
DEFAULT_FRAME_BYTES: Final = 16_384
_MAX_FRAME_BYTES: Final = 2**24 - 1

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FIELDS: Final = 0x20

FRAME_HEAD: Final = Struct(">HBBBI")
"""Payload length in two parts (struct has no 24 bits), type, flags, stream."""
FRAME_HEAD_BYTES: Final = 9
read_frame_head: Final = Struct(">IBI").unpack_from
"""The same, read as three numbers: payload length and type are one, and the stream has a bit more, which is reserved."""

_WINDOW_UPDATE: Final = Struct(">HBBBII")
_RST_STREAM: Final = _WINDOW_UPDATE
_SETTING: Final = Struct(">HI")


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


# Plain integers: a member of an enumeration costs several times as much to compare. Literal and Final, so that mypyc compiles them in;
# a test holds them equal to the members.
DATA: Final = 0x0
HEADERS: Final = 0x1
RST_STREAM: Final = 0x3
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9


class FrameBuffer:
    """Bytes that arrived and wait to be read as frames, however the network cut them.

    Frames are read where they stand, by `read_frame_head`, so that a message is copied once, out of the bytes that the socket returned.
    """

    def __init__(self, max_payload_bytes: int) -> None:
        self.bytes = b""
        """The frames to read next, the last of them perhaps cut."""
        self.position = 0
        """Where in them the first begins that has not been read; its reader moves it on."""
        self.max_payload_bytes = max_payload_bytes
        """A frame that is longer is not to be read: `read_on` then raises."""
        self.behind: deque[tuple[bytes, int]] = deque()
        """What follows them, each from the given position on."""
        self._partial = bytearray()
        """The beginning of a frame whose end has not arrived."""
        self._needed = FRAME_HEAD_BYTES
        """How long that frame is, head included; of one whose head has not arrived, how long the head is."""

    def add(self, data: bytes) -> None:
        """Put what arrived behind all that was left.

        Raises:
            H2ConnectionError: as `read_on`.
        """
        if not (self._partial or self.behind or self.position < len(self.bytes)):
            self.bytes, self.position = data, 0
            return
        if data:
            self.behind.append((data, 0))
        if self.position == len(self.bytes):
            self.read_on()

    def read_on(self) -> bool:
        """Go on to what follows once no whole frame is left, of which the beginning is kept; False if nothing follows.

        Raises:
            H2ConnectionError: the next frame is longer than was announced as acceptable.
        """
        if self.position < len(self.bytes):
            self._partial += memoryview(self.bytes)[self.position :]
            self._needed = FRAME_HEAD_BYTES
            if len(self._partial) >= FRAME_HEAD_BYTES:
                self._needed += self._length()
        # One read from the socket can be a quarter of a megabyte, and a connection may be silent for hours.
        self.bytes, self.position = b"", 0
        while self.behind and not self.bytes:
            self._open(*self.behind.popleft())
        return bool(self.bytes)

    @property
    def cut_bytes(self) -> int:
        """What is kept of a frame whose end has not arrived."""
        return len(self._partial)

    def left(self) -> bool:
        """Whether there are bytes that have not been read, but for a cut frame that has been gone past."""
        return self.position < len(self.bytes) or bool(self.behind)

    def _open(self, data: bytes, position: int) -> None:
        """Look at `data` from `position` on, next.

        A frame that was cut is put together alone, so that those behind it are not copied with it.
        """
        if not self._partial:
            self.bytes, self.position = data, position
            return
        position = self._complete(data, position)
        if self._needed == FRAME_HEAD_BYTES == len(self._partial):
            self._needed += self._length()
            position = self._complete(data, position)
        if len(self._partial) == self._needed:
            self.bytes = bytes(self._partial)
            self._partial.clear()
        if position < len(data):
            self.behind.appendleft((data, position))

    def _complete(self, data: bytes, position: int) -> int:
        """Add what the partial frame, or its head, still needs; returns where what is not its own begins."""
        stop = min(len(data), position + self._needed - len(self._partial))
        self._partial += memoryview(data)[position:stop]
        return stop

    def _length(self) -> int:
        """How long the payload of the partial frame is, whose head has arrived."""
        length = int.from_bytes(self._partial[:3], "big")
        if length > self.max_payload_bytes:
            raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes, {self.max_payload_bytes} is the most")
        return length


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    length = _SETTING.size * len(values)
    return FRAME_HEAD.pack(0, length, FrameType.SETTINGS, 0, 0) + b"".join(_SETTING.pack(*item) for item in values.items())


SETTINGS_ACK: Final = FRAME_HEAD.pack(0, 0, FrameType.SETTINGS, ACK, 0)


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
    """A GOAWAY frame; `reason` is for people who read a capture or the log of the client."""
    payload = last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + reason.encode()[:200]
    return FRAME_HEAD.pack(0, len(payload), FrameType.GOAWAY, 0, 0) + payload


def window_update(stream_id: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame."""
    return _WINDOW_UPDATE.pack(0, 4, WINDOW_UPDATE, 0, stream_id, increment)


class Setting(IntEnum):
    """The settings of RFC 9113; others are ignored."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


def announced_settings(limits: Limits) -> dict[int, int]:
    """The settings that a server with these limits tells its clients."""
    return {
        Setting.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
        Setting.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
        Setting.MAX_FRAME_SIZE: limits.max_frame_bytes,
        Setting.MAX_HEADER_LIST_SIZE: limits.max_header_bytes,
    }


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    """Identifier and value of each setting, unknown ones included; of one that is repeated, the last value.

    Raises:
        H2ConnectionError: the length is no multiple of six, or a value is out of its range.
    """
    if len(payload) % _SETTING.size:
        raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    values = list(_SETTING.iter_unpack(payload))
    for setting, value in values:
        if setting == Setting.ENABLE_PUSH and value > 1:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}")
        if setting == Setting.INITIAL_WINDOW_SIZE and value > MAX_WINDOW_BYTES:
            raise H2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE is {value}")
        if setting == Setting.MAX_FRAME_SIZE and not DEFAULT_FRAME_BYTES <= value <= _MAX_FRAME_BYTES:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is {value}")
    # Each change of the initial window visits every open stream, and one frame has room for ten thousand changes.
    return list(dict(values).items())
