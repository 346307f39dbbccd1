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
_read_head: Final = Struct(">IBI").unpack_from
"""The same, read as three numbers: payload length and type are one."""

_WINDOW_UPDATE: Final = Struct(">HBBBII")
_RST_STREAM: Final = _WINDOW_UPDATE
_SETTING: Final = Struct(">HI")

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


# Plain integers: a member of an enumeration costs several times as much to compare. Literal and Final, so that mypyc compiles them in;
# a test holds them equal to the members.
DATA: Final = 0x0
HEADERS: Final = 0x1
RST_STREAM: Final = 0x3
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9


_FRAMES_AT_ONCE: Final = 32


class FrameParser:
    """Splits the bytes that arrive into whole frames, however the network cut them."""

    def __init__(self, max_payload_bytes: int) -> None:
        self.buffer = b""
        """The bytes to which the offsets of the current frames refer, until the next call."""
        self.unparsed = False
        """Whether there are bytes that `more` has not looked at."""
        self._max_payload_bytes = max_payload_bytes
        self._position = 0
        """Where in the buffer the next frame begins."""
        self._behind: deque[tuple[bytes, int]] = deque()
        """What follows the buffer, each from the given position on."""
        self._partial = bytearray()
        """The beginning of a frame whose end has not arrived."""
        self._needed = FRAME_HEAD_BYTES
        """How long that frame is, head included; of one whose head has not arrived, how long the head is."""

    def feed(self, data: bytes) -> list[Frame]:
        """The first whole frames of what arrived and of what was left before, in order; `more` gives those behind them.

        Payloads are offsets rather than bytes, so that a message is copied once, out of the bytes that the socket returned.

        Raises:
            H2ConnectionError: as `more`.
        """
        if self.unparsed or self._partial:
            if data:
                self._behind.append((data, 0))
            return self.more()
        self.buffer, self._position = data, 0
        found = self._frames()
        self.unparsed = self._position < len(self.buffer)
        return found

    def more(self) -> list[Frame]:
        """The next whole frames, a few dozen at most: what is not acted on in one turn is parsed again in the next, see `back_to`.

        Raises:
            H2ConnectionError: a frame is longer than was announced as acceptable; the frames before it have been given out.
        """
        while True:
            found = self._frames()
            if found or not self._behind:
                self.unparsed = self._position < len(self.buffer) or bool(self._behind)
                return found
            self._open(*self._behind.popleft())

    def back_to(self, stop: int) -> bool:
        """Give the frames behind the one that ended at `stop` again, later; whether there is anything behind it."""
        self._position = stop
        self.unparsed = stop < len(self.buffer) or bool(self._behind)
        return self.unparsed

    def _frames(self) -> list[Frame]:
        data, position = self.buffer, self._position
        end = len(data)
        needed = FRAME_HEAD_BYTES
        found: list[Frame] = []
        # Declared, because mypyc works on numbers whose type it does not know by calls.
        length_and_kind: int
        flags: int
        stream_id: int
        while end - position >= FRAME_HEAD_BYTES and len(found) < _FRAMES_AT_ONCE:
            length_and_kind, flags, stream_id = _read_head(data, position)
            length = length_and_kind >> 8
            if length > self._max_payload_bytes:
                if found:
                    break
                raise self._too_long(length)
            stop = position + FRAME_HEAD_BYTES + length
            if stop > end:
                needed = stop - position
                break
            found.append((length_and_kind & 0xFF, flags, stream_id & MAX_STREAM_ID, position + FRAME_HEAD_BYTES, stop))
            position = stop
        self._position = position
        if not found:
            if position < end:
                self._partial += data[position:]
                self._needed = needed
            # One read from the socket can be a quarter of a megabyte, and a connection may be silent for hours.
            self.buffer = b""
            self._position = 0
        return found

    def _open(self, data: bytes, position: int) -> None:
        """Look at `data` from `position` on, next.

        A frame that was cut is put together alone, so that those behind it are not copied with it.
        """
        if not self._partial:
            self.buffer, self._position = data, position
            return
        position = self._complete(data, position)
        if self._needed == FRAME_HEAD_BYTES == len(self._partial):
            length = int.from_bytes(self._partial[:3], "big")
            if length > self._max_payload_bytes:
                raise self._too_long(length)
            self._needed += length
            position = self._complete(data, position)
        if len(self._partial) == self._needed:
            self.buffer = bytes(self._partial)
            self._partial.clear()
        if position < len(data):
            self._behind.appendleft((data, position))

    def _complete(self, data: bytes, position: int) -> int:
        """Add what the partial frame, or its head, still needs; returns where what is not its own begins."""
        stop = min(len(data), position + self._needed - len(self._partial))
        self._partial += memoryview(data)[position:stop]
        return stop

    def _too_long(self, length: int) -> H2ConnectionError:
        return H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes, {self._max_payload_bytes} is the most")


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
