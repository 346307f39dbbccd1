"""`endpoint-load-observer`: reads load from response headers (ORCA)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import orjson
from pydantic import Field

from endpick.api import (
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    CycleState,
    InferenceRequest,
    Parameters,
    PluginContext,
    PreRequest,
    ResponseHead,
    ResponseObserver,
    SchedulingResult,
    Stability,
    UpstreamHeaders,
)
from endpick.api.fast_metrics import Counts

FORMAT_HEADER = "endpoint-load-metrics-format"
LOAD_HEADER = "endpoint-load-metrics"

_WAITING = WAITING_QUEUE_SIZE.beside_others()
_RUNNING = RUNNING_REQUESTS_SIZE.beside_others()
_KV_USAGE = KV_CACHE_USAGE.beside_others()
_PREFIX = "named_metrics."


class LoadFormat(StrEnum):
    """The format of load reports."""

    JSON = "JSON"
    TEXT = "TEXT"


class Outcome(StrEnum):
    """Value of the metric's label `outcome`."""

    READ = "read"
    NONE = "none"
    UNREADABLE = "unreadable"


class LoadObserverParameters(Parameters):
    """Format and metric names of the reports."""

    format: Annotated[LoadFormat, Field(description="Format to ask for, `JSON` or `TEXT`; both are read.", examples=["JSON"])] = (
        LoadFormat.JSON
    )
    waiting_metric: Annotated[
        str, Field(alias="waitingMetric", description="Metric with the number of waiting requests; empty to not read it.")
    ] = "num_requests_waiting"
    running_metric: Annotated[
        str, Field(alias="runningMetric", description="Metric with the number of running requests; empty to not read it.")
    ] = "num_requests_running"
    kv_usage_metric: Annotated[
        str, Field(alias="kvUsageMetric", description="Metric with the share of the KV cache in use; empty to not read it.")
    ] = "kv_cache_usage_perc"


class EndpointLoadObserver(PreRequest[LoadObserverParameters], ResponseObserver[LoadObserverParameters]):
    """Asks model servers for their load with each request, and reads it from the response headers.

    Requests get the header `endpoint-load-metrics-format`; answers carry `endpoint-load-metrics` (ORCA): `JSON {"named_metrics": {…}}` or
    `TEXT named_metrics.num_requests_waiting=0, …`. vLLM sends it for requests that are not streamed. Values update the metrics page's
    columns; while answers report every required key, the page is polled only at `--idle-metrics-interval`. Missing, negative and non-finite
    values are ignored. The response header is removed unless the client asked for it.
    """

    produces = (_WAITING, _RUNNING, _KV_USAGE)
    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: LoadObserverParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        names = ((_WAITING, parameters.waiting_metric), (_RUNNING, parameters.running_metric), (_KV_USAGE, parameters.kv_usage_metric))
        self._names = tuple((key, metric) for key, metric in names if metric)
        counts = Counts("endpick_endpoint_loads_total", "Answers by how their load report was read.", ("outcome",), context.registry)
        self._counts = {outcome: counts.labels(outcome.value) for outcome in Outcome}

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        if FORMAT_HEADER not in request.headers:
            headers.set(FORMAT_HEADER, self.parameters.format.value)

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> Mapping[str, str | None] | None:
        report = head.headers.get(LOAD_HEADER)
        if report is None:
            self._counts[Outcome.NONE].inc()
            return None
        load = read_load(report)
        self._counts[Outcome.READ if load else Outcome.UNREADABLE].inc()
        columns = self.context.columns
        if columns is not None and head.endpoint is not None:
            for key, metric in self._names:
                value = load.get(metric)
                if value is not None and math.isfinite(value) and value >= 0:
                    columns.set(key, value, head.endpoint)
        return None if FORMAT_HEADER in request.headers else {LOAD_HEADER: None}


def read_load(text: str) -> Mapping[str, float]:
    """The named metrics; empty if malformed."""
    form, _, report = text.strip().partition(" ")
    match form.upper():
        case LoadFormat.JSON:
            return _of_json(report)
        case LoadFormat.TEXT:
            return _of_text(report)
        case _:
            return {}


def _of_json(report: str) -> Mapping[str, float]:
    try:
        document = orjson.loads(report)
    except orjson.JSONDecodeError:
        return {}
    named = document.get("named_metrics") if isinstance(document, dict) else None
    if not isinstance(named, dict):
        return {}
    return {name: float(value) for name, value in named.items() if isinstance(value, int | float) and not isinstance(value, bool)}


def _of_text(report: str) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for part in report.split(","):
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals or not name.startswith(_PREFIX) or "_" in value:
            continue
        try:
            found[name.removeprefix(_PREFIX)] = float(value)
        except ValueError:
            continue
    return found
