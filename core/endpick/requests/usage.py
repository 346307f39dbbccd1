"""Token counts from response bodies, looked for without keeping or decoding more of a body than needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from endpick.api.request import Usage

ReadUsage = Callable[[bytes, bool], Usage | None]
"""A parser's `usage`, guarded: the bytes, and whether they are server-sent events."""

MAX_EVENT_BYTES = 1 << 20
"""A server-sent event that is longer is not looked at."""
MAX_BODY_BYTES = 1 << 18
"""Of a longer plain body only the end is kept: model servers write usage last."""
KEPT_TAIL_BYTES = 1 << 14

_WORD = b'"usage'
_NONE_YET = b'"usage":null'
_SEPARATORS = (b"\n\n", b"\r\n\r\n")


class UsageReader(Protocol):
    """Sees a response body pass."""

    def feed(self, chunk: bytes) -> None:
        """The next piece, as the gateway cut it."""

    def result(self) -> Usage | None:
        """What was found once the body is complete, or as far as it came."""


class Unread:
    """For parsers that read no usage."""

    __slots__ = ()

    def feed(self, chunk: bytes) -> None:
        """See `UsageReader`."""

    def result(self) -> Usage | None:
        """See `UsageReader`."""
        return None


class StreamedUsage:
    """Reads server-sent events; each usage replaces the one before."""

    __slots__ = ("_found", "_partial", "_read")

    def __init__(self, read: ReadUsage) -> None:
        self._read = read
        self._partial = bytearray()
        self._found: Usage | None = None

    def feed(self, chunk: bytes) -> None:
        """See `UsageReader`."""
        if not self._partial and chunk.endswith(b"\n\n"):
            self._look(chunk)
            return
        searched = len(self._partial)
        self._partial += chunk
        end = _last_event_end(self._partial, max(0, searched - 3))
        if end:
            self._look(bytes(self._partial[:end]))
            del self._partial[:end]
        elif len(self._partial) > MAX_EVENT_BYTES:
            self._partial.clear()

    def result(self) -> Usage | None:
        """See `UsageReader`."""
        if self._partial:
            self._look(bytes(self._partial))
            self._partial.clear()
        return self._found

    def _look(self, events: bytes) -> None:
        if _WORD in events and events.count(_WORD) > events.count(_NONE_YET):
            self._found = self._read(events, True) or self._found


class WholeUsage:
    """Reads one JSON body."""

    __slots__ = ("_body", "_read")

    def __init__(self, read: ReadUsage) -> None:
        self._read = read
        self._body = bytearray()

    def feed(self, chunk: bytes) -> None:
        """See `UsageReader`."""
        self._body += chunk
        if len(self._body) > MAX_BODY_BYTES:
            del self._body[:-KEPT_TAIL_BYTES]

    def result(self) -> Usage | None:
        """See `UsageReader`."""
        return self._read(bytes(self._body), False) if _WORD in self._body else None


def _last_event_end(data: bytearray, start: int) -> int:
    """Where the last complete event ends; 0 when none does from `start` on."""
    return max((at + len(separator) for separator in _SEPARATORS if (at := data.rfind(separator, start)) >= 0), default=0)
