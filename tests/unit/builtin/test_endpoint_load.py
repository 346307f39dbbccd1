"""`endpoint-load-observer`: what is asked of servers, what their answers say, and what becomes of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from endpick.api import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE, CycleState, PluginContext, ResponseHead
from endpick.host.instance import scope_of
from endpick.testing import make_pool, make_request
from endpick_builtin.observers import EndpointLoadObserver, LoadObserverParameters, read_load

ASKS = "endpoint-load-metrics-format"
TOLD = "endpoint-load-metrics"
VLLM = 'JSON {"named_metrics": {"num_requests_waiting": 3.0, "kv_cache_usage_perc": 0.25}}'


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (VLLM, {"num_requests_waiting": 3.0, "kv_cache_usage_perc": 0.25}),
        ('json {"cpu_utilization": 0.5, "named_metrics": {"a": 1}}', {"a": 1.0}),
        (
            "TEXT named_metrics.num_requests_waiting=3,named_metrics.kv_cache_usage_perc=0.25",
            {"num_requests_waiting": 3.0, "kv_cache_usage_perc": 0.25},
        ),
        ("TEXT cpu_utilization=0.5, named_metrics.a=1e2 , named_metrics.b=x, named_metrics.c", {"a": 100.0}),
        ("TEXT named_metrics.a=1_000", {}),
        ('JSON {"named_metrics": {"a": true, "b": "1", "c": null, "d": 2}}', {"d": 2.0}),
        ('JSON {"named_metrics": [1]}', {}),
        ("JSON [1]", {}),
        ("JSON {", {}),
        ("JSON", {}),
        ("TEXT", {}),
        ("BIN CAE=", {}),
        ("", {}),
    ],
)
def test_reports_in_either_form_are_read_and_nonsense_is_none(text, load):
    assert read_load(text) == load


@given(st.one_of(st.text(), st.text().map(lambda text: f"JSON {text}"), st.text().map(lambda text: f"TEXT named_metrics.a={text}")))
def test_no_header_makes_trouble(text):
    assert all(isinstance(value, float) for value in read_load(text).values())


class Upstream(dict):
    def set(self, name, value):
        self[name] = value


class Observed:
    def __init__(self, **parameters):
        self.pool = make_pool(2, keys=(WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE))
        self.registry = CollectorRegistry()
        settings = LoadObserverParameters(**parameters)
        scope = scope_of("load", EndpointLoadObserver.subscriptions(settings))
        self.it = EndpointLoadObserver("load", settings, PluginContext(columns=self.pool.writer(scope), registry=self.registry))

    def asked(self, **headers):
        upstream = Upstream()
        assert self.it.before_request(make_request(headers=headers), None, upstream, CycleState()) is None
        return upstream

    def answered(self, told, endpoint=0, **headers):
        served = None if endpoint is None else self.pool.generation.endpoints[endpoint]
        head = ResponseHead(200, {} if told is None else {TOLD: told}, served)
        return self.it.response_started(make_request(headers=headers), head, CycleState())

    def count(self, outcome):
        return self.registry.get_sample_value("endpick_endpoint_loads_total", {"outcome": outcome})

    def known(self):
        view = self.pool.view()
        return [view[key].tolist() for key in (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE)]


def test_request_asks_in_the_chosen_form():
    assert Observed().asked() == {ASKS: "JSON"}
    assert Observed(format="TEXT").asked() == {ASKS: "TEXT"}
    assert Observed().asked(**{ASKS: "TEXT"}) == {}


def test_load_report_is_of_the_endpoint_that_served():
    observed = Observed()

    assert observed.answered(VLLM, endpoint=1) == {TOLD: None}
    waiting, running, usage = observed.known()
    assert (math.isnan(waiting[0]), waiting[1]) == (True, 3.0)
    assert all(map(math.isnan, running)), "vLLM does not tell it"
    assert usage[1] == 0.25
    assert observed.count("read") == 1


def test_a_client_that_asks_gets_the_header():
    assert Observed().answered(VLLM, **{ASKS: "JSON"}) is None


def test_impossible_load_reports_are_ignored():
    observed = Observed()
    for told in (
        "TEXT named_metrics.num_requests_waiting=-1,named_metrics.kv_cache_usage_perc=nan",
        "TEXT named_metrics.kv_cache_usage_perc=inf",
    ):
        assert observed.answered(told) == {TOLD: None}
    assert observed.answered("nonsense") == {TOLD: None}
    assert observed.answered(None) is None
    assert observed.answered(VLLM, endpoint=None) == {TOLD: None}

    assert all(math.isnan(value) for column in observed.known() for value in column)
    assert (observed.count("read"), observed.count("unreadable"), observed.count("none")) == (3, 1, 1)


def test_names_can_be_given_or_empty():
    observed = Observed(waitingMetric="queue", runningMetric="active", kvUsageMetric="")
    observed.answered("TEXT named_metrics.queue=1,named_metrics.active=2,named_metrics.=9,named_metrics.kv_cache_usage_perc=0.5")

    assert [column[0] for column in observed.known()[:2]] == [1.0, 2.0]
    assert math.isnan(observed.known()[2][0])
