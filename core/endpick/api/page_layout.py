"""Where the lines that are asked for stood on a server's last page: its next one has them at nearly the same place.

From one scrape to the next numbers change, and lines move by the few bytes that a number got longer. So a line is looked for where it
was, by its beginning, and only its number is read. The format has all lines of a metric stand together: when those that were there are
there again, and no further one beside them, they are taken for all of them. A metric that was on none of the server's pages is taken to
be absent from one of as many lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from endpick.api.line_index import SHORTEST_PAGE, line_ends
from endpick.api.samples import MetricSample, number_of

_NEWLINE = ord("\n")
_FAR_BYTES = 1024
"""How far a line may have moved from one page to the next."""
_MOST_LINES = 16
"""Of one metric that are remembered; one with more is looked for anew."""
_LONGEST_LINE_START = 4096
_ENOUGH_TO_FIND = 80
"""Bytes of a line's beginning that are searched for; the rest is compared."""
_PAGES_BETWEEN_LOOKS = 16
"""Each sixteenth page is looked through as a whole, so that a metric that has come to stand in two places is found that late at worst."""


class _Group:
    """The lines of one metric."""

    __slots__ = ("at", "further", "lines", "needle")

    def __init__(self, name: bytes, at: int, lines: tuple[tuple[bytes, Mapping[str, str]], ...]) -> None:
        self.at = at
        """Position of the line end before the first line."""
        self.lines = lines
        """The beginning of each, with the line end before it, and its labels."""
        self.needle = lines[0][0][:_ENOUGH_TO_FIND]
        self.further = (name + b"{", name + b" ", name + b"\t")


class PageLayout:
    """What is remembered of the pages of one server, for the next one."""

    __slots__ = ("_absent", "_groups", "_lines", "_pages", "_seen", "_size")

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._seen: set[str] = set()
        """Metrics that were on some page: where one is missing now and then, each page is searched for it."""
        self._absent: set[str] = set()
        self._lines = 0
        """Of the page on which names were found to be absent."""
        self._pages = 0
        self._size = 0

    def next_page(self, body: bytes) -> None:
        """Another page begins."""
        self._pages += 1
        size, self._size = self._size, len(body)
        if self._pages >= _PAGES_BETWEEN_LOOKS or abs(size - len(body)) > _FAR_BYTES:
            self._pages = 0
            self._groups.clear()
            self._absent.clear()
        elif self._absent and self._lines != line_ends(body):
            self._absent.clear()

    def read(self, name: str, body: bytes) -> tuple[MetricSample, ...] | None:
        """The samples of this name; None when they are not to be found where they were, so that the page has to be searched."""
        group = self._groups.get(name)
        if group is None:
            return () if name in self._absent else None
        expected = group.at
        at = body.find(group.needle, max(0, expected - _FAR_BYTES), expected + _FAR_BYTES)
        if at < 0 or body.startswith(group.further, body.rfind(b"\n", 0, at) + 1):
            return None
        group.at = at
        samples = []
        for start, labels in group.lines:
            if not body.startswith(start, at):
                return None
            value_at = at + len(start)
            at = body.find(b"\n", value_at)
            if at < 0:
                return None
            written = body[value_at:at]
            if b"_" in written:
                return None
            try:
                samples.append(MetricSample(labels, float(written), None))
            except ValueError:
                return None
        if body.startswith(group.further, at + 1):
            return None
        return tuple(samples)

    def remember(self, name: str, body: bytes, found: Sequence[tuple[int, MetricSample]]) -> None:
        """Take note of where samples were found, or that no line of the page is of that name; not where one of its lines makes no sense.

        Only what `read` can find again: lines that follow each other, behind a line end, with nothing after the number.
        """
        self._groups.pop(name, None)
        if not found:
            self._remember_absence(name, body)
            return
        self._seen.add(name)
        encoded = name.encode()
        before = found[0][0] - 1
        if before < 0 or body[before] != _NEWLINE or len(found) > _MOST_LINES:
            return
        lines: list[tuple[bytes, Mapping[str, str]]] = []
        end = before
        for at, sample in found:
            start = _line_start(body, at, len(encoded), sample)
            if at != end + 1 or start is None:
                return
            lines.append((b"\n" + start, sample.labels))
            end = body.find(b"\n", at)
        self._groups[name] = _Group(encoded, before, tuple(lines))

    def _remember_absence(self, name: str, body: bytes) -> None:
        """A page that has neither more lines nor fewer has not got the metric either; a short one is sooner searched than counted."""
        if len(body) >= SHORTEST_PAGE and name not in self._seen:
            if not self._absent:
                self._lines = line_ends(body)
            self._absent.add(name)


def _line_start(body: bytes, at: int, name_bytes: int, sample: MetricSample) -> bytes | None:
    """The name and the labels of the line at `at`, with the blank after a name that has none; None where all else is not the number."""
    end = body.find(b"\n", at)
    after = at + name_bytes
    value_at = body.find(b"}", after, end) + 1 if body.startswith(b"{", after) else after + 1
    if end < 0 or value_at <= after or value_at - at > _LONGEST_LINE_START:
        return None
    try:
        number = number_of(body[value_at:end])
    except ValueError:
        return None
    return body[at:value_at] if number == sample.value else None
