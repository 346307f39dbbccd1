"""HTTP/2 error codes, connection and stream errors, and rate budgets."""

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
    """The client broke a rule of the connection: answer GOAWAY, then close.

    Attributes:
        code: Error code of the GOAWAY.
        reason: Debug data of the GOAWAY.
        counter: Field of `TransportCounters` to increment besides `connection_errors`.
    """

    def __init__(self, code: ErrorCode, reason: str, counter: str | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.counter = counter

    def count(self, counters: TransportCounters) -> None:
        """Increment the counters of this error."""
        counters.connection_errors += 1
        _increment(counters, self.counter)


class H2StreamError(Exception):
    """The client broke a rule of one stream: answer RST_STREAM; the connection continues."""

    def __init__(self, stream_id: int, code: ErrorCode, reason: str, counter: str | None = None) -> None:
        super().__init__(reason)
        self.stream_id = stream_id
        self.code = code
        self.counter = counter

    def count(self, counters: TransportCounters) -> None:
        """Increment the counters of this error."""
        counters.stream_errors += 1
        _increment(counters, self.counter)


def _increment(counters: TransportCounters, name: str | None) -> None:
    if name is not None:
        setattr(counters, name, getattr(counters, name) + 1)


class InvalidTransitionError(Exception):
    """A state machine got an event its state does not allow: a bug in endpick, never the client's fault."""


class RateBudget:
    """A token bucket: `burst` tokens, refilled at `per_second`.

    It refills only when empty, which keeps the usual call cheap; at worst it lets two bursts pass.
    """

    def __init__(self, burst: int, per_second: int, subject: str, counter: str, now: float) -> None:
        self._burst = float(burst)
        self._left = float(burst)
        self._per_second = per_second
        self._subject = subject
        self._counter = counter
        self._filled_at = now

    def spend(self, now: float, cost: float = 1.0) -> None:
        """Take `cost` tokens, or raise ENHANCE_YOUR_CALM as an `H2ConnectionError`."""
        if self._left < cost:
            self._left = min(self._burst, self._left + (now - self._filled_at) * self._per_second)
            self._filled_at = now
            if self._left < cost:
                raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, f"too many {self._subject}", self._counter)
        self._left -= cost
