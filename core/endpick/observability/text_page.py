"""Writes metrics in Prometheus' text format, piece by piece, so that requests have their turn in between.

`prometheus_client.exposition` writes the same page, and imports the standard library's web servers and clients with it: 3 MiB that a
serving process would hold from its first scrape on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

_SAMPLES_AT_ONCE = 200
_WRITTEN_APART = ("_created", "_gcount", "_gsum")
"""OpenMetrics has such samples within a family; here they follow it as gauges of their own."""
_NAMED_APART = {"counter": "_total", "info": "_info"}
_TYPES = {"info": "gauge", "stateset": "gauge", "gaugehistogram": "histogram", "unknown": "untyped"}
"""What the text format calls a type, where it is not what OpenMetrics calls it."""
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n"})
_QUOTED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


async def page_of(collector: Collector) -> bytes:
    """The page of all families of a collector; after each piece the event loop has its turn.

    The samples of one combination of labels agree with each other, buckets with sums; two combinations may be some milliseconds apart.
    """
    pieces: list[str] = []
    last = ""
    for family in collector.collect():
        lines = _lines(family, continued=family.name == last)
        last = family.name
        while piece := "".join(islice(lines, _SAMPLES_AT_ONCE)):
            pieces.append(piece)
            await asyncio.sleep(0)
    return "".join(pieces).encode()


def _lines(family: Metric, *, continued: bool) -> Iterator[str]:
    """A family that comes in several parts has its head once."""
    if not continued:
        yield _head(family, _NAMED_APART.get(family.type, ""), _TYPES.get(family.type, family.type))
    apart: dict[str, list[Sample]] = {}
    names_apart = {family.name + suffix: suffix for suffix in _WRITTEN_APART}
    for sample in family.samples:
        suffix = names_apart.get(sample.name)
        if suffix is None:
            yield _line(sample)
        else:
            apart.setdefault(suffix, []).append(sample)
    for suffix in sorted(apart):
        yield _head(family, suffix, "gauge")
        yield from map(_line, apart[suffix])


def _head(family: Metric, suffix: str, written_type: str) -> str:
    name = _metric_name(family.name + suffix)
    return f"# HELP {name} {family.documentation.translate(_ESCAPED)}\n# TYPE {name} {written_type}\n"


def _line(sample: Sample) -> str:
    labels = "{" + ",".join(_labels(sample.labels.items())) + "}" if sample.labels else ""
    value = floatToGoString(sample.value)  # type: ignore[no-untyped-call]
    return f"{_metric_name(sample.name)}{labels} {value}\n"


def _labels(labels: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f'{_label_name(name)}="{value.translate(_QUOTED)}"' for name, value in sorted(labels))


@lru_cache(maxsize=1000)
def _metric_name(name: str) -> str:
    """With an underscore for each character that older servers refuse in names."""
    return re.sub(r"[^a-zA-Z0-9_:]|^\d", "_", name)


@lru_cache(maxsize=1000)
def _label_name(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]|^\d", "_", name)
