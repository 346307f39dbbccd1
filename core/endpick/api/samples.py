"""One line of a metrics page: a name, labels and a number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

_BRACE = ord("{")
_LABEL = re.compile(rb'[ \t,]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\\n]++|\\[^\n])*+)"[ \t]*(?=[,}])')
_LABELS_END = re.compile(rb"[ \t,]*\}")
_LONGEST_KNOWN = 2048
"""Bytes of labels that are remembered (vLLM's cache_config_info has 1100); longer ones are read anew each time."""
_MOST_WORDS = 2
"""Behind the labels of a line; where there are more, it is malformed whatever they are."""
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class MetricSample(NamedTuple):
    """One line of a metrics page."""

    labels: Mapping[str, str]
    value: float
    """As written: NaN and the infinities are possible."""
    timestamp_seconds: float | None
    """When the exporter measured it; None, as usual, when it does not say."""


def sample_at(body: bytes, after: int) -> MetricSample | None:
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
        return MetricSample(labels, number_of(body[value_at:end]), None)
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
    words = rest.split(b" # ", 1)[0].split(maxsplit=_MOST_WORDS)
    try:
        numbers = [number_of(word) for word in words]
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


def number_of(word: bytes) -> float:
    """Raises ValueError for what is no number; Python's own `1_000` is none here."""
    if b"_" in word:
        raise ValueError("underscore in a number")
    return float(word)
