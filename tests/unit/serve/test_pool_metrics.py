"""Gauges over the pool."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from endpick.api import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, DataKey, Endpoint, Scope
from endpick.api.keys import ENDPOINT_HEALTH, LORA_ADAPTERS, EndpointHealth, HealthState
from endpick.data.table import EndpointTable
from endpick.serve.pool_metrics import PoolGauges, has_usable_endpoint, unwell_endpoints

STATES = {state.value[0]: state for state in HealthState}


@pytest.fixture
def table() -> EndpointTable:
    table = EndpointTable(lambda: 50.0, (WAITING_QUEUE_SIZE, KV_CACHE_USAGE, LORA_ADAPTERS, ENDPOINT_HEALTH))
    table.replace_all(
        [Endpoint("default/a", "10.0.0.1", 8000), Endpoint("default/b", "10.0.0.2", 8000), Endpoint("default/c", "10.0.0.3", 8000)]
    )
    return table


@pytest.fixture
def registry(table: EndpointTable) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(PoolGauges("llama", lambda: table.generation, lambda: 60.0))
    return registry


def test_averages_leave_out_endpoints_that_have_not_reported(table, registry):
    a, b, _c = table.generation.endpoints
    table.write(WAITING_QUEUE_SIZE, a, 2.0)
    table.write(WAITING_QUEUE_SIZE, b, 4.0)

    pool = {"name": "llama"}
    assert registry.get_sample_value("llm_d_epp_ready_endpoints", pool) == 3
    assert registry.get_sample_value("llm_d_epp_average_queue_size", pool) == 3.0
    assert registry.get_sample_value("llm_d_epp_std_dev_queue_size", pool) == pytest.approx(2**0.5)
    assert registry.get_sample_value("llm_d_epp_average_kv_cache_utilization", pool) is None
    assert registry.get_sample_value("llm_d_epp_per_endpoint_queue_size", pool | {"model_server_endpoint": "b"}) == 4.0
    assert registry.get_sample_value("llm_d_epp_per_endpoint_queue_size", pool | {"model_server_endpoint": "c"}) is None


def test_age_is_that_of_the_oldest_value(table, registry):
    for endpoint in table.generation.endpoints:
        table.write(WAITING_QUEUE_SIZE, endpoint, 0.0)

    assert registry.get_sample_value("endpick_data_age_seconds", {"key": "waiting-queue-size"}) == 10.0
    assert registry.get_sample_value("endpick_data_age_seconds", {"key": "kv-cache-usage"}) == float("inf")


def test_values_of_the_pool_have_an_age_too(registry, table):
    price = DataKey("acme.example/price", float, Scope.POOL)
    table.declare((WAITING_QUEUE_SIZE, price))
    assert registry.get_sample_value("endpick_data_age_seconds", {"key": price.name}) is None, "it was never written"

    table.write_pool(price, 3.0)
    assert registry.get_sample_value("endpick_data_age_seconds", {"key": price.name}) == 10.0


@pytest.mark.parametrize(
    ("states", "ready", "usable"),
    [("hdp", 3, True), ("hee", 1, True), ("eee", 0, False), ("e--", 2, True), ("dee", 1, True)],
)
def test_ejected_endpoints_are_not_ready(table, registry, states, ready, usable):
    for endpoint, state in zip(table.generation.endpoints, states, strict=True):
        if state != "-":
            table.write(ENDPOINT_HEALTH, endpoint, EndpointHealth(STATES[state], "5 consecutive failures", 38.0))

    assert registry.get_sample_value("llm_d_epp_ready_endpoints", {"name": "llama"}) == ready
    assert has_usable_endpoint(table.generation) == usable
    unwell = unwell_endpoints(table.generation)
    assert len(unwell) == sum(state in "dep" for state in states)
    if states == "hee":
        assert unwell[0] == "endpoint default/b is ejected for 12 s: 5 consecutive failures"


def test_silent_endpoints_are_not_ready(table):
    registry, (a, b, _c) = CollectorRegistry(), table.generation.endpoints
    registry.register(PoolGauges("llama", lambda: table.generation, lambda: 60.0, staleness_seconds=2.0))
    table.write(WAITING_QUEUE_SIZE, a, 1.0)
    assert registry.get_sample_value("llm_d_epp_ready_endpoints", {"name": "llama"}) == 2
    age = {name: registry.get_sample_value("endpick_endpoint_data_age_seconds", {"endpoint_name": name}) for name in (a.name, b.name)}
    assert age == {a.name: 10.0, b.name: float("inf")}


def test_only_some_unwell_endpoints_are_listed(table):
    table.replace_all([Endpoint(f"default/e{number}", "10.0.0.1", number) for number in range(1, 14)])
    for endpoint in table.generation.endpoints:
        table.write(ENDPOINT_HEALTH, endpoint, EndpointHealth(HealthState.DEGRADED, "slow"))
    assert unwell_endpoints(table.generation)[9:] == (
        "endpoint default/e10 is degraded for 50 s: slow",
        "3 more endpoints are not healthy",
    )


def test_empty_pool_has_no_averages(registry, table):
    table.replace_all([])

    assert registry.get_sample_value("llm_d_epp_ready_endpoints", {"name": "llama"}) == 0
    assert registry.get_sample_value("llm_d_epp_average_queue_size", {"name": "llama"}) is None
