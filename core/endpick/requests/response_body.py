"""Reads token usage from response bodies."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from endpick.api.access import Access
from endpick.api.request import Usage
from endpick.host.boundary import Fault, Step

ReadUsage = Callable[[bytes, bool], Usage | None]  # the bytes; True for server-sent events

_MAX_TOKENS: Final = 1 << 64  # more could not be added to a metric


def read_usage(step: Step[Usage | None], access: Access, body: bytes, streaming: bool) -> Usage | None:
    """Return the usage in a response body, or None. An invalid answer is a fault of the parser."""
    usage = step.run(access, body, streaming)
    if usage is None or isinstance(usage, Fault):
        return None
    if not all(0 <= count <= _MAX_TOKENS for count in (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens or 0)):
        step.fault(f"answered a number of tokens that is not from 0 to {_MAX_TOKENS}")
        return None
    return usage


def merged(earlier: Usage | None, later: Usage | None) -> Usage | None:
    """Combine two usages; counts missing from the later one are taken from the earlier."""
    if earlier is None or later is None:
        return earlier if later is None else later
    cached = earlier.cached_tokens if later.cached_tokens is None else later.cached_tokens
    return Usage(later.prompt_tokens or earlier.prompt_tokens, later.completion_tokens or earlier.completion_tokens, cached)


MAX_EVENT_BYTES: Final = 1 << 20  # longer events are skipped
MAX_BODY_BYTES: Final = 1 << 18  # of longer ones the end is kept: usage comes last
KEPT_TAIL_BYTES: Final = 1 << 14
MAX_FRAME_BYTES: Final = 1 << 18
_SEPARATORS: Final = (b"\n\n", b"\r\n\r\n")


class UsageReader:
    """The base of readers of token usage; by itself it finds none."""

    __slots__ = ()

    def feed(self, chunk: bytes) -> None:
        """Process the next chunk of the response body."""

    def result(self) -> Usage | None:
        """Return the usage read so far, or None."""
        return None


class StreamedUsage(UsageReader):
    """Reads the usage from server-sent events, and skips events longer than `MAX_EVENT_BYTES`."""

    __slots__ = ("_found", "_is_null", "_mark", "_partial", "_read")

    def __init__(self, read: ReadUsage, mark: bytes) -> None:
        self._read = read
        self._mark = mark
        self._is_null = mark + b'":null'
        self._partial = bytearray()
        self._found: Usage | None = None

    def feed(self, chunk: bytes) -> None:
        if len(chunk) > MAX_EVENT_BYTES:
            self._partial.clear()
            chunk = chunk[-MAX_EVENT_BYTES:]
        if not self._partial and chunk.endswith(b"\n\n"):  # nearly every chunk
            if chunk.find(self._mark) >= 0:
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
        if self._partial:
            self._look(bytes(self._partial))
            self._partial.clear()
        return self._found

    def _look(self, events: bytes) -> None:
        if events.count(self._mark) > events.count(self._is_null):
            self._found = merged(self._found, self._read(events, True))


def _last_event_end(data: bytearray, start: int) -> int:
    return max((at + len(separator) for separator in _SEPARATORS if (at := data.rfind(separator, start)) >= 0), default=0)


class WholeUsage(UsageReader):
    """Reads the usage from a JSON body; of long bodies it keeps the tail only."""

    __slots__ = ("_body", "_found", "_mark", "_read")

    def __init__(self, read: ReadUsage, mark: bytes) -> None:
        self._read = read
        self._mark = mark
        self._body = bytearray()
        self._found: Usage | None = None

    def feed(self, chunk: bytes) -> None:
        self._body += chunk
        if len(self._body) > MAX_BODY_BYTES:
            del self._body[:-KEPT_TAIL_BYTES]

    def result(self) -> Usage | None:
        if self._body and self._found is None and self._body.find(self._mark) >= 0:
            self._found = self._read(bytes(self._body), False)
            self._body.clear()
        return self._found


_length_at: Final = Struct(">I").unpack_from
_FRAME_HEAD: Final = 5


class FramedUsage(UsageReader):
    """Reads the usage from length-prefixed gRPC messages."""

    __slots__ = ("_found", "_partial", "_read", "_skipped")

    def __init__(self, read: ReadUsage) -> None:
        self._read = read
        self._partial = bytearray()
        self._skipped = 0
        self._found: Usage | None = None

    def feed(self, chunk: bytes) -> None:
        if self._skipped:
            passed = min(self._skipped, len(chunk))
            self._skipped -= passed
            chunk = chunk[passed:]
        self._partial += chunk
        partial, end = self._partial, 0
        while len(partial) - end >= _FRAME_HEAD:
            size = _FRAME_HEAD + _length_at(partial, end + 1)[0]
            if end + size > len(partial):
                if size > MAX_FRAME_BYTES:
                    self._skipped = end + size - len(partial)
                    del partial[end:]
                break
            end += size
        if end:
            self._found = merged(self._found, self._read(bytes(partial[:end]), True))
            del partial[:end]

    def result(self) -> Usage | None:
        return self._found
