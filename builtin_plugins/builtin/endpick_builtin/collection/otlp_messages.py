"""Converts OTLP exports to metrics pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from google.protobuf.json_format import MessageToJson, Parse, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import DataPointFlags, Metric, ResourceMetrics

from endpick.api import MetricsPage

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_:]")
_NOT_IN_A_LABEL = re.compile(r"[^a-zA-Z0-9_]")
_LONGEST_NAME = 1024  # written once per point


class MalformedExport(ValueError):  # noqa: N818 - the sender's error, as the OTLP specification names it
    """Raised if a request body is not an OTLP export of metrics."""


@dataclass(frozen=True, slots=True)
class ResourcePage:
    """The metrics page of one resource, with its text attributes and number of lines."""

    attributes: Mapping[str, str]
    page: MetricsPage
    points: int


def parse_export(body: bytes, *, is_json: bool) -> ExportMetricsServiceRequest:
    """Parse an export from protobuf or its JSON form; raises MalformedExport."""
    try:
        if is_json:
            return Parse(body, ExportMetricsServiceRequest(), ignore_unknown_fields=True)
        return ExportMetricsServiceRequest.FromString(body)
    except (DecodeError, ParseError, UnicodeDecodeError) as error:
        raise MalformedExport(f"the body is not an ExportMetricsServiceRequest: {error}") from error


def pages_of(export: ExportMetricsServiceRequest) -> list[ResourcePage]:
    """Return one page for each resource that has points."""
    return [page for resource in export.resource_metrics if (page := _page_of(resource)).points]


def _page_of(resource: ResourceMetrics) -> ResourcePage:
    lines = [line for scope in resource.scope_metrics for metric in scope.metrics for line in _lines_of(metric)]
    return ResourcePage(_texts(resource.resource.attributes), MetricsPage("".join(lines).encode()), len(lines))


def _lines_of(metric: Metric) -> Iterator[str]:
    if len(metric.name) > _LONGEST_NAME:
        return
    for numbers in (metric.gauge.data_points, metric.sum.data_points):
        for number in numbers:
            if _has_value(number.flags):
                value = number.as_double if number.HasField("as_double") else float(number.as_int)
                yield page_line(metric.name, _texts(number.attributes), value, number.time_unix_nano)
    for points in (metric.histogram.data_points, metric.summary.data_points):
        for point in points:
            if _has_value(point.flags):
                labels, when = _texts(point.attributes), point.time_unix_nano
                yield page_line(f"{metric.name}_count", labels, float(point.count), when)
                yield page_line(f"{metric.name}_sum", labels, point.sum, when)


def _has_value(flags: int) -> bool:
    return not flags & DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK


def _texts(attributes: Iterable[KeyValue]) -> dict[str, str]:
    return {attribute.key: attribute.value.string_value for attribute in attributes if attribute.value.string_value}


def page_line(name: str, labels: Mapping[str, str], value: float, nanoseconds: int) -> str:
    """Format a line of Prometheus text, with names as OpenTelemetry's exporters write them."""
    inside = ",".join(f'{_NOT_IN_A_LABEL.sub("_", key)}="{_escaped(text)}"' for key, text in labels.items())
    when = f" {nanoseconds // 1_000_000}" if nanoseconds else ""
    return f"{_NOT_IN_A_NAME.sub('_', name)}{{{inside}}} {value!r}{when}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def answer(dropped: int, reason: str) -> ExportMetricsServiceResponse:
    """Build the response, which reports a partial success if points were dropped."""
    response = ExportMetricsServiceResponse()
    if dropped:
        response.partial_success.rejected_data_points = dropped
        response.partial_success.error_message = reason
    return response


def to_json(response: ExportMetricsServiceResponse) -> str:
    """Serialise a response in protobuf's JSON form, for clients that push JSON."""
    return MessageToJson(response)
