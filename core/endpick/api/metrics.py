"""What plugins read from Prometheus pages and how they bound the labels of their own metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from endpick.api.line_index import BYTES_TOLD_APART, LineIndex, index_lines
from endpick.api.page_layout import PageLayout
from endpick.api.samples import MetricSample, sample_at

_BLANKS = b" \t"
_NEWLINE = ord("\n")
_BEFORE_VALUES = (b"{", b" ", b"\t")
_MOST_MENTIONS = 2_000
"""Each takes some 10 µs to read where its labels are new, and several metrics are read of a page."""
_MOST_LABELS = 20_000
"""On all lines that are read of a page, which may have room for ten times as many."""
_MOST_LINE_BYTES = 1024 * 1024
"""Of all lines that are read of a page: a text of megabytes takes long to unescape, and no exporter writes one."""
_MOST_BLANKS = 64
"""In front of a name; exporters write none."""


class MetricsPage:
    """One answer of a `/metrics` endpoint in Prometheus text format.

    Parsing such a page whole takes milliseconds; nearly all of it is of no interest here. So nothing is parsed until a collector asks for
    a metric by name, and then only that metric's lines. Lines that make no sense are passed over, as if they were not there.
    """

    __slots__ = ("__weakref__", "_is_indexed", "_labels", "_layout", "_line_bytes", "_lines", "_malformed", "_mentions", "_read", "body")

    def __init__(self, body: bytes, layout: PageLayout | None = None) -> None:
        """Made by a data source, for one poll.

        Args:
            body: The page, without transfer encoding. Text is UTF-8; what is not is read with replacement characters.
            layout: What was remembered of earlier pages of the same server, and is of this one; None for a page by itself.
        """
        self.body = body
        self._layout = layout
        if layout is not None:
            layout.next_page(body)
        self._read: dict[str, tuple[MetricSample, ...]] = {}
        self._mentions = 0
        self._labels = 0
        self._line_bytes = 0
        self._malformed = 0
        """Lines of the names asked for that make no sense: on the next page they may."""
        self._lines: LineIndex | None = None
        self._is_indexed = False

    def samples(self, name: str) -> Sequence[MetricSample]:
        """Every sample of this name, in page order, wherever on the page it is; read once, however often and by whom it is asked for.

        On a page that has a layout, lines that follow each other where those of the last page did are all; see `PageLayout`.

        A page that mentions the names asked for more than 2000 times, with more than 20 000 labels, or on lines of more than a mebibyte
        together, is read no further: it is broken, and collecting shares a thread with deciding.

        Args:
            name: The name in front of the braces: for histograms and summaries that includes `_bucket`, `_sum` and `_count`, for counters
                `_total`. Quoted names (UTF-8 metric names) are not supported.
        """
        found = self._read.get(name)
        if found is None:
            found = self._layout.read(name, self.body) if self._layout is not None else None
            if found is None:
                found = self._search(name)
            self._read[name] = found
        return found

    def _search(self, name: str) -> tuple[MetricSample, ...]:
        before = self._malformed
        found = self._find(name.encode())
        if self._layout is not None and not self._says_too_much() and self._malformed == before:
            self._layout.remember(name, self.body, found)
        return tuple(sample for _, sample in found)

    def _find(self, name: bytes) -> list[tuple[int, MetricSample]]:
        body, size, found = self.body, len(name), []
        for at in self._mentions_of(name):
            after = at + size
            self._mentions += 1
            # Of what stands within a line the rest of that line is not looked at: it may hold the name a million times.
            begins = body[after : after + 1] in _BEFORE_VALUES and (at == 0 or body[at - 1] == _NEWLINE or _starts_line(body, at))
            if begins:
                line_end = body.find(b"\n", after)
                line_end = len(body) if line_end < 0 else line_end
                self._line_bytes += line_end - after
                self._labels += body.count(b"=", after, line_end)
            if self._says_too_much():
                break
            if begins:
                sample = sample_at(body, after)
                if sample is None:
                    self._malformed += 1
                else:
                    found.append((at, sample))
        return found

    def _says_too_much(self) -> bool:
        return self._mentions > _MOST_MENTIONS or self._labels > _MOST_LABELS or self._line_bytes > _MOST_LINE_BYTES

    def _mentions_of(self, name: bytes) -> Iterator[int]:
        """Where the name stands at the start of a line, in page order, and perhaps elsewhere."""
        body = self.body
        if not self._is_indexed:
            self._is_indexed, self._lines = True, index_lines(body)
        if self._lines is not None and len(name) >= BYTES_TOLD_APART:
            yield from (at for at in self._lines.lines_like(name) if body.startswith(name, at))
            return
        at = body.find(name) if name else -1
        while at >= 0:
            yield at
            at = body.find(name, at + len(name))

    def newest(self, name: str, labels: Mapping[str, str] | None = None) -> MetricSample | None:
        """The sample of this name with at least these labels: the latest by timestamp, the first on the page among equals; else None."""
        samples = self.samples(name)
        if not labels and len(samples) == 1:
            return samples[0]
        found: MetricSample | None = None
        for sample in samples:
            if labels and not labels.items() <= sample.labels.items():
                continue
            if found is None or (sample.timestamp_seconds or 0.0) > (found.timestamp_seconds or 0.0):
                found = sample
        return found


def _starts_line(body: bytes, at: int) -> bool:
    """Whether nothing but blanks, and not very many, stands between the start of the line and `at`."""
    before = body[max(0, at - _MOST_BLANKS) : at].rstrip(_BLANKS)
    return before[-1] == _NEWLINE if before else at <= _MOST_BLANKS


MAX_LABEL_VALUES = 1000
"""Distinct client-derived values; llm-d's figure."""
MAX_LABEL_LENGTH = 128
"""Bytes of a client-derived value, in UTF-8: a page of all that clients may name, in characters of four bytes, would have 76 MB."""


def as_label(text: str) -> str:
    """The beginning of a text that a client chose, short enough for a label, and fit for a page: halves of surrogate pairs become `?`."""
    if text.isascii():
        return text[:MAX_LABEL_LENGTH]
    return text[:MAX_LABEL_LENGTH].encode("utf-8", "replace")[:MAX_LABEL_LENGTH].decode("utf-8", "ignore")


class LabelLimit:
    """Lets the first values through, cut after 128 bytes of UTF-8, and folds later ones into `other`.

    For a plugin that labels its metrics with what a client sent: a model name, a fairness id.
    """

    def __init__(self, maximum: int = MAX_LABEL_VALUES) -> None:
        """Remember at most `maximum` values."""
        self._maximum = maximum
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        """The value itself, no longer than a label may be, or `other` once too many have been seen."""
        value = as_label(value)
        if value in self._seen:
            return value
        if len(self._seen) >= self._maximum:
            return "other"
        self._seen.add(value)
        return value
