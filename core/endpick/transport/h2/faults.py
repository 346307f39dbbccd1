"""How HTTP/2 says that something is wrong: error codes, and faults that end a stream or a connection."""

from __future__ import annotations

from enum import IntEnum

from endpick.transport.counters import TransportCounters

__all__ = ["ErrorCode", "H2ConnectionError", "H2StreamError"]


class ErrorCode(IntEnum):
    """RFC 9113 §7."""

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
    """The peer broke the connection's rules: GOAWAY with this code, then close.

    Attributes:
        code: what GOAWAY says.
        reason: its debug data; what the peer did.
        counter: the field of `TransportCounters` that this adds to, besides `connection_errors`.
    """

    def __init__(self, code: ErrorCode, reason: str, counter: str | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.counter = counter

    def count(self, counters: TransportCounters) -> None:
        """Move the counters that this fault concerns."""
        counters.connection_errors += 1
        if self.counter is not None:
            setattr(counters, self.counter, getattr(counters, self.counter) + 1)


class H2StreamError(Exception):
    """The peer broke one stream's rules: RST_STREAM with this code; the connection goes on.

    Attributes:
        stream_id: the stream.
        code: what RST_STREAM says.
        counter: the field of `TransportCounters` that this adds to, besides `stream_errors`.
    """

    def __init__(self, stream_id: int, code: ErrorCode, reason: str, counter: str | None = None) -> None:
        super().__init__(reason)
        self.stream_id = stream_id
        self.code = code
        self.counter = counter

    def count(self, counters: TransportCounters) -> None:
        """Move the counters that this fault concerns."""
        counters.stream_errors += 1
        if self.counter is not None:
            setattr(counters, self.counter, getattr(counters, self.counter) + 1)
