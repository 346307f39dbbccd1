"""Where the lines of a long page begin, and with what: found once for a page, so that each name asked for costs no further pass over it.

A pass over 60 KB for each of five names, to be sure that none of its lines was overlooked, takes longer than everything else that
is done with a page. Telling lines apart by their first eight bytes leaves a handful that may carry a name.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BYTES_TOLD_APART = 8
"""Of each line's beginning. Shorter names cannot be looked up."""
SHORTEST_PAGE, LONGEST_PAGE = 8 * 1024, 1024 * 1024
"""Bytes; below, searching is cheaper, and above, memory counts: an index takes as much as its page while it is made."""
_LEAST_BYTES_PER_LINE = 12
"""On the average: a page of shorter lines is no page of metrics, and its index would take more memory than the page."""
_NEWLINE, _SPACE, _TAB = ord("\n"), ord(" "), ord("\t")
_FIRST_BYTE = np.uint64(0xFF)


class LineIndex:
    """The lines of one page by their beginnings."""

    __slots__ = ("_beginnings", "_starts")

    def __init__(self, starts: NDArray[np.intp], beginnings: NDArray[np.uint64]) -> None:
        """Made by `index_lines`: position of each line, and its first eight bytes as a number."""
        self._starts = starts
        self._beginnings = beginnings

    def lines_like(self, name: bytes) -> list[int]:
        """Positions of the lines that begin as the name does, in page order; `name` has at least `BYTES_TOLD_APART` bytes."""
        wanted = np.uint64(int.from_bytes(name[:BYTES_TOLD_APART], "little"))
        found: list[int] = self._starts[self._beginnings == wanted].tolist()
        return found


def line_ends(body: bytes) -> int:
    """How many lines end on the page."""
    return int(np.count_nonzero(np.frombuffer(body, np.uint8) == _NEWLINE))


def index_lines(body: bytes) -> LineIndex | None:
    """The index of a page; None where it would miss lines, because one begins with blanks, or would not pay."""
    size = len(body)
    if not SHORTEST_PAGE <= size <= LONGEST_PAGE:
        return None
    ends = (np.frombuffer(body, np.uint8) == _NEWLINE).nonzero()[0]
    if len(ends) * _LEAST_BYTES_PER_LINE > size:
        return None
    starts = np.empty(len(ends) + 1, np.intp)
    starts[0] = 0
    np.add(ends, 1, out=starts[1:])
    while starts[-1] > size - BYTES_TOLD_APART:  # too close to the end of the page for a name; the first one never is
        starts = starts[:-1]
    windows: NDArray[np.uint64] = np.ndarray((size - BYTES_TOLD_APART + 1,), "<u8", buffer=body, strides=(1,))
    beginnings = windows[starts]
    first = beginnings & _FIRST_BYTE
    if (first <= _SPACE).any() and ((first == _SPACE) | (first == _TAB)).any():
        return None
    return LineIndex(starts, beginnings)
