"""Gauges over the pool."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from endpick.api import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, DataKey, Endpoint, Scope
from endpick.api.keys import LORA_ADAPTERS
from endpick.data.table import EndpointTable
from endpick.serve.pool_metrics import PoolGauges


@pytest.fixture
def table() -> EndpointTable:
    table = EndpointTable(lambda: 50.0, (WAITING_QUEUE_SIZE, KV_CACHE_USAGE, LORA_ADAPTERS))
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


def test_empty_pool_has_no_averages(registry, table):
    table.replace_all([])

    assert registry.get_sample_value("llm_d_epp_ready_endpoints", {"name": "llama"}) == 0
    assert registry.get_sample_value("llm_d_epp_average_queue_size", {"name": "llama"}) is None
