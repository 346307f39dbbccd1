"""Text fields of `multipart/form-data` bodies (RFC 7578), as the image and audio APIs take them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_BOUNDARY: Final = re.compile(r'multipart/form-data\s*;.*?\bboundary=(?:"([^"]+)"|([^\s;,]+))', re.IGNORECASE | re.DOTALL)
_NAME: Final = re.compile(rb'^content-disposition:[^\r\n]*?;[ \t]*name="([^"\r\n]*)"', re.IGNORECASE | re.MULTILINE)
_FILE: Final = re.compile(rb"^content-disposition:[^\r\n]*?;[ \t]*filename", re.IGNORECASE | re.MULTILINE)
MAX_PARTS: Final = 1000
MAX_HEAD_BYTES: Final = 8 << 10
_MAX_TEXT_BYTES: Final = 1 << 20


class Form:
    """The text fields of a body: name to text."""

    def __init__(self, content_type: str, body: bytes) -> None:
        """Raises ValueError if this is not a form, or if the head of a part is too long."""
        found = _BOUNDARY.match(content_type.strip())
        if found is None:
            raise ValueError("the content-type is not multipart/form-data with a boundary")
        self._body = body
        self._delimiter = b"--" + (found[1] or found[2]).encode()
        self._places = {name: place for name, *place in self._parts()}
        if not self._places:
            raise ValueError("the body has no form field")

    def text(self, name: str) -> str | None:
        """A field; None if it is missing."""
        place = self._places.get(name)
        return None if place is None else self._body[place[0] : place[1]].decode(errors="replace")

    def replaced(self, name: str, text: str) -> bytes:
        """The body with another text in a field, which exists."""
        start, stop = self._places[name]
        return self._body[:start] + text.encode() + self._body[stop:]

    def _parts(self) -> Iterator[tuple[str, int, int]]:
        at = self._body.find(self._delimiter)
        for _ in range(MAX_PARTS):
            head = at + len(self._delimiter)
            at = self._body.find(b"\r\n" + self._delimiter, head)
            if at < 0:
                return
            start = self._body.find(b"\r\n\r\n", head, min(at, head + MAX_HEAD_BYTES)) + 4
            if start < 4 and at - head > MAX_HEAD_BYTES:
                raise ValueError(f"the head of a part is longer than {MAX_HEAD_BYTES} bytes")
            if start < 4:
                return
            lines = self._body[head:start]
            named = _NAME.search(lines)
            if named is not None and not _FILE.search(lines) and at - start <= _MAX_TEXT_BYTES:
                yield named[1].decode(errors="replace"), start, at
            at += 2
