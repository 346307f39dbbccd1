"""OpenTelemetry traces: a span per sampled request and per step of its decision.

The SDK is imported only if traces are on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from endpick import __version__
from endpick.api import hookimpl
from endpick.api.request import InferenceRequest
from endpick.requests.record import DecisionRecord
from endpick.scheduling.trace import ProfileRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

_log = logging.getLogger("endpick.serve")

SERVICE_NAME = "endpick"
DEFAULT_RATIO = 0.1  # as in llm-d
TOP_ENDPOINTS = 5
_RATIO = "OTEL_TRACES_SAMPLER_ARG"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_SECOND = 1_000_000_000  # in the nanoseconds of OpenTelemetry
_FIRST_ERROR = 500


class RequestSpan:
    """The `RecordedSpan` of one request."""

    __slots__ = ("headers", "span", "started_at", "trace_id")

    def __init__(self, span: Span, headers: Mapping[str, str], started_at: float) -> None:
        self.span = span
        self.headers = headers
        self.started_at = started_at
        self.trace_id = f"{span.get_span_context().trace_id:032x}"


class Tracing:
    """Continues the traces of gateways, and exports the spans of their requests."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415 - optional

        self._provider = provider
        self._tracer = provider.get_tracer("endpick", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, request: InferenceRequest, started_at: float) -> RequestSpan | None:
        """Return the span of a request received at `started_at` (Unix seconds); None if not sampled."""
        from opentelemetry import trace  # noqa: PLC0415

        context = self._propagator.extract(dict(request.headers))
        span = self._tracer.start_span("request", context, trace.SpanKind.SERVER, start_time=_nanoseconds(started_at))
        if not span.is_recording():
            return None
        headers: dict[str, str] = {}
        self._propagator.inject(headers, trace.set_span_in_context(span))
        return RequestSpan(span, headers, started_at)

    def finish(self, record: DecisionRecord) -> None:
        """Export the span of a finished record, and a child span for each step of its decision."""
        from opentelemetry import trace  # noqa: PLC0415

        if not isinstance(record.span, RequestSpan):
            return
        span, started_at, ended = record.span.span, record.span.started_at, record.outcome
        span.set_attributes(_attributes(record))
        context = trace.set_span_in_context(span)
        at = started_at + max(0.0, record.decide_seconds - record.schedule_seconds)
        for run in record.runs:
            at = self._run(run, context, at)
        failed = record.is_refused or (ended is not None and (ended.status >= _FIRST_ERROR or ended.cause == "error"))
        if failed:
            span.set_status(trace.Status(trace.StatusCode.ERROR, record.refusal or (ended.gateway_error if ended else "")))
        span.end(_nanoseconds(max(at, started_at + ended.duration_seconds if ended is not None else record.time)))

    @hookimpl
    async def endpick_stopping(self) -> None:
        """Export the remaining spans, in a thread. Called when endpick stops."""
        await asyncio.to_thread(self._provider.shutdown)

    def _run(self, run: ProfileRecord, parent: Any, started_at: float) -> float:  # noqa: ANN401 - a context of OpenTelemetry
        from opentelemetry import trace  # noqa: PLC0415

        name = {"llm_d.epp.scheduling.profile.name": run.profile}
        span = self._tracer.start_span("run_scheduler_profile", parent, start_time=_nanoseconds(started_at), attributes=name)
        context, at = trace.set_span_in_context(span), started_at
        for step in run.filters:
            counts = {
                "filter.candidate_endpoints": len(step.given),
                "filter.filtered_endpoints": len(step.kept),
                "filter.name": step.instance,
            }
            at = self._step("filter_endpoints", context, at, step.seconds, counts, step.problem)
        if run.scorers:
            until = at + sum(scorer.seconds for scorer in run.scorers)
            scoring = {"llm_d.epp.scoring.candidate_endpoints": len(run.candidates), "llm_d.epp.scorer.count": len(run.scorers)}
            all_scores = self._tracer.start_span("scoring", context, start_time=_nanoseconds(at), attributes=scoring)
            within = trace.set_span_in_context(all_scores)
            for scorer in run.scorers:
                facts: dict[str, Any] = {"scorer.name": scorer.instance, "scorer.type": scorer.type, "scorer.weight": scorer.weight}
                if scorer.answered:
                    mean = sum(scorer.answered) / len(scorer.answered)
                    facts |= {"scorer.score.max": max(scorer.answered), "scorer.score.avg": mean}
                    facts |= {"scorer.endpoints_scored": len(scorer.answered)}
                at = self._step(f"llm_d.epp.scorer.{scorer.type}", within, at, scorer.seconds, facts, scorer.problem)
            all_scores.end(_nanoseconds(until))
        best = sorted(zip(run.totals, run.candidates, strict=True), reverse=True)[:TOP_ENDPOINTS]
        picker = {
            "picker.candidate_endpoints": len(run.candidates),
            "picker.top_endpoints": [endpoint for _, endpoint in best],
            "picker.top_scores": [score for score, _ in best],
        }
        at = self._step("pick_endpoints", context, at, run.pick_seconds, picker, run.failure)
        span.end(_nanoseconds(at))
        return at

    def _step(self, name: str, parent: Any, started_at: float, seconds: float, facts: Mapping[str, Any], problem: str) -> float:  # noqa: ANN401
        from opentelemetry import trace  # noqa: PLC0415

        attributes = {f"llm_d.epp.{key}": value for key, value in facts.items()}
        span = self._tracer.start_span(name, parent, start_time=_nanoseconds(started_at), attributes=attributes)
        if problem:
            span.set_status(trace.Status(trace.StatusCode.ERROR, problem))
        span.end(_nanoseconds(started_at + seconds))
        return started_at + seconds


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _SECOND)


def _attributes(record: DecisionRecord) -> dict[str, str | int | float | bool]:
    attributes: dict[str, str | int | float | bool] = {
        "gen_ai.request.id": record.id,
        "gen_ai.request.model": record.model,
        "llm_d.epp.fairness.id": record.fairness_id,
        "endpick.plan": record.plan,
        "url.path": record.path,
    }
    if record.destinations:
        attributes["endpick.destination"] = record.destinations[0]
    if record.waited is not None:
        attributes["endpick.waited_seconds"] = record.waited.seconds
    ended = record.outcome
    if record.status is not None or ended is not None:
        attributes["http.response.status_code"] = record.status or (ended.status if ended else 0)
    if ended is not None:
        attributes["endpick.served_by"] = ended.served_by
        if ended.prompt_tokens is not None:
            attributes["gen_ai.usage.input_tokens"] = ended.prompt_tokens
        if ended.completion_tokens is not None:
            attributes["gen_ai.usage.output_tokens"] = ended.completion_tokens
    for instance, notes in record.notes.items():
        attributes |= {f"endpick.plugin.{instance}.{name}": value for name, value in notes.items()}
    return attributes


def open_tracing(environment: Mapping[str, str] = os.environ) -> Tracing | None:
    """Return the tracing of this process, see `open_provider`; None if traces are off."""
    provider = open_provider(environment)
    return None if provider is None else Tracing(provider)


def open_provider(environment: Mapping[str, str], service: str = SERVICE_NAME) -> TracerProvider | None:
    """Return a provider for OpenTelemetry's variables; None without an endpoint or the extra."""
    if not any(environment.get(name) for name in _ENDPOINTS) or environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return None
    try:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio  # noqa: PLC0415

        exporter: SpanExporter
        if environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", environment.get("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")) == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as over_grpc  # noqa: PLC0415

            exporter = over_grpc.OTLPSpanExporter()
        else:
            from opentelemetry.exporter.otlp.proto.http import trace_exporter as over_http  # noqa: PLC0415

            exporter = over_http.OTLPSpanExporter()
    except ImportError as missing:
        _log.warning("no traces are sent: %s; install endpick[tracing]", missing)
        return None
    # The SDK reads OTEL_TRACES_SAMPLER itself, but samples everything without it.
    sampler = None
    if "OTEL_TRACES_SAMPLER" not in environment:
        sampler = ParentBasedTraceIdRatio(_ratio(environment))
    named = {"service.name": environment.get("OTEL_SERVICE_NAME", service), "service.version": __version__}
    provider = TracerProvider(sampler, Resource.create(named), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _ratio(environment: Mapping[str, str]) -> float:
    given = environment.get(_RATIO, "")
    try:
        ratio = float(given or DEFAULT_RATIO)
    except ValueError:
        ratio = math.nan
    if 0 <= ratio <= 1:
        return ratio
    _log.warning("%s is '%s', not a number from 0 to 1; the ratio is %s", _RATIO, given, DEFAULT_RATIO)
    return DEFAULT_RATIO
