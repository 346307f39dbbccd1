"""`endpoint-load-observer`: what model servers say of their load in the headers of their answers."""

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
    Limit,
    Limits,
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
MAX_HEADER_CHARACTERS = 8192
"""What is longer is no load report, unless `maxHeaderCharacters` says so."""
_LONG_HEADER = Limit(
    "maxHeaderCharacters",
    f"a load report was not read: its header {LOAD_HEADER} is longer than maxHeaderCharacters; see what the server writes there, "
    "or raise maxHeaderCharacters",
)

_WAITING = WAITING_QUEUE_SIZE.beside_others()
_RUNNING = RUNNING_REQUESTS_SIZE.beside_others()
_KV_USAGE = KV_CACHE_USAGE.beside_others()
_PREFIX = "named_metrics."


class LoadFormat(StrEnum):
    """In which form servers are asked for their load."""

    JSON = "JSON"
    TEXT = "TEXT"


class Outcome(StrEnum):
    """What an answer had to say."""

    READ = "read"
    NONE = "none"
    UNREADABLE = "unreadable"


class LoadObserverParameters(Parameters):
    """How servers are asked, and what they call their load."""

    format: Annotated[LoadFormat, Field(description="`JSON` or `TEXT`: the form that is asked for; both are read.", examples=["JSON"])] = (
        LoadFormat.JSON
    )
    waiting_metric: Annotated[
        str, Field(alias="waitingMetric", description="Name of the number of waiting requests; empty to leave it to other sources.")
    ] = "num_requests_waiting"
    running_metric: Annotated[
        str, Field(alias="runningMetric", description="Name of the number of running requests; empty to leave it to other sources.")
    ] = "num_requests_running"
    kv_usage_metric: Annotated[
        str, Field(alias="kvUsageMetric", description="Name of the share of the KV cache in use; empty to leave it to other sources.")
    ] = "kv_cache_usage_perc"
    max_header_characters: Annotated[
        int,
        Field(alias="maxHeaderCharacters", ge=64, description="Characters of the header with the load; a longer one is not read."),
    ] = MAX_HEADER_CHARACTERS


class EndpointLoadObserver(PreRequest[LoadObserverParameters], ResponseObserver[LoadObserverParameters]):
    """Ask each request's server for its load, and read it from the headers of the answer: fresher than any metrics page, and free.

    Requests get the header `endpoint-load-metrics-format`, and answers bring `endpoint-load-metrics` (ORCA), as `JSON {"named_metrics":
    {…}}` or `TEXT named_metrics.num_requests_waiting=0, …`; vLLM answers so where a request is not streamed. Queue, running requests and
    KV-cache usage of the endpoint that served are written beside what its metrics page says, and the latest counts: what an answer told
    while a poll was under way is not overwritten by that poll. While an endpoint's answers tell all that plugins must have, its metrics
    page is asked for at intervals of `--idle-metrics-interval` only; columns that plugins can do without are that old then.

    What is missing from an answer, negative or not finite leaves its column as it is. A client that asks for the header itself gets it, in
    the form it asked for; from other answers it is removed.
    """

    produces = (_WAITING, _RUNNING, _KV_USAGE)
    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: LoadObserverParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        names = ((_WAITING, parameters.waiting_metric), (_RUNNING, parameters.running_metric), (_KV_USAGE, parameters.kv_usage_metric))
        self._names = tuple((key, metric) for key, metric in names if metric)
        counts = Counts(
            "endpick_endpoint_loads_total", "Answers, by what they told of their server's load.", ("outcome",), context.registry
        )
        self._counts = {outcome: counts.labels(outcome.value) for outcome in Outcome}
        self._limits = Limits(context, (_LONG_HEADER,))
        self._longest = parameters.max_header_characters

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        """Ask, unless the client does."""
        if FORMAT_HEADER not in request.headers:
            headers.set(FORMAT_HEADER, self.parameters.format.value)

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> Mapping[str, str | None] | None:
        """Read the answer, and keep the header from clients that did not ask."""
        told = head.headers.get(LOAD_HEADER)
        if told is None:
            self._counts[Outcome.NONE].inc()
            return None
        load = read_load(told, self._longest)
        self._counts[Outcome.READ if load else Outcome.UNREADABLE].inc()
        if not load and len(told) > self._longest:
            self._limits.acted(_LONG_HEADER, about=head.endpoint.name if head.endpoint is not None else "")
        columns = self.context.columns
        if columns is not None and head.endpoint is not None:
            for key, metric in self._names:
                value = load.get(metric)
                if value is not None and math.isfinite(value) and value >= 0:
                    columns.set(key, value, head.endpoint)
        return None if FORMAT_HEADER in request.headers else {LOAD_HEADER: None}


def read_load(text: str, longest: int = MAX_HEADER_CHARACTERS) -> Mapping[str, float]:
    """The named metrics of a load report of at most `longest` characters, in JSON or as text; empty where there are none, or no sense.

    Those of one name are told apart by nothing: the last counts.
    """
    form, _, report = text.strip().partition(" ")
    if len(text) > longest:
        return {}
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
