"""Traces of recorded decisions, as OpenTelemetry's SDK exports them."""

from __future__ import annotations

import logging

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from prometheus_client import CollectorRegistry

from endpick.api import Rejection, Scorer
from endpick.host.hooks import Hooks
from endpick.requests.model import CloseCause
from endpick.serve.decisions import DecisionRecords, RecordSettings
from endpick.serve.hook_objects import HookFaults
from endpick.serve.metrics import EndpickMetrics
from endpick.serve.tracing import Tracing, open_provider, open_tracing
from endpick_builtin.scorers.load import QueueScorer
from unit.requests.stage import Stage, admitter_of
from unit.scheduling.workbench import instance, plugin_of, pool

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class Traced(Stage):
    """A stage whose decisions are recorded if their trace is sampled."""

    def __init__(self, ratio: float = 0.0, **keywords) -> None:
        super().__init__(records=True, **keywords)
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(ParentBasedTraceIdRatio(ratio))
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        faults = HookFaults(EndpickMetrics(CollectorRegistry()), lambda: self.now)
        self.log = DecisionRecords(Hooks(), RecordSettings(0.0), faults.report, lambda: self.now, Tracing(provider))

    def begin(self, request, plan):
        return self.log.begin(request, plan)

    def finish(self, record):
        super().finish(record)
        self.log.finish(record)

    @property
    def spans(self):
        return {span.name: span for span in self.exporter.get_finished_spans()}


def test_the_gateways_trace_is_continued_to_the_model_server():
    stage = Traced()
    routed = stage.route(**SAMPLED)
    routed.exchange.response_headers({":status": "200"}, None)
    routed.exchange.finish(CloseCause.END)

    root = stage.spans["request"]
    assert (f"{root.context.trace_id:032x}", f"{root.parent.span_id:016x}") == (TRACE, PARENT)
    assert routed.set_headers["traceparent"] == f"00-{TRACE}-{root.context.span_id:016x}-01"
    assert root.attributes["gen_ai.request.model"] == "m"
    assert root.attributes["http.response.status_code"] == 200
    assert stage.records[0].trace_id == TRACE


def test_each_step_has_a_span_within_its_profile():
    scorers = [(instance(QueueScorer, "queue"), 2.0), (plugin_of(Scorer, "broken", score=lambda *_: None), 1.0)]
    stage = Traced(table=pool(size=3), scorers=scorers)
    stage.route(**SAMPLED).exchange.finish(CloseCause.END)

    spans = stage.spans
    parents = {
        name: next((each.name for each in spans.values() if span.parent and each.context.span_id == span.parent.span_id), "")
        for name, span in spans.items()
    }
    assert parents == {
        "request": "",
        "run_scheduler_profile": "request",
        "scoring": "run_scheduler_profile",
        "llm_d.epp.scorer.queue-scorer": "scoring",
        "llm_d.epp.scorer.test.broken": "scoring",
        "pick_endpoints": "run_scheduler_profile",
    }
    queue = spans["llm_d.epp.scorer.queue-scorer"].attributes
    assert (queue["llm_d.epp.scorer.name"], queue["llm_d.epp.scorer.weight"], queue["llm_d.epp.scorer.endpoints_scored"]) == (
        "queue",
        2.0,
        3,
    )
    assert spans["llm_d.epp.scorer.test.broken"].status.description == "answered NoneType, not an array of scores"
    assert spans["pick_endpoints"].attributes["llm_d.epp.picker.candidate_endpoints"] == 3


def test_unsampled_requests_cost_no_record():
    stage = Traced()
    routed = stage.route(traceparent=f"00-{TRACE}-{PARENT}-00")
    routed.exchange.finish(CloseCause.END)
    stage.route().exchange.finish(CloseCause.END)
    assert (stage.records, stage.spans, "traceparent" in routed.set_headers) == ([], {}, False)


def test_requests_without_a_trace_are_sampled_by_ratio():
    stage = Traced(ratio=1.0)
    stage.route().exchange.finish(CloseCause.END)
    assert stage.spans["request"].parent is None


def test_refused_requests_are_errors():
    stage = Traced(admitters=[admitter_of(lambda request: Rejection("full", 429))])
    stage.refuse(**SAMPLED)
    span = stage.spans["request"]
    assert (span.status.is_ok, span.status.description, span.attributes["http.response.status_code"]) == (False, "full", 429)


def test_plugins_annotate_their_span():
    def score(request, endpoints, state):
        state.annotate("temperature", 21.5)
        return endpoints.derived  # not an array: the note stays

    stage = Traced(scorers=[(plugin_of(Scorer, "thermal", score=score), 1.0)])
    stage.route(**SAMPLED).exchange.finish(CloseCause.END)
    assert stage.spans["request"].attributes["endpick.plugin.thermal.temperature"] == 21.5
    assert stage.records[0].notes == {"thermal": {"temperature": 21.5}}


@pytest.mark.parametrize(
    "environment",
    [{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4317", "OTEL_TRACES_EXPORTER": "none"}],
)
def test_tracing_is_off_without_an_endpoint(environment):
    assert open_tracing(environment) is None


@pytest.mark.parametrize(("given", "ratio", "warned"), [("", 0.1, 0), ("0.5", 0.5, 0), ("a tenth", 0.1, 1), ("2", 0.1, 1)])
def test_a_wrong_ratio_is_reported_and_does_not_stop_the_start(caplog, monkeypatch, given, ratio, warned):
    monkeypatch.delenv("OTEL_TRACES_SAMPLER", raising=False)
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_TRACES_SAMPLER_ARG": given}
    with caplog.at_level(logging.WARNING, "endpick.serve"):
        provider = open_provider(environment)
    try:
        assert provider.sampler.get_description() == ParentBasedTraceIdRatio(ratio).get_description()
        assert [given in message for message in caplog.messages] == [True] * warned
    finally:
        provider.shutdown()


def test_missing_packages_are_named(caplog, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    with caplog.at_level(logging.WARNING):
        assert open_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}) is None
    assert "install endpick[tracing]" in caplog.text
