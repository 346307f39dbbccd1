"""Lines of a text, as YAML and editors count them."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property

# str.splitlines() also breaks at form feeds, U+0085 and U+2028, where editors do not.
_LINE_BREAK = re.compile(r"\r\n|\r|\n")


class Lines:
    """A text with its line starts. Line and column count from 1, columns in code points."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(match.end() for match in _LINE_BREAK.finditer(self.text))]

    @cached_property
    def _lines(self) -> list[str]:
        return _LINE_BREAK.split(self.text)

    def __len__(self) -> int:
        return len(self._lines)

    def line(self, number: int) -> str:
        """The text of a line without its line break; empty when there is no such line."""
        return self._lines[number - 1] if 1 <= number <= len(self._lines) else ""

    def position(self, index: int) -> tuple[int, int]:
        """Line and column of the code point at `index`; an index past the end is the end."""
        index = max(0, min(index, len(self.text)))
        line = bisect_right(self._starts, index)
        return line, index - self._starts[line - 1] + 1
