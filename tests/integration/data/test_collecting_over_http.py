"""Discovery, scraping and reading together: a pool of real servers, of which some are well and some are not."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from endpick.api import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, Plugin, PluginContext
from endpick.api.keys import LORA_ADAPTERS
from endpick.data.collection import Collection, CollectionLoop, CollectionSettings
from endpick.data.discovery import DiscoveryTask
from endpick.data.polling import SourceBinding
from endpick.data.table import EndpointTable
from endpick.host.instance import Instance, scope_of
from endpick.host.kinds import default_on_fault, kinds_of
from endpick.host.telemetry import NullTelemetry
from endpick_builtin.collection.core_metrics import CoreMetricsExtractor, CoreMetricsParameters
from endpick_builtin.collection.sources import MetricsDataSource, MetricsSourceParameters
from endpick_builtin.listed_discovery import FileDiscovery, FileDiscoveryParameters
from endpick_lab.engine import EngineSettings
from endpick_lab.server import ServerSettings, serve

pytestmark = pytest.mark.asyncio
PAGE = b"vllm:num_requests_waiting 3\nvllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.5\n"


class Errors(NullTelemetry):
    """Instruments that remember what failed, and for whom."""

    def __init__(self) -> None:
        self.polls: dict[str, list[str]] = {}
        self.collects: dict[str, list[str]] = {}

    def poll_error(self, source, endpoint, problem):
        self.polls.setdefault(endpoint.removeprefix("default/"), []).append(str(problem))

    def collect_error(self, source, collector, endpoint, problem):
        self.collects.setdefault(endpoint.removeprefix("default/"), []).append(str(problem))


def instance(plugin: Plugin) -> Instance:
    subscriptions = plugin.subscriptions(plugin.parameters)
    kinds = kinds_of(type(plugin))
    scope = scope_of(plugin.name, subscriptions)
    return Instance(plugin.name, plugin.name, "endpick", "0", kinds, plugin, subscriptions, default_on_fault(kinds), scope)


class Pool:
    """What `endpick serve` keeps running beside requests."""

    def __init__(self, path: Path, timeout_seconds: float) -> None:
        self.errors = Errors()
        self.source = MetricsDataSource("metrics", MetricsSourceParameters(), PluginContext())
        self.source.timeout_seconds = timeout_seconds
        collector = CoreMetricsExtractor("core", CoreMetricsParameters(), PluginContext())
        self.table = EndpointTable(time.monotonic, collector.subscriptions(collector.parameters).produces)
        parameters = FileDiscoveryParameters(path=str(path), watch_file=True)
        self.discovery = DiscoveryTask(instance(FileDiscovery("files", parameters, PluginContext())), self.table, self.errors)
        collection = Collection((SourceBinding(instance(self.source), (instance(collector),)),))
        self.loop = CollectionLoop(self.table, collection, CollectionSettings(), self.errors)

    def value(self, key, name: str) -> float:
        return float(self.table.view()[key][self.table.generation.row_of[f"default/{name}"]])

    def age(self, key, name: str) -> float:
        return float(self.table.view().age(key)[self.table.generation.row_of[f"default/{name}"]])


@asynccontextmanager
async def running(tmp_path: Path, ports: Mapping[str, int], timeout_seconds: float = 1.0) -> AsyncIterator[Pool]:
    path = tmp_path / "endpoints.yaml"
    entries = [f'- {{name: {name}, address: 127.0.0.1, port: "{port}"}}\n' for name, port in ports.items()]
    path.write_text("endpoints:\n" + "".join(entries))
    pool = Pool(path, timeout_seconds)
    await pool.source.start()
    pool.discovery.start()
    try:
        await pool.discovery.wait_ready(5)
        pool.loop.start()
        yield pool
    finally:
        assert await pool.loop.stop() == 0
        await pool.discovery.stop()
        await pool.source.stop()


async def eventually(condition: Callable[[], bool], what: str) -> None:
    async def wait() -> None:
        while not condition():  # noqa: ASYNC110 - what is waited for happens in tasks that signal nothing
            await asyncio.sleep(0.005)

    try:
        await asyncio.wait_for(wait(), 15)
    except TimeoutError:
        pytest.fail(f"never happened: {what}")


@asynccontextmanager
async def answering(handler: Callable) -> AsyncIterator[int]:
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield site._server.sockets[0].getsockname()[1]
    finally:
        await runner.cleanup()


async def well(request):
    return web.Response(body=PAGE)


async def garbage(request):
    return web.Response(body=b"<html>\x00\xff vllm:num_requests_waiting</html>")


async def failing(request):
    return web.Response(status=500)


async def partial(request):
    return web.Response(body=b"vllm:num_requests_waiting 8\n")


async def slow(request):
    await asyncio.sleep(30)
    return web.Response(body=PAGE)


async def huge(request):
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(1000):
        await response.write(b"noise 1\n" * 8192)
    return response


async def test_bad_page_is_counted_for_its_endpoint_only(tmp_path):
    handlers = {"well": well, "garbage": garbage, "failing": failing, "partial": partial, "slow": slow, "huge": huge}
    async with AsyncExitStack() as stack:
        ports = {name: await stack.enter_async_context(answering(handler)) for name, handler in handlers.items()}
        async with answering(well) as refused:
            pass
        pool = await stack.enter_async_context(running(tmp_path, {**ports, "refused": refused}, timeout_seconds=0.3))
        bad_polls, bad_collects = {"failing", "slow", "huge", "refused"}, {"garbage", "partial"}
        await eventually(lambda: bad_polls <= {*pool.errors.polls} and bad_collects <= {*pool.errors.collects}, "every error is counted")
        await eventually(lambda: pool.value(WAITING_QUEUE_SIZE, "partial") == 8, "what there is, is read")
        await eventually(lambda: pool.value(WAITING_QUEUE_SIZE, "well") == 3, "the good page is read")
        for name in (*bad_polls, "garbage"):
            assert math.isnan(pool.value(WAITING_QUEUE_SIZE, name)), name
        assert math.isnan(pool.value(KV_CACHE_USAGE, "partial"))
        assert "answered 500" in pool.errors.polls["failing"][0]
        assert pool.errors.polls["slow"][0] == "took longer than 0.3 s"
        assert "longer than 8 MiB" in pool.errors.polls["huge"][0] or "took longer than" in pool.errors.polls["huge"][0]
        assert "vllm:num_requests_waiting" in pool.errors.collects["garbage"][0]


async def test_values_of_a_dead_server_age_until_it_returns(tmp_path):
    alive = True

    async def mortal(request):
        if not alive:
            request.transport.abort()
        return web.Response(body=PAGE)

    async with answering(mortal) as port, running(tmp_path, {"mortal": port}) as pool:
        await eventually(lambda: pool.value(WAITING_QUEUE_SIZE, "mortal") == 3, "the first scrape")
        assert pool.age(WAITING_QUEUE_SIZE, "mortal") < 5
        alive = False
        await eventually(lambda: pool.age(WAITING_QUEUE_SIZE, "mortal") > 0.3, "the value grows old")
        assert pool.value(WAITING_QUEUE_SIZE, "mortal") == 3
        assert len(pool.errors.polls["mortal"]) > 0
        alive = True
        await eventually(lambda: pool.age(WAITING_QUEUE_SIZE, "mortal") < 0.2, "the value is fresh again")


async def test_simulated_model_server_reports_the_core_metrics(tmp_path):
    settings = ServerSettings(engine=EngineSettings(max_loras=2))
    server = await serve(settings)
    try:
        async with running(tmp_path, {"sim": server.port}) as pool:
            await eventually(lambda: not math.isnan(pool.value(KV_CACHE_USAGE, "sim")), "the first scrape")
            assert pool.errors.collects == {}
            row = {
                key: float(column.values[0])
                for key, column in pool.table.generation.columns.items()
                if key != LORA_ADAPTERS.name and "Nixl" not in key
            }
            assert row == {
                "waiting-queue-size": 0.0,
                "running-requests-size": 0.0,
                "kv-cache-usage": 0.0,
                "cache-block-size": float(settings.engine.block_size),
                "cache-num-blocks": float(settings.engine.kv_blocks),
            }
            assert pool.table.view().objects(LORA_ADAPTERS)[0].max_adapters == 2
    finally:
        await server.close()
