"""Restores the client's model name in responses."""

from __future__ import annotations

import re
from typing import Final

import orjson

_QUOTE: Final = ord('"')
_OBJECT: Final = ord("{")
_OPENING: Final = b"{["
_MARK: Final = re.compile(rb'["{}\[\]]')
_TEXT: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_CARRIERS: Final = (b"response", b"message")  # hold the envelope in events of the Responses and Messages APIs
_LONGEST_CARRIER: Final = 8


class _JSONPlace:
    """Tracks the position in a JSON document that arrives in chunks."""

    __slots__ = ("_depth", "_escaped", "_in_carrier", "_in_object", "_in_string", "_key")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._depth = 0
        self._in_object = False  # the document is an object
        self._in_carrier = False
        self._in_string = False
        self._escaped = False
        self._key = b""

    @property
    def is_start(self) -> bool:
        return self._depth == 0 and not self._in_string

    @property
    def is_envelope(self) -> bool:
        """True among the fields of the response itself."""
        return self._in_object and not self._in_string and (self._depth == 1 or (self._depth == 2 and self._in_carrier))

    def advance(self, data: bytes, start: int, stop: int) -> None:
        at = start
        while at < stop:
            if not self._in_string:
                mark = _MARK.search(data, at, stop)
                if mark is None:
                    return
                at = mark.end()
                self._enter(data[at - 1])
            elif self._escaped:
                self._escaped = False
                at += 1
            else:
                text = _TEXT.match(data, at, stop)
                end = at if text is None else text.end()
                if self._depth == 1 and len(self._key) <= _LONGEST_CARRIER:
                    self._key += data[at : min(end, at + _LONGEST_CARRIER + 1)]
                if end < stop:
                    self._in_string = self._escaped = data[end] != _QUOTE
                at = end + 1

    def _enter(self, mark: int) -> None:
        if mark == _QUOTE:
            self._in_string = True
            self._key = b""
        elif mark in _OPENING:
            if self._depth == 0:
                self._in_object = mark == _OBJECT
            elif self._depth == 1:
                self._in_carrier = mark == _OBJECT and self._key in _CARRIERS
            self._depth += 1
        else:
            self._depth = max(0, self._depth - 1)


_END_OF_EVENT: Final = re.compile(rb"\n\r?\n")
_END_OF_LINE: Final = re.compile(rb"\n")
_MAX_SEPARATOR: Final = 3


class ModelNameRestorer:
    """Restores the `model` of a response or of each event; nested fields and strings are unchanged."""

    __slots__ = ("_before", "_found", "_held", "_longest", "_place", "_restored", "_separator", "_spellings", "_theirs")

    def __init__(self, target: str, incoming: str, content_type: str = "application/json") -> None:
        ours = orjson.dumps(target)
        self._theirs = orjson.dumps(incoming)
        self._spellings = (b'"model":' + ours, b'"model": ' + ours)
        self._found = re.compile(b'("model": ?)' + re.escape(ours))
        self._longest = len(self._spellings[1])
        self._held = b""
        self._before = b""  # the end of the previous chunk
        self._place = _JSONPlace()
        self._restored = False  # in this document
        self._separator: re.Pattern[bytes] | None = None
        if "event-stream" in content_type:
            self._separator = _END_OF_EVENT
        elif "ndjson" in content_type or "jsonl" in content_type:
            self._separator = _END_OF_LINE

    def feed(self, chunk: bytes, end: bool) -> bytes | None:
        """Return the changed chunk, or None if unchanged. A possible start of a match is held back."""
        data = self._held + chunk if self._held else chunk
        held = b"" if end else self._possible_start(data)
        unchanged = data is chunk and not held
        self._held = held
        stop = len(data) - len(held)
        parts: list[bytes] = []
        copied = at = 0
        while at < stop:
            after = self._next_document(data, at, stop)
            document_stop = stop if after < 0 else after
            name = None if self._restored else self._name_in(data, at, document_stop, ends=after >= 0)
            if name is not None:
                value_at = name.end(1)
                parts.append(data[copied:value_at])
                parts.append(self._theirs)
                copied = name.end()
            if after >= 0:
                self._restored = False
                self._place.reset()
            at = document_stop
        self._before = (self._before + data[max(0, stop - _MAX_SEPARATOR) : stop])[1 - _MAX_SEPARATOR :]
        if parts:
            parts.append(data[copied:stop])
            return b"".join(parts)
        return None if unchanged else data[:stop]

    def _next_document(self, data: bytes, at: int, stop: int) -> int:
        if self._separator is None:
            return -1
        if at == 0 and self._before:
            joined = self._separator.search(self._before + data[: min(stop, _MAX_SEPARATOR)])
            if joined is not None and 0 < joined.end() - len(self._before) < _MAX_SEPARATOR:
                return joined.end() - len(self._before)
        found = self._separator.search(data, at, stop)
        return -1 if found is None else found.end()

    def _name_in(self, data: bytes, start: int, stop: int, *, ends: bool) -> re.Match[bytes] | None:
        place, read = self._place, start
        for name in self._found.finditer(data, start, stop):
            position = name.start()
            if read == start and place.is_start and _begins_envelope(data, start, position):
                self._restored = True
                return name
            place.advance(data, read, position)
            read = position
            if place.is_envelope:
                self._restored = True
                return name
        if not ends:
            place.advance(data, read, stop)
        return None

    def _possible_start(self, data: bytes) -> bytes:
        if data.endswith(b"\n"):
            return b""
        start = data.find(b'"', max(0, len(data) - self._longest + 1))
        while start >= 0:
            tail = data[start:]
            if any(spelling.startswith(tail) for spelling in self._spellings):
                return tail
            start = data.find(b'"', start + 1)
        return b""


def _begins_envelope(data: bytes, start: int, position: int) -> bool:
    """True, without reading strings, for the usual place of `model`."""
    return data.count(b"{", start, position) == 1 and data.find(b"[", start, position) < 0 and data[position - 1] in b"{, \n"
