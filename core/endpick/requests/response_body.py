"""What is read and rewritten in a response body while it passes: token counts, and the model name that the client used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import attrgetter
from struct import Struct
from typing import Final

import orjson

from endpick.api.access import Access
from endpick.api.request import Usage
from endpick.host.boundary import Fault, Step
from endpick.host.failures import CALL_FAILURES, kind_of
from endpick.requests.memory import MemoryAccount

_MOST_GROWN_BYTES: Final = 1 << 16
"""Beside as much again: by so much a piece of an answer gets longer at most for the client's name. A mebibyte may have the shortest of
names a hundred thousand times, and the client's may have four kilobytes."""


class ModelNameRestorer:
    """Replaces `"model":"<target>"`, with or without a space after the colon, by the name the client used.

    In a piece that would get much longer by it the first ones are replaced: see `_MOST_GROWN_BYTES`.
    """

    __slots__ = ("_held", "_longest", "_replacements")

    def __init__(self, target: str, incoming: str) -> None:
        """`target` is what the model server was asked for, `incoming` what the client asked for."""
        ours, theirs = orjson.dumps(target), orjson.dumps(incoming)
        self._replacements = tuple((b'"model":' + space + ours, b'"model":' + space + theirs) for space in (b"", b" "))
        self._longest = max(len(found) for found, _ in self._replacements)
        self._held = b""

    def feed(self, chunk: bytes, end: bool) -> bytes | None:
        """The piece to send instead, perhaps shorter by what may be the beginning of a name; None when it is fine as it is."""
        data = self._held + chunk if self._held else chunk
        for found, replacement in self._replacements:
            # `find` and not `in`, which first takes the bytes for a number, and makes and drops an exception: ten times the cost.
            if data.find(found) >= 0:
                more = len(replacement) - len(found)
                data = data.replace(found, replacement, (len(chunk) + _MOST_GROWN_BYTES) // more if more > 0 else -1)
        held = b"" if end else self._beginning_of_a_name(data)
        unchanged = data is chunk and not held
        self._held = held
        if unchanged:
            return None
        return data[: len(data) - len(held)] if held else data

    def _beginning_of_a_name(self, data: bytes) -> bytes:
        """The longest end of `data` with which one of the names may begin."""
        start = data.find(b'"', max(0, len(data) - self._longest + 1))
        while start >= 0:
            tail = data[start:]
            if any(found.startswith(tail) for found, _ in self._replacements):
                return tail
            start = data.find(b'"', start + 1)
        return b""


ReadUsage = Callable[[bytes, bool], Usage | None]
"""A parser's `usage`, guarded: the bytes, and whether they are server-sent events."""

_MOST_TOKENS: Final = 1 << 64
"""More than any answer has; a number without bound could not be added to a metric."""

_counts_of: Final[Callable[[Usage], tuple[object, object, object]]] = attrgetter("prompt_tokens", "completion_tokens", "cached_tokens")
"""As they are: the compiled build takes what is read of a field of numbers for a plain one."""


def read_usage(step: Step, access: Access, body: bytes, streaming: bool) -> Usage | None:
    """What a parser says of a body, if it is a `Usage`; a fault of the parser if it is anything else but None."""
    usage = step.run(access, body, streaming)
    if type(usage) is Usage:  # not `isinstance`, which asks the answer
        try:
            prompt, completion, cached = _counts_of(usage)
            # By `type`: a number of another class answers comparisons itself, now and each time it is read later.
            for count in (prompt, completion, 0 if cached is None else cached):
                if type(count) is not int or not 0 <= count <= _MOST_TOKENS:
                    break
            else:
                return usage
            step.fault(f"answered a number of tokens that is not from 0 to {_MOST_TOKENS}")
        except CALL_FAILURES as problem:  # one that was changed after it was made
            step.fault(problem)
    elif usage is not None and type(usage) is not Fault:
        step.fault(f"answered {kind_of(usage)}, not Usage or None")
    return None


MAX_EVENT_BYTES: Final = 1 << 20
"""A server-sent event that is longer is not looked at."""
MAX_BODY_BYTES: Final = 1 << 18
"""Of a longer plain body only the end is kept: model servers write usage last."""
KEPT_TAIL_BYTES: Final = 1 << 14

_NULL: Final = b'":null'
_SEPARATORS: Final = (b"\n\n", b"\r\n\r\n")


_ACCOUNTED_FROM: Final = 1 << 14
"""Bytes kept of one response from which on they are accounted for: few have so many, and thousands of hostile ones a megabyte each."""


class UsageReader:
    """Sees a response body pass. This one reads nothing, as for parsers that know no usage; others inherit from it."""

    __slots__ = ("_account", "_held")

    _account: MemoryAccount
    """Told what is kept of the body."""
    _held: int
    """What it was told."""

    def _keeps(self, size: int) -> None:
        """So many bytes are kept from now on."""
        self._account.hold_parsed(size - self._held)
        self._held = size

    def feed(self, chunk: bytes) -> None:
        """The next piece, as the gateway cut it."""

    def skip(self) -> None:
        """What is fed next is not what comes next in the body: some of it passes unseen."""

    def result(self) -> Usage | None:
        """What was found once the body is complete, or as far as it came."""
        return None


def merged(earlier: Usage | None, later: Usage | None) -> Usage | None:
    """What is known after a later usage: what it does not say stays as it was."""
    if earlier is None or later is None:
        return earlier if later is None else later
    cached = earlier.cached_tokens if later.cached_tokens is None else later.cached_tokens
    return Usage(later.prompt_tokens or earlier.prompt_tokens, later.completion_tokens or earlier.completion_tokens, cached)


class StreamedUsage(UsageReader):
    """Reads server-sent events; each usage replaces what it says of the one before."""

    __slots__ = ("_found", "_mark", "_none_yet", "_partial", "_read")

    def __init__(self, read: ReadUsage, mark: bytes, account: MemoryAccount) -> None:
        """`mark` is `Parser.usage_mark`."""
        self._account, self._held = account, 0
        self._read = read
        self._mark = mark
        self._none_yet = mark + _NULL
        self._partial = bytearray()
        self._found: Usage | None = None

    def feed(self, chunk: bytes) -> None:
        """See `UsageReader`."""
        if len(chunk) > MAX_EVENT_BYTES:  # all of it from a gateway that buffers: usage comes last
            self._partial.clear()
            chunk = chunk[-MAX_EVENT_BYTES:]
        if not self._partial and chunk.endswith(b"\n\n"):
            # Asked here, too: nearly every piece is whole events without it, and spared the call. `find` takes half as long again, because
            # it takes more arguments.
            if chunk.rpartition(self._mark)[1]:
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
        if self._held or len(self._partial) > _ACCOUNTED_FROM:
            self._keeps(len(self._partial))

    def skip(self) -> None:
        """See `UsageReader`."""
        self._partial.clear()

    def result(self) -> Usage | None:
        """See `UsageReader`."""
        if self._partial:
            self._look(bytes(self._partial))
            self._partial.clear()
        if self._held:
            self._keeps(0)
        return self._found

    def _look(self, events: bytes) -> None:
        mark = self._mark
        if events.find(mark) >= 0 and events.count(mark) > events.count(self._none_yet):
            self._found = merged(self._found, self._read(events, True))


class WholeUsage(UsageReader):
    """Reads one JSON body."""

    __slots__ = ("_body", "_found", "_mark", "_read")

    def __init__(self, read: ReadUsage, mark: bytes, account: MemoryAccount) -> None:
        """`mark` is `Parser.usage_mark`."""
        self._account, self._held = account, 0
        self._read = read
        self._mark = mark
        self._body = bytearray()
        self._found: Usage | None = None

    def feed(self, chunk: bytes) -> None:
        """See `UsageReader`."""
        self._body += chunk
        if len(self._body) > MAX_BODY_BYTES:
            del self._body[:-KEPT_TAIL_BYTES]
        if self._held or len(self._body) > _ACCOUNTED_FROM:
            self._keeps(len(self._body))

    def result(self) -> Usage | None:
        """See `UsageReader`."""
        if self._held:
            self._keeps(0)
        if self._body and self._found is None and self._body.find(self._mark) >= 0:
            self._found = self._read(bytes(self._body), False)
            self._body.clear()
        return self._found


_MOST_FRAMES: Final = 64
"""Of a piece of a gRPC answer that are read, the last: each usage replaces the one before, and a piece may be thousands of empty frames."""
_MAX_FRAME_BYTES: Final = 1 << 18
"""A longer frame is not looked at: a megabyte of empty fields would take 15 ms, and be the parser's fault."""
_length_at: Final = Struct(">I").unpack_from
_FRAME_HEAD: Final = 5
"""Bytes in front of each message of a gRPC answer: a flag, and the length as four bytes, the first one the highest."""


class FramedUsage(UsageReader):
    """Reads the frames of a gRPC answer; each usage replaces what it says of the one before.

    A frame over 256 KiB is not looked at, and nothing from a piece of more than 1 MiB on.
    """

    __slots__ = ("_found", "_partial", "_read", "_skipped")

    def __init__(self, read: ReadUsage, account: MemoryAccount) -> None:
        self._account, self._held = account, 0
        self._read = read
        self._partial = bytearray()
        self._skipped = 0
        self._found: Usage | None = None

    def feed(self, chunk: bytes) -> None:
        """See `UsageReader`."""
        if len(chunk) > MAX_EVENT_BYTES:  # to walk over its frames may take seconds
            self.skip()
        if self._skipped:
            passed = min(self._skipped, len(chunk))
            self._skipped -= passed
            chunk = chunk[passed:]
        self._partial += chunk
        partial, length, end = self._partial, len(self._partial), 0
        starts: list[int] = []
        while length - end >= _FRAME_HEAD:
            size = _FRAME_HEAD + _length_at(partial, end + 1)[0]
            if end + size > length:
                if size > _MAX_FRAME_BYTES:
                    self._skipped = end + size - length
                    del partial[end:]
                break
            starts.append(end)
            end += size
        if end:
            start = starts[max(0, len(starts) - _MOST_FRAMES)]
            self._found = merged(self._found, self._read(bytes(self._partial[start:end]), True))
            del self._partial[:end]
        if self._held or len(self._partial) > _ACCOUNTED_FROM:
            self._keeps(len(self._partial))

    def skip(self) -> None:
        """See `UsageReader`. Where the next frame begins is not known any more."""
        self._partial.clear()
        self._skipped = sys.maxsize

    def result(self) -> Usage | None:
        """See `UsageReader`."""
        if self._held:
            self._keeps(0)
        return self._found


def _last_event_end(data: bytearray, start: int) -> int:
    """Where the last complete event ends; 0 when none does from `start` on."""
    return max((at + len(separator) for separator in _SEPARATORS if (at := data.rfind(separator, start)) >= 0), default=0)
