"""What endpick collects from a real vLLM under load: each column is true."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from endpick.api import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE, Endpoint, Parameters, PluginContext, Unavailable
from endpick.api.keys import CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS, LORA_ADAPTERS, SERVED_MODELS, ServedModel
from endpick.data.table import EndpointTable
from endpick_builtin.collection.core_metrics import CORE_KEYS, CoreMetricsExtractor, CoreMetricsParameters
from endpick_builtin.collection.sources import (
    MetricsDataSource,
    MetricsSourceParameters,
    ModelsDataExtractor,
    ModelsDataSource,
    ModelsSourceParameters,
)
from endpick_kv_events.messages import EventSource, find_source
from real.servers import ADAPTER, BLOCK, BLOCKS, MODEL, RUNNING_AT_ONCE, Server

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(900)]

CROWD = 3 * RUNNING_AT_ONCE


@asynccontextmanager
async def crowd(server: Server):
    """More requests than the server runs at once, half of them for the adapter, none of which ends soon."""
    async with aiohttp.ClientSession(server.url) as client:
        body = {"prompt": "count to a thousand", "max_tokens": 3000, "ignore_eos": True}
        asked = [
            asyncio.create_task(client.post("/v1/completions", json=body | {"model": ADAPTER if number % 2 else MODEL}))
            for number in range(CROWD)
        ]
        try:
            yield
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)


@asynccontextmanager
async def collecting(server: Server):
    """`scrape()` brings the columns up to date with one page, which it returns."""
    endpoint = Endpoint("default/a", "127.0.0.1", server.port)
    table = EndpointTable(time.monotonic, (*CORE_KEYS, SERVED_MODELS))
    table.upsert(endpoint)
    source = MetricsDataSource("metrics", MetricsSourceParameters(), PluginContext())
    collector = CoreMetricsExtractor("core", CoreMetricsParameters(), PluginContext())
    await source.start()

    async def scrape() -> tuple[dict[str, float], object]:
        page = await source.poll(endpoint)
        collector.collect(page, table.writer(None, endpoint))
        columns = {key.name: table.view()[key][0] for key in CORE_KEYS if key is not LORA_ADAPTERS}
        return columns, page

    try:
        yield table, endpoint, scrape
    finally:
        await source.stop()


def value_of(page: object, name: str) -> float:
    """As prometheus_client reads it."""
    families = text_string_to_metric_families(page.body.decode())
    return next(sample.value for family in families for sample in family.samples if sample.name == name)


async def test_every_column_is_what_the_page_says_under_load(vllm):
    async with collecting(vllm[0]) as (table, _, scrape), crowd(vllm[0]):
        until = time.monotonic() + 60
        while True:
            columns, page = await scrape()
            adapters = table.view().objects(LORA_ADAPTERS)[0]
            is_crowded = columns[WAITING_QUEUE_SIZE.name] > 0 and columns[KV_CACHE_USAGE.name] > 0
            if (is_crowded and adapters is not None and ADAPTER in adapters.running) or time.monotonic() > until:
                break
            await asyncio.sleep(0.05)
    print(columns, adapters, len(page.body), "bytes")
    assert columns[RUNNING_REQUESTS_SIZE.name] == value_of(page, "vllm:num_requests_running") == RUNNING_AT_ONCE
    assert columns[WAITING_QUEUE_SIZE.name] == value_of(page, "vllm:num_requests_waiting") > 0
    assert columns[KV_CACHE_USAGE.name] == value_of(page, "vllm:kv_cache_usage_perc")
    assert 0 < columns[KV_CACHE_USAGE.name] <= 1
    assert columns[CACHE_BLOCK_SIZE.name] == BLOCK
    assert columns[CACHE_NUM_BLOCKS.name] == BLOCKS
    assert ADAPTER in adapters.running
    assert adapters.max_adapters == 2


async def test_the_models_are_listed_with_the_adapter_below_its_base(vllm):
    source = ModelsDataSource("models", ModelsSourceParameters(), PluginContext())
    async with collecting(vllm[0]) as (table, endpoint, _):
        await source.start()
        models = await source.poll(endpoint)
        await source.stop()
        ModelsDataExtractor("extractor", Parameters(), PluginContext()).collect(models, table.writer(None, endpoint))
        assert table.view().objects(SERVED_MODELS)[0] == (ServedModel(MODEL, ""), ServedModel(ADAPTER, MODEL))


async def test_where_events_are_published_is_learnt_from_the_server(vllm):
    async with aiohttp.ClientSession() as session:
        found = await find_source(session, Endpoint("default/a", "127.0.0.1", vllm[0].port), 0)
    assert isinstance(found, EventSource)
    assert found.events.startswith("tcp://127.0.0.1:")
    assert found.replay.startswith("tcp://127.0.0.1:")


async def test_an_answer_tells_the_load_to_a_request_that_asks(vllm):
    async with aiohttp.ClientSession(vllm[0].url) as client:
        body = {"model": MODEL, "prompt": "hello", "max_tokens": 1}
        async with client.post("/v1/completions", json=body, headers={"endpoint-load-metrics-format": "json"}) as response:
            load = response.headers["endpoint-load-metrics"]
    print(load)
    assert load.startswith("JSON {")
    assert "kv_cache_usage_perc" in load


async def test_a_path_that_is_no_page_is_unavailable(vllm):
    source = MetricsDataSource("metrics", MetricsSourceParameters(path="/no-such-page"), PluginContext())
    await source.start()
    with pytest.raises(Unavailable, match="answered 404"):
        await source.poll(Endpoint("default/a", "127.0.0.1", vllm[0].port))
    await source.stop()
