"""What plugins read from Prometheus pages and how they bound the labels of their own metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from endpick.api.line_index import BYTES_TOLD_APART, LineIndex, index_lines

_BLANKS = b" \t"
_NEWLINE, _BRACE = ord("\n"), ord("{")
_BEFORE_VALUES = (b"{", b" ", b"\t")
_LABEL = re.compile(rb'[ \t,]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\\n]++|\\[^\n])*+)"[ \t]*(?=[,}])')
_LABELS_END = re.compile(rb"[ \t,]*\}")
_MOST_MENTIONS = 10_000
_MOST_BLANKS = 64
"""In front of a name; exporters write none."""
_LONGEST_KNOWN = 2048
"""Bytes of labels that are remembered (vLLM's cache_config_info has 1100); longer ones are read anew each time."""
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class MetricSample(NamedTuple):
    """One line of a metrics page."""

    labels: Mapping[str, str]
    value: float
    """As written: NaN and the infinities are possible."""
    timestamp_seconds: float | None
    """When the exporter measured it; None, as usual, when it does not say."""


class MetricsPage:
    """One answer of a `/metrics` endpoint in Prometheus text format.

    Parsing such a page whole takes milliseconds; nearly all of it is of no interest here. So nothing is parsed until a collector asks for
    a metric by name, and then only that metric's lines. Lines that make no sense are passed over, as if they were not there.
    """

    __slots__ = ("_is_indexed", "_lines", "_mentions", "_read", "body")

    def __init__(self, body: bytes) -> None:
        """Made by a data source, for one poll.

        Args:
            body: The page, without transfer encoding. Text is UTF-8; what is not is read with replacement characters.
        """
        self.body = body
        self._read: dict[str, tuple[MetricSample, ...]] = {}
        self._mentions = 0
        self._lines: LineIndex | None = None
        self._is_indexed = False

    def samples(self, name: str) -> Sequence[MetricSample]:
        """Every sample of this name, in page order, wherever on the page it is; read once, however often and by whom it is asked for.

        A page that mentions the names asked for more than 10 000 times is read no further: it is broken, and collecting shares a thread
        with deciding.

        Args:
            name: The name in front of the braces: for histograms and summaries that includes `_bucket`, `_sum` and `_count`, for counters
                `_total`. Quoted names (UTF-8 metric names) are not supported.
        """
        found = self._read.get(name)
        if found is None:
            found = self._read[name] = tuple(self._find(name.encode()))
        return found

    def _find(self, name: bytes) -> list[MetricSample]:
        body, size, found = self.body, len(name), []
        for at in self._mentions_of(name):
            self._mentions += 1
            if self._mentions > _MOST_MENTIONS:
                break
            after = at + size
            if body[after : after + 1] in _BEFORE_VALUES and (at == 0 or body[at - 1] == _NEWLINE or _starts_line(body, at)):
                sample = _sample_at(body, after)
                if sample is not None:
                    found.append(sample)
        return found

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
        found: MetricSample | None = None
        for sample in self.samples(name):
            if labels and not labels.items() <= sample.labels.items():
                continue
            if found is None or (sample.timestamp_seconds or 0.0) > (found.timestamp_seconds or 0.0):
                found = sample
        return found


def _starts_line(body: bytes, at: int) -> bool:
    """Whether nothing but blanks, and not very many, stands between the start of the line and `at`."""
    before = body[max(0, at - _MOST_BLANKS) : at].rstrip(_BLANKS)
    return before[-1] == _NEWLINE if before else at <= _MOST_BLANKS


def _sample_at(body: bytes, after: int) -> MetricSample | None:
    """The sample whose name ends at `after`; None when its line is malformed.

    Nearly every line is a name, labels seen before and a number: that is tried first, and anything else is taken apart with care.
    """
    end = body.find(b"\n", after)
    if end < 0:
        end = len(body)
    labels, value_at = _NO_LABELS, after
    if body[after] == _BRACE:
        value_at = body.find(b"}", after, end) + 1
        known = _known_labels(body[after:value_at]) if 0 < value_at <= after + _LONGEST_KNOWN else None
        if known is None:
            return _read_sample(body[after:end])
        labels = known
    try:
        return MetricSample(labels, _number(body[value_at:end]), None)
    except ValueError:
        return _read_sample(body[after:end])


def _read_sample(rest: bytes) -> MetricSample | None:
    """What follows the name on a sample's line; None when it is malformed."""
    rest = rest.strip()
    labels: Mapping[str, str] = _NO_LABELS
    if rest.startswith(b"{"):
        end = rest.find(b"}") + 1
        known = _known_labels(rest[:end]) if 0 < end <= _LONGEST_KNOWN else None
        if known is None:
            read: dict[str, str] = {}
            whole = _read_labels(rest, read)
            if whole is None:
                return None
            known, end = read, whole
        labels, rest = known, rest[end:]
    words = rest.split(b" # ", 1)[0].split()
    try:
        numbers = [_number(word) for word in words]
    except ValueError:
        return None
    if len(numbers) == 1:
        return MetricSample(labels, numbers[0], None)
    if len(numbers) == 2:
        return MetricSample(labels, numbers[0], numbers[1] / 1000)
    return None


@lru_cache(maxsize=1024)
def _known_labels(block: bytes) -> Mapping[str, str] | None:
    """The labels of a block from its first brace to the next; None when that is not all of it, or malformed.

    From one scrape to the next numbers change and labels stay, and they take most of the time of reading a line.
    """
    labels: dict[str, str] = {}
    return MappingProxyType(labels) if _read_labels(block, labels) == len(block) else None


def _read_labels(rest: bytes, labels: dict[str, str]) -> int | None:
    """Fill `labels` from text that starts with a brace; where they end, or None when they are malformed."""
    at = 1
    while label := _LABEL.match(rest, at):
        name, value = label[1].decode(), label[2].decode(errors="replace")
        if name in labels:
            return None
        labels[name] = _unescaped(value) if "\\" in value else value
        at = label.end()
    end = _LABELS_END.match(rest, at)
    return end.end() if end else None


def _unescaped(value: str) -> str:
    """Backslashes escape themselves, quotes and `n`; in front of anything else they stand for themselves."""
    return "\\".join(part.replace("\\n", "\n").replace('\\"', '"') for part in value.split("\\\\"))


def _number(word: bytes) -> float:
    """Raises ValueError for what is no number; Python's own `1_000` is none here."""
    if b"_" in word:
        raise ValueError("underscore in a number")
    return float(word)


MAX_LABEL_VALUES = 1000
"""Distinct client-derived values; llm-d's figure."""


class LabelLimit:
    """Lets the first values through and folds later ones into `other`.

    For a plugin that labels its metrics with what a client sent: a model name, a fairness id.
    """

    def __init__(self, maximum: int = MAX_LABEL_VALUES) -> None:
        """Remember at most `maximum` values."""
        self._maximum = maximum
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        """The value itself, or `other` once too many have been seen."""
        if value in self._seen:
            return value
        if len(self._seen) >= self._maximum:
            return "other"
        self._seen.add(value)
        return value
