"""The model name in responses: put back as the client wrote it, also where a name is cut in two between pieces of the body."""

from __future__ import annotations

import orjson


class ModelNameRestorer:
    """Replaces `"model":"<target>"`, with or without a space after the colon, by the name the client used."""

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
            if found in data:
                data = data.replace(found, replacement)
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
