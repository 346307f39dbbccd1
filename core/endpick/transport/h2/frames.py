"""HTTP/2 frames, settings and errors (RFC 9113 sections 4, 6 and 7)."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

from endpick.transport.limits import Limits, TransportCounters


class ErrorCode(IntEnum):
    """Error codes of GOAWAY and RST_STREAM (RFC 9113 section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class H2ConnectionError(Exception):
    """Raised to end the connection with GOAWAY; `counter` names a field of `TransportCounters`."""

    def __init__(self, code: ErrorCode, reason: str, counter: str | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.counter = counter

    def count(self, counters: TransportCounters) -> None:
        """Increment `connection_errors`, and the error's own counter if it has one."""
        counters.connection_errors += 1
        _increment(counters, self.counter)


class H2StreamError(Exception):
    """Raised to end one stream with RST_STREAM; `counter` is as in `H2ConnectionError`."""

    def __init__(self, stream_id: int, code: ErrorCode, reason: str, counter: str | None = None) -> None:
        super().__init__(reason)
        self.stream_id = stream_id
        self.code = code
        self.counter = counter

    def count(self, counters: TransportCounters) -> None:
        """Increment `stream_errors`, and the error's own counter if it has one."""
        counters.stream_errors += 1
        _increment(counters, self.counter)


def _increment(counters: TransportCounters, name: str | None) -> None:
    if name is not None:
        setattr(counters, name, getattr(counters, name) + 1)


class InvalidTransitionError(Exception):
    """Raised if an event does not fit the state, which is a bug in endpick."""


class RateBudget:
    """A token bucket that refills only when empty; at worst two bursts pass."""

    def __init__(self, burst: int, per_second: int, subject: str, counter: str, now: float) -> None:
        self._burst = float(burst)
        self._left = float(burst)
        self._per_second = per_second
        self._subject = subject
        self._counter = counter
        self._filled_at = now

    def spend(self, now: float, cost: float = 1.0) -> None:
        """Take `cost` tokens; raises `H2ConnectionError` if too few are left."""
        if self._left < cost:
            self._left = min(self._burst, self._left + (now - self._filled_at) * self._per_second)
            self._filled_at = now
            if self._left < cost:
                raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, f"too many {self._subject}", self._counter)
        self._left -= cost


PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_STREAM_ID: Final = 2**31 - 1
MAX_WINDOW_BYTES: Final = 2**31 - 1
DEFAULT_WINDOW_BYTES: Final = 65_535
DEFAULT_FRAME_BYTES: Final = 16_384
_LARGEST_FRAME_BYTES: Final = 2**24 - 1

MAX_FRAME_BYTES: Final = 65_536  # largest payload accepted
STREAM_WINDOW_BYTES: Final = 1_048_576
CONNECTION_WINDOW_BYTES: Final = 16_777_216

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FIELDS: Final = 0x20

FRAME_HEAD: Final = Struct(">HBBBI")  # payload length in two parts, type, flags, stream
FRAME_HEAD_BYTES: Final = 9
read_frame_head: Final = Struct(">IBI").unpack_from  # unpacks length << 8 | type, flags, stream with its reserved bit

_WINDOW_UPDATE: Final = Struct(">HBBBII")
_RST_STREAM: Final = _WINDOW_UPDATE
_SETTING: Final = Struct(">HI")


class FrameType(IntEnum):
    """Types of frames (RFC 9113 section 6)."""

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


# Literals, which mypyc compiles in.
DATA: Final = 0x0
HEADERS: Final = 0x1
RST_STREAM: Final = 0x3
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9


class PartialFrame:
    """Buffers the beginning of a frame until the rest arrives."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __len__(self) -> int:
        return len(self._bytes)

    def start(self, data: bytes, position: int) -> None:
        """Buffer `data[position:]`, the beginning of a frame."""
        self._bytes += memoryview(data)[position:]

    def complete(self, data: bytes) -> tuple[bytes, int]:
        """Append `data`; returns the frame, empty if still incomplete, and the position after it."""
        partial = self._bytes
        position = max(0, FRAME_HEAD_BYTES - len(partial))
        partial += data[:position]
        if len(partial) < FRAME_HEAD_BYTES:
            return b"", len(data)
        size = FRAME_HEAD_BYTES + checked_length(int.from_bytes(partial[:3], "big"))
        stop = position + size - len(partial)
        partial += memoryview(data)[position:stop]
        if len(partial) < size:
            return b"", len(data)
        frame = bytes(partial)
        partial.clear()
        return frame, stop


def checked_length(length: int) -> int:
    """Return the payload length; raises `H2ConnectionError` if it exceeds `MAX_FRAME_BYTES`."""
    if length > MAX_FRAME_BYTES:
        raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes, the maximum is {MAX_FRAME_BYTES}")
    return length


def settings(values: dict[int, int]) -> bytes:
    """Encode a SETTINGS frame from the values by setting."""
    length = _SETTING.size * len(values)
    return FRAME_HEAD.pack(0, length, FrameType.SETTINGS, 0, 0) + b"".join(_SETTING.pack(*item) for item in values.items())


SETTINGS_ACK: Final = FRAME_HEAD.pack(0, 0, FrameType.SETTINGS, ACK, 0)


def headers(stream_id: int, block: bytes, *, end_stream: bool) -> bytes:
    """Encode a HEADERS frame that holds a whole header block."""
    flags = END_HEADERS | END_STREAM if end_stream else END_HEADERS
    return FRAME_HEAD.pack(len(block) >> 8, len(block) & 0xFF, HEADERS, flags, stream_id) + block


def rst_stream(stream_id: int, code: int) -> bytes:
    """Encode a RST_STREAM frame; `code` is an `ErrorCode`."""
    return _RST_STREAM.pack(0, 4, RST_STREAM, 0, stream_id, code)


def ping(data: bytes, *, ack: bool) -> bytes:
    """Encode a PING frame; `data` has eight bytes."""
    return FRAME_HEAD.pack(0, 8, FrameType.PING, ACK if ack else 0, 0) + data


def goaway(last_stream_id: int, code: int, reason: str = "") -> bytes:
    """Encode a GOAWAY frame; the reason is cut to 200 bytes."""
    payload = last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + reason.encode()[:200]
    return FRAME_HEAD.pack(0, len(payload), FrameType.GOAWAY, 0, 0) + payload


def window_update(stream_id: int, increment: int) -> bytes:
    """Encode a WINDOW_UPDATE frame; stream 0 stands for the connection."""
    return _WINDOW_UPDATE.pack(0, 4, WINDOW_UPDATE, 0, stream_id, increment)


class Setting(IntEnum):
    """Settings of a connection (RFC 9113 section 6.5.2)."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


def announced_settings(limits: Limits) -> dict[int, int]:
    """Return the settings that the server sends when a connection opens."""
    return {
        Setting.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
        Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
        Setting.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
        Setting.MAX_HEADER_LIST_SIZE: limits.max_header_bytes,
    }


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return settings with their values, the last if repeated; raises `H2ConnectionError`."""
    if len(payload) % _SETTING.size:
        raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    values = list(_SETTING.iter_unpack(payload))
    for setting, value in values:
        if setting == Setting.ENABLE_PUSH and value > 1:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}")
        if setting == Setting.INITIAL_WINDOW_SIZE and value > MAX_WINDOW_BYTES:
            raise H2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE is {value}")
        if setting == Setting.MAX_FRAME_SIZE and not DEFAULT_FRAME_BYTES <= value <= _LARGEST_FRAME_BYTES:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is {value}")
    # Each change of the initial window visits every open stream, and a frame holds ten thousand.
    return list(dict(values).items())
