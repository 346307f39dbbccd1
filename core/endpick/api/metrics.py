"""Reads Prometheus pages, and bounds label values that clients choose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

_AFTER_NAME = (b"{", b" ", b"\t")
_LABEL = re.compile(rb'[ \t,]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\\n]++|\\[^\n])*+)"[ \t]*(?=[,}])')
_LABELS_END = re.compile(rb"[ \t,]*\}")
_LONGEST_CACHED = 4096  # bytes of labels
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class MetricSample(NamedTuple):
    """One line of a metrics page."""

    labels: Mapping[str, str]
    """Label values by label name, read-only."""
    value: float
    """The number as written; may be NaN or infinite."""
    timestamp_seconds: float | None
    """Unix seconds; None without a timestamp, as is usual."""


class MetricsPage:
    """The answer of a `/metrics` endpoint in Prometheus text format.

    The payload of `metrics-data-source`. Metrics are parsed on demand, because a whole page takes 20 ms. Malformed lines are skipped.
    """

    __slots__ = ("__weakref__", "_samples", "body")

    def __init__(self, body: bytes) -> None:
        """Keep the page. `body` is UTF-8; invalid bytes become replacement characters."""
        self.body = body
        self._samples: dict[str, tuple[MetricSample, ...]] = {}

    def samples(self, name: str) -> Sequence[MetricSample]:
        """Return all samples of a metric, in page order; empty if there are none.

        `name` is as on the page, with suffixes such as `_total` and `_sum`. Quoted (UTF-8) names are not read. Results are kept.
        """
        found = self._samples.get(name)
        if found is None:
            parsed = (_parse_sample(self.body, after) for after in self._ends_of(name.encode()))
            found = self._samples[name] = tuple(sample for sample in parsed if sample is not None)
        return found

    def newest(self, name: str, labels: Mapping[str, str] | None = None) -> MetricSample | None:
        """Return the latest sample with at least these labels; the first among equals, or None.

        A sample without a timestamp counts as older than any sample with one.
        """
        return max(self._matching(name, labels), key=_timestamp, default=None)

    def series(self, name: str, labels: Mapping[str, str] | None = None) -> Sequence[MetricSample]:
        """Return the latest sample of each series with at least these labels.

        A series is a combination of label values. Among equal timestamps the first sample counts.
        """
        samples = self._matching(name, labels)
        if len(samples) < 2:
            return samples
        latest: dict[frozenset[tuple[str, str]], MetricSample] = {}
        for sample in samples:
            known = latest.setdefault(frozenset(sample.labels.items()), sample)
            if _timestamp(sample) > _timestamp(known):
                latest[frozenset(sample.labels.items())] = sample
        return tuple(latest.values())

    def _matching(self, name: str, labels: Mapping[str, str] | None) -> Sequence[MetricSample]:
        samples = self.samples(name)
        return [sample for sample in samples if labels.items() <= sample.labels.items()] if labels else samples

    def _ends_of(self, name: bytes) -> Iterator[int]:
        body, size = self.body, len(name)
        line, at = 0, body.find(name) if name else -1
        while at >= 0:
            after = at + size
            start = max(body.rfind(b"\n", line, at) + 1, line)
            if body[after : after + 1] in _AFTER_NAME and not body[start:at].strip(b" \t"):
                yield after
            line = body.find(b"\n", after)  # no name later in this line can begin it
            at = -1 if line < 0 else body.find(name, line)


def _timestamp(sample: MetricSample) -> float:
    return sample.timestamp_seconds or 0.0


def _parse_sample(body: bytes, after: int) -> MetricSample | None:
    end = body.find(b"\n", after)
    if end < 0:
        end = len(body)
    labels, value_at = _NO_LABELS, after
    brace = body.find(b"{", after, end)
    if brace >= 0 and not body[after:brace].strip():
        value_at = body.find(b"}", brace, end) + 1
        known = _labels_of_block(body[brace:value_at]) if 0 < value_at <= brace + _LONGEST_CACHED else None
        if known is None:  # perhaps a brace within a label's value
            known, value_at = _read_labels(body, brace, end)
            if known is None:
                return None
        labels = known
    words = body[value_at:end].split(b" # ", 1)[0].split()  # without an exemplar
    try:
        if len(words) == 1:
            return MetricSample(labels, _number(words[0]), None)
        if len(words) == 2:
            return MetricSample(labels, _number(words[0]), _number(words[1]) / 1000)
    except ValueError:
        pass
    return None


@lru_cache(maxsize=1024)
def _labels_of_block(block: bytes) -> Mapping[str, str] | None:
    """Cached: labels repeat in every scrape, and take most of the time."""
    labels, end = _read_labels(block, 0, len(block))
    return labels if end == len(block) else None


def _read_labels(text: bytes, at: int, stop: int) -> tuple[Mapping[str, str] | None, int]:
    """Labels in the braces at `at`, and their end, `stop` at most; None if malformed."""
    labels: dict[str, str] = {}
    at += 1
    while label := _LABEL.match(text, at, stop):
        name, value = label[1].decode(), label[2].decode(errors="replace")
        if name in labels:
            return None, at
        labels[name] = _unescaped(value) if "\\" in value else value
        at = label.end()
    end = _LABELS_END.match(text, at, stop)
    return (MappingProxyType(labels), end.end()) if end else (None, at)


def _unescaped(value: str) -> str:
    return "\\".join(part.replace("\\n", "\n").replace('\\"', '"') for part in value.split("\\\\"))


def _number(word: bytes) -> float:
    if b"_" in word:  # Python would read 1_000
        raise ValueError("underscore in a number")
    return float(word)


MAX_LABEL_VALUES = 1000
"""Distinct values of a label, as in llm-d."""
MAX_LABEL_BYTES = 128


def as_label(text: str) -> str:
    """Cut a text to 128 bytes of valid UTF-8, for use as a label value."""
    if text.isascii():
        return text[:MAX_LABEL_BYTES]
    return text[:MAX_LABEL_BYTES].encode("utf-8", "replace")[:MAX_LABEL_BYTES].decode("utf-8", "ignore")


class LabelLimit:
    """Bounds the number of values of a label that clients choose, such as a model name."""

    def __init__(self, maximum: int = MAX_LABEL_VALUES) -> None:
        self._maximum = maximum
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        """Return the value, cut to 128 bytes; `other` if it is new and the maximum is reached."""
        value = as_label(value)
        if value in self._seen:
            return value
        if len(self._seen) >= self._maximum:
            return "other"
        self._seen.add(value)
        return value
