"""Response observers: usage for the gateway, load of model servers (ORCA), and the serving endpoint for conformance tests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, Literal, Protocol

import orjson
from pydantic import Field

from endpick.api import (
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    ConfigurationError,
    CycleState,
    InferenceRequest,
    Metadata,
    PluginContext,
    PreRequest,
    ResponseHead,
    ResponseObserver,
    SchedulingResult,
    Stability,
    UpstreamHeaders,
    Usage,
)
from endpick.api.fast_metrics import Counts
from endpick_builtin.camel_parameters import CamelParameters

_LOG_SECONDS = 30.0
_NEVER_WRITTEN = (0, -1)


class AttributeKey(CamelParameters):
    """Location of the attribute in the dynamic metadata."""

    namespace: Annotated[str, Field(min_length=1, description="Namespace of the dynamic metadata.")] = "envoy.lb"
    name: Annotated[str, Field(min_length=1, description="Key in the namespace.")]


class Attribute(CamelParameters):
    """An attribute, its value and its condition."""

    key: Annotated[AttributeKey, Field(description="Location of the attribute.")]
    expression: Annotated[str, Field(min_length=1, description="CEL expression over `usage` that gives a number.")]
    condition: Annotated[
        str, Field(description="CEL expression over `usage`; the attribute is reported only if it is true. Empty: always.")
    ] = ""


class AttributeReporterParameters(CamelParameters):
    """Holds the attribute to report, as a list of one entry."""

    attributes: Annotated[
        tuple[Attribute, ...],
        Field(
            min_length=1,
            max_length=1,
            description="Exactly one attribute.",
            examples=[[{"key": {"name": "tokens"}, "expression": "usage.total_tokens"}]],
        ),
    ]


class Program(Protocol):
    """A compiled CEL expression, as celpy makes it."""

    def evaluate(self, context: Mapping[str, object]) -> object:
        """Return the value; raises an error of celpy's or Python's if there is none."""


class RequestAttributeReporter(ResponseObserver[AttributeReporterParameters]):
    """Reports a number computed from token usage to the gateway, as dynamic metadata at the end of the response.

    CEL expressions see `usage.prompt_tokens`, `usage.completion_tokens`, `usage.total_tokens` and, if reported,
    `usage.prompt_tokens_details.cached_tokens`, also in llm-d's spelling `prompt_token_details`. Fractions are truncated; 0, -1 and
    non-numbers are not reported. Needs `pip install 'endpick[cel]'` and takes 0.15 ms per expression.
    """

    def __init__(self, name: str, parameters: AttributeReporterParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        attribute = parameters.attributes[0]
        self._key = attribute.key
        self._cel = Expressions()
        self._expression = self._cel.compiled(attribute.expression)
        self._condition = self._cel.compiled(attribute.condition) if attribute.condition else None
        self._logged_at = -_LOG_SECONDS

    def response_metadata(self, request: InferenceRequest, usage: Usage | None, state: CycleState) -> Metadata | None:
        if usage is None:
            return None
        try:
            seen = self._cel.variables(usage)
            if self._condition is not None and not self._condition.evaluate(seen):
                return None
            value = self._expression.evaluate(seen)
        except Exception as problem:  # celpy raises its own errors and Python's
            self._log(problem)
            return None
        # celpy has its own boolean type
        if not isinstance(value, int | float) or "Bool" in type(value).__name__ or isinstance(value, bool):
            return None
        try:
            number = int(value)
        except (ValueError, OverflowError):
            return None
        return None if number in _NEVER_WRITTEN else {self._key.namespace: {self._key.name: number}}

    def _log(self, problem: Exception) -> None:
        now = self.context.clock()
        if now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            self.context.logger.warning("'%s' is not reported: its expression or condition has no value: %s", self._key.name, problem)


class Expressions:
    """Compiles CEL expressions; the first instance imports the library, which takes 0.1 s."""

    def __init__(self) -> None:
        try:
            self._celpy: Any = import_module("celpy")
        except ImportError as missing:
            raise ConfigurationError("CEL expressions need the package cel-python", "pip install 'endpick[cel]'") from missing

    def compiled(self, expression: str) -> Program:
        """Compile an expression; raises ConfigurationError for invalid CEL."""
        environment = self._celpy.Environment()
        try:
            program: Program = environment.program(environment.compile(expression))
        except self._celpy.CELParseError as problem:
            raise ConfigurationError(f"'{expression}' is not a CEL expression: {problem}") from problem
        return program

    def variables(self, usage: Usage) -> Mapping[str, object]:
        counts: dict[str, object] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        if usage.cached_tokens is not None:
            counts["prompt_tokens_details"] = counts["prompt_token_details"] = {"cached_tokens": usage.cached_tokens}
        return {"usage": self._celpy.json_to_cel(counts)}


SERVED_HEADER = "x-conformance-test-served-endpoint"


class DestinationEndpointServedVerifier(ResponseObserver):
    """Reports the endpoint that the gateway used to the client, in `x-conformance-test-served-endpoint`; else `fail: …`."""

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> Mapping[str, str]:
        return {SERVED_HEADER: head.served or "fail: missing destination endpoint served metadata"}


FORMAT_HEADER = "endpoint-load-metrics-format"
LOAD_HEADER = "endpoint-load-metrics"

_WAITING = WAITING_QUEUE_SIZE.beside_others()
_RUNNING = RUNNING_REQUESTS_SIZE.beside_others()
_KV_USAGE = KV_CACHE_USAGE.beside_others()
_PREFIX = "named_metrics."


class LoadObserverParameters(CamelParameters):
    """Format and metric names of the reports."""

    format: Annotated[
        Literal["JSON", "TEXT"], Field(description="Format to ask for, `JSON` or `TEXT`; both are read.", examples=["JSON"])
    ] = "JSON"
    waiting_metric: Annotated[str, Field(description="Metric with the number of waiting requests; empty to not read it.")] = (
        "num_requests_waiting"
    )
    running_metric: Annotated[str, Field(description="Metric with the number of running requests; empty to not read it.")] = (
        "num_requests_running"
    )
    kv_usage_metric: Annotated[str, Field(description="Metric with the share of the KV cache in use; empty to not read it.")] = (
        "kv_cache_usage_perc"
    )


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
        counts = Counts(
            "endpick_endpoint_loads_total", "Responses by the outcome of reading their load report.", ("outcome",), context.registry
        )
        self._read, self._none, self._unreadable = map(counts.labels, ("read", "none", "unreadable"))

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        if FORMAT_HEADER not in request.headers:
            headers.set(FORMAT_HEADER, self.parameters.format)

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> Mapping[str, str | None] | None:
        report = head.headers.get(LOAD_HEADER)
        if report is None:
            self._none.inc()
            return None
        load = read_load(report)
        (self._read if load else self._unreadable).inc()
        columns = self.context.columns
        if columns is not None and head.endpoint is not None:
            for key, metric in self._names:
                value = load.get(metric)
                if value is not None and math.isfinite(value) and value >= 0:
                    columns.set(key, value, head.endpoint)
        return None if FORMAT_HEADER in request.headers else {LOAD_HEADER: None}


def read_load(text: str) -> Mapping[str, float]:
    """Parse the named metrics of a load report; returns an empty mapping if it is malformed."""
    form, _, report = text.strip().partition(" ")
    match form.upper():
        case "JSON":
            return _of_json(report)
        case "TEXT":
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
