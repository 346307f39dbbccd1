"""What ends a stream or a connection: error codes, the two kinds of error, and the rates that a client must keep to."""

from __future__ import annotations

from enum import IntEnum

from endpick.transport.limits import TransportCounters


class ErrorCode(IntEnum):
    """The error codes of RFC 9113 section 7."""

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
    """The client broke a rule of the connection: send GOAWAY with this code, then close.

    Attributes:
        code: what GOAWAY says.
        reason: its debug data: what the client did.
        counter: the field of `TransportCounters` that this adds to, besides `connection_errors`.
    """

    def __init__(self, code: ErrorCode, reason: str, counter: str | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.counter = counter

    def count(self, counters: TransportCounters) -> None:
        """Add this error to the counters that tell of it."""
        counters.connection_errors += 1
        if self.counter is not None:
            setattr(counters, self.counter, getattr(counters, self.counter) + 1)


class H2StreamError(Exception):
    """The client broke a rule of one stream: send RST_STREAM with this code; the connection goes on.

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
        """Add this error to the counters that tell of it."""
        counters.stream_errors += 1
        if self.counter is not None:
            setattr(counters, self.counter, getattr(counters, self.counter) + 1)


class InvalidTransitionError(Exception):
    """A state machine was told of an event that its state does not allow: a bug in endpick, never the client's doing."""


class RateBudget:
    """A token bucket, refilled only when it is empty, so that most calls need no arithmetic; at worst it lets two bursts pass for one."""

    __slots__ = ("_burst", "_filled_at", "_left", "_per_second")

    def __init__(self, burst: int, per_second: float, now: float) -> None:
        self._burst = float(burst)
        self._left = float(burst)
        self._per_second = per_second
        self._filled_at = now

    def spend(self, now: float) -> bool:
        """Take one; False if there is none."""
        if self._left < 1.0:
            self._left = min(self._burst, self._left + (now - self._filled_at) * self._per_second)
            self._filled_at = now
            if self._left < 1.0:
                return False
        self._left -= 1.0
        return True

    def require(self, now: float, what: str, counter: str) -> None:
        """Take one.

        Args:
            now: monotonic seconds.
            what: what the client sends too many of, for the debug data of GOAWAY.
            counter: the field of `TransportCounters` that tells.

        Raises:
            H2ConnectionError: there is none.
        """
        if not self.spend(now):
            raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, f"too many {what}", counter)
