"""The metrics and log lines of a serving process."""

from __future__ import annotations

import logging
import random
from unittest.mock import patch

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from endpick.api import (
    Category,
    Endpoint,
    Endpoints,
    FloatArray,
    InferenceRequest,
    Parameters,
    PluginContext,
    ResponseEnd,
    Scorer,
    ScoringState,
    Subscriptions,
    TerminationCause,
    Usage,
)
from endpick.api.errors import Unavailable
from endpick.api.fast_metrics import Distribution
from endpick.host.boundary import Step
from endpick.host.instance import Instance, scope_of
from endpick.host.kinds import OnFault
from endpick.host.methods import SCORE
from endpick.host.telemetry import ITL_BUCKETS, NullTelemetry
from unit.scheduling.workbench import Pace

MODEL = {"model_name": "m", "target_model_name": "m-lora", "fairness_id": "alice", "priority": "-1"}


class Half(Scorer):
    """Half for every endpoint."""

    category = Category.BALANCE

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        raise NotImplementedError


@pytest.fixture
def instance() -> Instance:
    plugin = Half("half", Parameters(), PluginContext(random.Random(1)))
    subscriptions = Subscriptions()
    return Instance(
        "half", "half-scorer", "acme", "2.0", (Scorer,), plugin, subscriptions, OnFault.SKIP, scope_of("half", subscriptions, "half-scorer")
    )


FAULT_OF_HALF = {"plugin_name": "half", "plugin_type": "half-scorer", "distribution": "acme", "version": "2.0", "extension_point": "Scorer"}


def test_faults_are_counted_and_logged_once_per_interval(recorder, registry, instance, clock, caplog):
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            recorder.fault(instance, "Scorer", ValueError("boom"))
        clock.now += 31
        recorder.fault(instance, "Scorer", ValueError("boom"))

    assert registry.get_sample_value("endpick_plugin_faults_total", FAULT_OF_HALF | {"reason": "ValueError"}) == 4
    assert [record.suppressed for record in caplog.records] == [0, 2]
    assert "half (half-scorer, acme 2.0)" in caplog.records[0].getMessage()


def test_classes_of_exceptions_are_bounded_in_metrics(recorder, registry, instance):
    with patch("endpick.serve.recorder._log"):
        for number in range(150):
            recorder.fault(instance, "Scorer", type(f"Error{number}", (Exception,), {})())

    assert registry.get_sample_value("endpick_plugin_faults_total", FAULT_OF_HALF | {"reason": "Error99"}) == 1
    assert registry.get_sample_value("endpick_plugin_faults_total", FAULT_OF_HALF | {"reason": "other"}) == 50


def shown(registry: CollectorRegistry) -> tuple[float | None, float | None]:
    request, response = [registry.get_sample_value("endpick_gateway_sends_bodies", {"direction": side}) for side in ("request", "response")]
    return request, response


def test_a_gateway_without_bodies_is_shown_among_others(recorder, registry, clock):
    assert shown(registry) == (None, None)
    recorder.gateway_body_modes(True, False, ())
    assert shown(registry) == (1, 0)
    for _ in range(3):
        clock.now += 200
        recorder.gateway_body_modes(True, True, ())
        assert shown(registry) == (1, 0)
        clock.now += 200
        recorder.gateway_body_modes(True, False, ())
        assert shown(registry) == (1, 0)


def test_a_gateway_without_bodies_is_forgotten_after_5_minutes(recorder, registry, clock):
    recorder.gateway_body_modes(False, False, ())
    recorder.gateway_body_modes(True, True, ())
    clock.now += 299
    recorder.gateway_body_modes(True, False, ())
    recorder.gateway_body_modes(True, True, ())
    assert shown(registry) == (0, 0)
    clock.now += 1
    assert shown(registry) == (1, 0)
    clock.now += 299
    assert shown(registry) == (1, 1)
    recorder.gateway_body_modes(True, False, ())
    assert shown(registry) == (1, 0)


def test_losses_without_bodies_are_logged(recorder, caplog):
    recorder.gateway_body_modes(True, False, ("parser reads no usage", "observer sees less"))
    recorder.gateway_body_modes(True, True, ())
    recorder.gateway_body_modes(True, False, ())

    assert [record.getMessage() for record in caplog.records] == [
        "the gateway does not send all bodies: parser reads no usage; observer sees less"
    ]


def test_unread_responses_are_counted_and_named_once(recorder, registry, caplog):
    for encoding in ["br", "br", "zstd", "br"]:
        recorder.unread_response(encoding, "usage")
    counted = [registry.get_sample_value("endpick_unread_responses_total", {"encoding": name, "lost": "usage"}) for name in ("br", "zstd")]
    assert counted == [3, 1]
    assert caplog.messages == [
        f"the usage in responses with content-encoding {name} cannot be read; install endpick[compression] for br and zstd"
        for name in ("br", "zstd")
    ]


def test_only_unavailable_is_logged_without_a_traceback(recorder, instance, caplog):
    recorder.fault(instance, "score", Unavailable("the renderer is away"))
    recorder.fault(instance, "score", ValueError("x"))
    assert [record.exc_info is None for record in caplog.records] == [True, False]


def test_faults_of_two_kinds_do_not_silence_each_other(recorder, instance, caplog):
    with caplog.at_level(logging.ERROR):
        recorder.fault(instance, "Scorer", ValueError("boom"))
        recorder.fault(instance, "Scorer", "returned 3 scores for 4 endpoints")

    assert len(caplog.records) == 2


def test_a_request_fills_gauges_and_histograms(recorder, registry):
    recorder.request_decided("m", "m-lora", "alice", -1, 1000, 0.004)
    assert registry.get_sample_value("llm_d_epp_request_running", MODEL) == 1

    usage = Usage(prompt_tokens=200, completion_tokens=10, cached_tokens=0)
    gaps = Distribution(ITL_BUCKETS)
    gaps.observe(0.03)
    gaps.observe(0.07)
    pace = Pace(streaming=True, processing_seconds=0.0007, gaps=gaps)
    end = ResponseEnd(TerminationCause.NATURAL, 200, usage, response_bytes=512, duration_seconds=2.0, ttft_seconds=0.3)
    recorder.request_ended("m", "m-lora", "alice", -1, end, pace)

    assert registry.get_sample_value("llm_d_epp_request_running", MODEL) == 0
    assert registry.get_sample_value("llm_d_epp_request_total", MODEL) == 1
    assert registry.get_sample_value("llm_d_epp_request_size_bytes_sum", MODEL) == 1000
    assert registry.get_sample_value("llm_d_epp_request_duration_seconds_sum", MODEL) == 2.0
    assert registry.get_sample_value("llm_d_epp_request_ntpot_seconds_sum", MODEL) == pytest.approx(0.2)
    assert registry.get_sample_value("llm_d_epp_request_cached_tokens_count", MODEL) == 1
    assert registry.get_sample_value("llm_d_epp_request_ttft_seconds_sum", MODEL | {"streaming": "true"}) == 0.3
    assert registry.get_sample_value("llm_d_epp_request_streaming_tpot_seconds_sum", MODEL) == pytest.approx(1.7 / 9)
    assert registry.get_sample_value("llm_d_epp_request_streaming_itl_seconds_sum", MODEL) == pytest.approx(0.1)
    assert registry.get_sample_value("llm_d_epp_request_streaming_itl_seconds_bucket", MODEL | {"le": "0.04"}) == 1
    assert registry.get_sample_value("llm_d_epp_request_processing_duration_seconds_bucket", {"le": "0.005"}) == 1
    assert registry.get_sample_value("llm_d_epp_request_processing_duration_seconds_sum") == 0.004
    assert registry.get_sample_value("llm_d_epp_response_processing_duration_seconds_sum") == 0.0007
    rewritten = {"model_rewrite_name": "header", "model_name": "m", "target_model": "m-lora"}
    assert registry.get_sample_value("llm_d_epp_model_rewrite_decisions_total", rewritten) == 1


@pytest.mark.parametrize(
    ("request_id", "shown"),
    [("r-1", True), ("x" * 100, True), ("x" * 101, False), ('"}\\\n# EOF', False), ("caf\u00e9", False), ("\udce9", False), ("", False)],
)
def test_latency_histograms_name_a_request(recorder, registry, request_id, shown):
    end = ResponseEnd(TerminationCause.NATURAL, 200, Usage(completion_tokens=10), 9, duration_seconds=2.0, ttft_seconds=0.3)
    recorder.request_ended("m", "m", "alice", -1, end, Pace(request_id, streaming=True))

    samples = [sample for family in openmetrics(exposition.generate_latest(registry).decode()) for sample in family.samples]
    exemplars = [(sample.labels["le"], sample.exemplar.labels, sample.exemplar.value) for sample in samples if sample.exemplar]
    named = {"request_id": request_id}
    assert exemplars == ([("2.0", named, 2.0), ("0.4", named, 0.3), ("0.2", named, pytest.approx(1.7 / 9))] if shown else [])


def test_an_abandoned_request_has_no_duration(recorder, registry):
    usage = Usage(prompt_tokens=200, completion_tokens=10, cached_tokens=0)
    for cause in (TerminationCause.CLIENT_DISCONNECT, TerminationCause.NATURAL):
        recorder.request_decided("m", "m", "alice", -1, 10, 0.004)
        recorder.request_ended("m", "m", "alice", -1, ResponseEnd(cause, 200, usage, 9, 2.0, 0.3), Pace())

    own = MODEL | {"target_model_name": "m"}
    assert registry.get_sample_value("llm_d_epp_request_duration_seconds_count", own) == 1
    assert registry.get_sample_value("llm_d_epp_request_ttft_seconds_count", own | {"streaming": "false"}) == 2
    assert registry.get_sample_value("llm_d_epp_request_streaming_tpot_seconds_count", own) is None
    assert registry.get_sample_value("llm_d_epp_request_streaming_itl_seconds_count", own) is None
    assert "model_rewrite_name=" not in generate_latest(registry).decode()


def test_a_request_without_a_body_counts_under_no_model(recorder, registry):
    recorder.bodiless_ended("default-flow", 0.2)

    labels = {"model_name": "", "target_model_name": "", "fairness_id": "default-flow", "priority": "0"}
    assert registry.get_sample_value("llm_d_epp_request_duration_seconds_sum", labels) == 0.2


def test_metrics_without_labels_exist_from_the_start(registry, recorder):
    assert registry.get_sample_value("endpick_config_reloads_total", {"outcome": "refused"}) == 0
    assert registry.get_sample_value("llm_d_epp_scheduler_e2e_duration_seconds_count") == 0


def test_response_without_usage_leaves_token_histograms_alone(recorder, registry):
    gone = ResponseEnd(TerminationCause.CLIENT_DISCONNECT, 0, None, 0, 0.1, None)
    recorder.request_decided("m", "m-lora", "alice", -1, 10, 0.004)
    recorder.request_ended("m", "m-lora", "alice", -1, gone, Pace())

    assert registry.get_sample_value("llm_d_epp_request_output_tokens_count", MODEL) is None
    assert registry.get_sample_value("llm_d_epp_request_running", MODEL) == 0


def test_server_error_is_an_error_of_the_model_server(recorder, registry):
    recorder.request_decided("m", "m-lora", "alice", -1, 10, 0.004)
    recorder.request_ended("m", "m-lora", "alice", -1, ResponseEnd(TerminationCause.NATURAL, 503, None, 9, 0.1, 0.1), Pace())

    assert registry.get_sample_value("llm_d_epp_request_error_total", MODEL | {"error_code": "ModelServerError"}) == 1


def test_scheduling_attempts_name_the_destination(recorder, registry):
    recorder.request_scheduled(0.00015, Endpoint("default/a", "10.0.0.1", 8000), "m")
    recorder.request_scheduled(0.00015, None, "m")

    success = {"status": "success", "target_model_name": "m", "endpoint_name": "a", "namespace": "default", "port": "8000"}
    failure = {"status": "failure", "target_model_name": "m", "endpoint_name": "", "namespace": "", "port": ""}
    assert registry.get_sample_value("llm_d_epp_scheduler_attempts_total", success) == 1
    assert registry.get_sample_value("llm_d_epp_scheduler_attempts_total", failure) == 1
    assert registry.get_sample_value("llm_d_epp_scheduler_e2e_duration_seconds_bucket", {"le": "0.0002"}) == 2


DONE = ResponseEnd(TerminationCause.NATURAL, 200, Usage(10, 20, 5), 9, 0.1, 0.1)


def test_plugin_timer_is_bound_to_its_instance(recorder, registry, instance):
    recorder.plugin_timer("Scorer", instance).observe(0.004)

    labels = {"extension_point": "Scorer", "plugin_type": "half-scorer", "plugin_name": "half"}
    assert registry.get_sample_value("llm_d_epp_plugin_duration_seconds_sum", labels) == 0.004


def test_undeclared_access_says_where_to_declare(recorder, registry, instance, caplog):
    with caplog.at_level(logging.WARNING):
        recorder.undeclared_access(Step(print, instance, SCORE, NullTelemetry()).scope, "acme/x", "write")

    assert "instance 'half' writes data key 'acme/x' without declaring it in `produces`" in caplog.text
    labels = {"extension_point": "Scorer", "plugin_type": "half-scorer", "plugin_name": "half", "access": "write"}
    assert registry.get_sample_value("llm_d_epp_plugin_data_scope_violations_total", labels) == 1


def test_failed_polls_are_logged_once_per_interval_and_endpoint(recorder, registry, instance, clock, caplog):
    for number in (1, 2, 1):
        recorder.poll_error(instance, f"pool/e{number}", "no answer within 1 s")
    clock.now += 31
    recorder.poll_error(instance, "pool/e1", OSError("refused"))

    assert registry.get_sample_value("llm_d_epp_datalayer_poll_errors_total", {"source_type": "half-scorer"}) == 4
    assert [(record.endpoint, record.reason, record.suppressed) for record in caplog.records] == [
        ("pool/e1", "answer: no answer within 1 s", 0),
        ("pool/e2", "answer: no answer within 1 s", 0),
        ("pool/e1", "OSError: refused", 1),
    ]


@pytest.mark.parametrize("seconds", [0.0, 0.0001, 0.00010001, 0.0005, 0.004, 7.0, 900.0])
def test_inlined_observations_equal_those_of_a_distribution(recorder, seconds):
    recorder.request_scheduled(seconds, None, "m")
    recorder.request_decided("m", "m", "f", 0, 10, seconds)

    for counted in (recorder._metrics.scheduler_duration, recorder._metrics.request_processing):
        expected = Distribution(counted.bounds)
        expected.observe(seconds)
        assert (counted.counts, counted.total) == (expected.counts, expected.total)
