"""Has metrics written in Prometheus' text format piece by piece, so that requests have their turn in between."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, Metric, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SAMPLES_AT_ONCE = 200
_FAMILY_SAMPLES = 20
"""A family takes as long to write as so many samples, whatever it has."""
_WRITTEN_APART = ("_created", "_gcount", "_gsum")
"""Samples of names that end so follow their family as families of their own, in this order."""


class CollectorInTurns(Collector):
    """One whose work between two families may be much."""

    @abstractmethod
    def in_turns(self) -> Iterator[Metric | None]:
        """What `collect` gives, and None wherever others may have a turn."""


async def page_of(collector: Collector) -> bytes:
    """The page of all families of a collector; between two pieces, unless they are short, the event loop has its turn.

    Not between all: there are a hundred and fifty families, and in a flood each of so many turns takes some milliseconds.

    The samples of one combination of labels agree with each other, buckets with sums; two combinations may be some milliseconds apart.
    """
    pieces: list[bytes] = []
    written = ""
    at_once = 0
    families = collector.in_turns() if isinstance(collector, CollectorInTurns) else collector.collect()
    for family in families:
        if family is None:
            at_once = 0
            await asyncio.sleep(0)
            continue
        for part in _parts(family):
            size = len(part.samples) + _FAMILY_SAMPLES
            if at_once and at_once + size > _SAMPLES_AT_ONCE + _FAMILY_SAMPLES:
                at_once = 0
                await asyncio.sleep(0)
            at_once += size
            text = _written(part)
            # A further part of a family repeats the two lines about it.
            pieces.append(text.split(b"\n", 2)[2] if part.name == written else text)
            written = part.name
    return b"".join(pieces)


def _parts(family: Metric) -> Iterator[Metric]:
    if len(family.samples) <= _SAMPLES_AT_ONCE:
        yield family
        return
    of_its_name: list[Sample] = []
    apart: dict[str, list[Sample]] = {family.name + suffix: [] for suffix in _WRITTEN_APART}
    for sample in family.samples:
        apart.get(sample.name, of_its_name).append(sample)
    yield from _pieces(family.name, family, family.type, of_its_name)
    for name, samples in apart.items():
        if samples:
            yield from _pieces(name, family, "gauge", samples)


def _pieces(name: str, family: Metric, kind: str, samples: Sequence[Sample]) -> Iterator[Metric]:
    for start in range(0, len(samples) or 1, _SAMPLES_AT_ONCE):
        piece = Metric(name, family.documentation, kind)
        piece.samples = list(samples[start : start + _SAMPLES_AT_ONCE])
        yield piece


def _written(family: Metric) -> bytes:
    try:
        return generate_latest(_Alone(family))
    except UnicodeEncodeError:  # half a surrogate pair, which a name may be for all that Python says: one label is no reason for no page
        plain = Metric(family.name, _encodable(family.documentation), family.type)
        plain.samples = [
            sample._replace(labels={name: _encodable(text) for name, text in sample.labels.items()}) for sample in family.samples
        ]
        return generate_latest(_Alone(plain))


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


class _Alone(Collector):
    """One family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        """That family."""
        yield self._family
