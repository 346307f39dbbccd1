"""What an OTLP export of metrics says: for each resource its attributes, and its metrics as a page of Prometheus text.

The messages are those of `opentelemetry/proto/metrics/v1` and `collector/metrics/v1`, in protobuf or in their JSON form. A metrics page is
what collectors read, so a push and a scrape end in the same columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, cast

import orjson
from google.protobuf.message import DecodeError, Message

from endpick.api import MetricsPage
from endpick_builtin.parsers.grpc_bodies import messages_of

MAX_POINTS = 5000
"""Of one export, unless a parameter says otherwise: few batches of model servers have as many, and each takes time."""
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_:]")
_NOT_IN_A_LABEL = re.compile(r"[^a-zA-Z0-9_]")
_PARTS_PER_POINT = 20
"""Messages of an export for each of the points that are read: attributes, and what stands around points."""
_LEAST_BYTES = 2
"""Of a message within another one."""
_NO_RECORDED_VALUE = 1
"""Bit of a point's flags: it says only that there is no value."""


class MalformedExport(Exception):  # noqa: N818 - what the client is told
    """The body is no export of metrics; the message says why."""


class TooManyParts(MalformedExport):
    """It is made of more messages than so many points have use for; each would be an object, and 4 MiB have room for two million."""


@dataclass(frozen=True, slots=True)
class ResourceMetrics:
    """What an export says of one resource.

    Attributes:
        attributes: Those whose values are texts.
        page: Gauges and sums, and of histograms and summaries count and sum.
        points: How many of them.
    """

    attributes: Mapping[str, str]
    page: MetricsPage
    points: int


@dataclass(frozen=True, slots=True)
class Export:
    """One export; `dropped` counts the points beyond the limit."""

    resources: tuple[ResourceMetrics, ...]
    dropped: int = 0


@cache
def _messages() -> dict[str, type[Message]]:
    number = {"attributes": (7, "KeyValue*"), "time_unix_nano": (3, "fixed64"), "flags": (8, "uint32")}
    spread = {"time_unix_nano": (3, "fixed64"), "count": (4, "fixed64"), "sum": (5, "double")}
    return messages_of(
        "opentelemetry.endpick",
        {
            "AnyValue": {"string_value": (1, "string")},
            "KeyValue": {"key": (1, "string"), "value": (2, "AnyValue")},
            "NumberDataPoint": {**number, "as_double": (4, "double"), "as_int": (6, "sfixed64")},
            "HistogramDataPoint": {**spread, "attributes": (9, "KeyValue*"), "flags": (10, "uint32")},
            "SummaryDataPoint": {**spread, "attributes": (7, "KeyValue*"), "flags": (8, "uint32")},
            "Numbers": {"data_points": (1, "NumberDataPoint*")},
            "Histogram": {"data_points": (1, "HistogramDataPoint*")},
            "Summary": {"data_points": (1, "SummaryDataPoint*")},
            "Metric": {
                "name": (1, "string"),
                "gauge": (5, "Numbers"),
                "sum": (7, "Numbers"),
                "histogram": (9, "Histogram"),
                "summary": (11, "Summary"),
            },
            "ScopeMetrics": {"metrics": (2, "Metric*")},
            "Resource": {"attributes": (1, "KeyValue*")},
            "ResourceMetrics": {"resource": (1, "Resource"), "scope_metrics": (2, "ScopeMetrics*")},
            "Export": {"resource_metrics": (1, "ResourceMetrics*")},
            "PartialSuccess": {"rejected_data_points": (1, "int64"), "error_message": (2, "string")},
            "Answer": {"partial_success": (1, "PartialSuccess")},
        },
    )


@dataclass(frozen=True, slots=True)
class _Point:
    name: str
    labels: Mapping[str, str]
    value: float
    nanoseconds: int


def read_protobuf(body: bytes, most_points: int = MAX_POINTS) -> Export:
    """Read a body of `application/x-protobuf`, and so many of its points.

    Raises:
        MalformedExport: it is none, or, as `TooManyParts`, one that is not worth reading.
    """
    most = most_points * _PARTS_PER_POINT
    if len(body) > _LEAST_BYTES * most:
        _refuse_many(sum(1 for _ in islice(_messages_in(body, _NESTED), most + 1)), most_points)
    try:
        export = cast("Any", _messages()["Export"].FromString(body))
    except DecodeError as problem:
        raise MalformedExport(f"the body is no ExportMetricsServiceRequest: {problem}") from problem
    return _export(((_texts(one.resource.attributes), _points_of(one)) for one in export.resource_metrics), most_points)


_ATTRIBUTES: Mapping[int, Any] = {7: {2: {}}, 9: {2: {}}}
_POINTS: Mapping[int, Any] = {1: _ATTRIBUTES}
_NESTED: Mapping[int, Any] = {1: {1: {1: {2: {}}}, 2: {2: {5: _POINTS, 7: _POINTS, 9: _POINTS, 11: _POINTS}}}}
"""Which fields of an export are messages that repeat, and which of theirs; what is no message there is not looked into."""
_LENGTH_DELIMITED = 2


def _messages_in(body: bytes, nested: Mapping[int, Any]) -> Iterator[None]:
    """One for each message within the message, without making objects of them; bytes that make no sense end it."""
    pending = [(0, len(body), nested)]
    while pending:
        at, end, fields = pending.pop()
        while at < end:
            tag, at = _varint(body, at)
            kind = tag & 7
            if kind == _LENGTH_DELIMITED:
                size, at = _varint(body, at)
                inside = fields.get(tag >> 3)
                if inside is not None:
                    yield
                    if inside and size:
                        pending.append((at, min(at + size, end), inside))
                at += size
            elif kind == 0:
                _, at = _varint(body, at)
            else:
                at += 4 if kind == 5 else 8


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """The number there, and where the next one begins."""
    value = shift = 0
    while at < len(body) and shift < 64:
        octet = body[at]
        at += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            break
        shift += 7
    return value, at


def _refuse_many(parts: int, most_points: int) -> None:
    most = most_points * _PARTS_PER_POINT
    if parts > most:
        raise TooManyParts(f"the body has more than {most} parts, {_PARTS_PER_POINT} for each of maxPoints; send smaller batches")


def _texts(attributes: Iterable[Any]) -> dict[str, str]:
    return {each.key: each.value.string_value for each in attributes if each.value.string_value}


def _points_of(resource: Any) -> Iterator[_Point]:  # noqa: ANN401 - a message whose class is made at run time
    for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
        for points in (metric.gauge.data_points, metric.sum.data_points):
            for point in points:
                if not point.flags & _NO_RECORDED_VALUE:
                    # One of the two is set, and the other 0.
                    yield _Point(metric.name, _texts(point.attributes), point.as_double + point.as_int, point.time_unix_nano)
        for points in (metric.histogram.data_points, metric.summary.data_points):
            for point in points:
                if not point.flags & _NO_RECORDED_VALUE:
                    labels = _texts(point.attributes)
                    yield _Point(f"{metric.name}_count", labels, float(point.count), point.time_unix_nano)
                    yield _Point(f"{metric.name}_sum", labels, point.sum, point.time_unix_nano)


def read_json(body: bytes, most_points: int = MAX_POINTS) -> Export:
    """As `read_protobuf`, of `application/json`, the JSON form of protobuf: lowerCamelCase names, whole numbers of 64 bits as texts.

    Raises:
        MalformedExport: it is none, or, as `TooManyParts`, one that is not worth reading.
    """
    _refuse_many(body.count(b"{") + body.count(b"["), most_points)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise MalformedExport(f"the body is no JSON: {problem}") from problem
    try:
        resources = [
            (_json_texts(_part(one.get("resource")).get("attributes")), _json_points_of(one)) for one in _parts(document, "resourceMetrics")
        ]
        return _export(resources, most_points)
    except (AttributeError, TypeError, ValueError, OverflowError) as problem:
        raise MalformedExport(f"the body is no ExportMetricsServiceRequest: {problem}") from problem


def _part(value: Any) -> dict[str, Any]:  # noqa: ANN401 - what JSON may hold
    if value is not None and not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} where an object should be")
    return value or {}


def _parts(value: Any, name: str) -> list[dict[str, Any]]:  # noqa: ANN401
    found = _part(value).get(name)
    if found is not None and not isinstance(found, list):
        raise TypeError(f"'{name}' is no list")
    return [_part(each) for each in found or ()]


def _json_texts(attributes: Any) -> dict[str, str]:  # noqa: ANN401
    texts = {str(each.get("key")): _part(each.get("value")).get("stringValue") for each in _parts({"of": attributes}, "of")}
    return {key: text for key, text in texts.items() if isinstance(text, str) and text}


def _json_points_of(resource: dict[str, Any]) -> Iterator[_Point]:
    for metric in (metric for scope in _parts(resource, "scopeMetrics") for metric in _parts(scope, "metrics")):
        name = str(metric.get("name", ""))
        for kind in ("gauge", "sum"):
            for point in _json_data_points(metric, kind):
                value = point.get("asDouble", point.get("asInt", 0))
                yield _Point(name, _json_texts(point.get("attributes")), float(value), int(point.get("timeUnixNano", 0)))
        for kind in ("histogram", "summary"):
            for point in _json_data_points(metric, kind):
                labels, when = _json_texts(point.get("attributes")), int(point.get("timeUnixNano", 0))
                yield _Point(f"{name}_count", labels, float(point.get("count", 0)), when)
                yield _Point(f"{name}_sum", labels, float(point.get("sum", 0)), when)


def _json_data_points(metric: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [point for point in _parts(metric.get(kind), "dataPoints") if not int(point.get("flags", 0)) & _NO_RECORDED_VALUE]


def _export(resources: Iterable[tuple[dict[str, str], Iterator[_Point]]], most_points: int) -> Export:
    left, dropped, found = most_points, 0, []
    for attributes, points in resources:
        lines = []
        for point in points:
            if left:
                left -= 1
                lines.append(line_of(point.name, point.labels, point.value, point.nanoseconds))
            else:
                dropped += 1
        if lines:
            found.append(ResourceMetrics(attributes, MetricsPage("".join(lines).encode(errors="replace")), len(lines)))
    return Export(tuple(found), dropped)


def line_of(name: str, labels: Mapping[str, str], value: float, nanoseconds: int) -> str:
    """One line of Prometheus text. Characters that it does not allow in names become `_`, as OpenTelemetry's own exporters have it."""
    inside = ",".join(f'{_NOT_IN_A_LABEL.sub("_", key)}="{_escaped(text)}"' for key, text in labels.items())
    when = f" {nanoseconds // 1_000_000}" if nanoseconds else ""
    shown = "NaN" if math.isnan(value) else f"{value!r}"
    return f"{_NOT_IN_A_NAME.sub('_', name)}{{{inside}}} {shown}{when}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def answer_of(rejected: int, message: str, *, as_json: bool) -> bytes:
    """The body of a success, which says how many points were left out where there are any."""
    if as_json:
        return orjson.dumps({"partialSuccess": {"rejectedDataPoints": str(rejected), "errorMessage": message}} if rejected else {})
    kinds = _messages()
    if not rejected:
        return b""
    partial = kinds["PartialSuccess"](rejected_data_points=rejected, error_message=message)
    return kinds["Answer"](partial_success=partial).SerializeToString()
