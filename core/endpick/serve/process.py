"""One serving process: starts everything in order, serves until told to stop, and takes it down in reverse."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry

from endpick.api.access import Access
from endpick.api.errors import ConfigurationError
from endpick.api.plugin import PluginContext
from endpick.datalayer.discovery import DiscoveryTask
from endpick.datalayer.loop import CollectionLoop, CollectionSettings
from endpick.datalayer.table import EndpointTable
from endpick.extproc.counters import SessionCounters
from endpick.extproc.session import SessionSettings, session_factory
from endpick.observability.counts import EventCounts
from endpick.observability.metrics import EndpickMetrics
from endpick.observability.recorder import Recorder
from endpick.planning.build import Built, build_plan
from endpick.planning.compile import compile_collection, compile_pipeline, declared_keys
from endpick.planning.plan import Plan, PlannedInstance
from endpick.plugins.instance import Instance, scope_of
from endpick.requests.director import Director
from endpick.serve.admin import AdminServer, admin_application
from endpick.serve.failure import BuildRefused, StartupError
from endpick.serve.lifecycle import start_instances, stop_instances
from endpick.serve.pool_metrics import PoolGauges
from endpick.serve.settings import ServeSettings
from endpick.transport.health import HealthBoard, health_methods
from endpick.transport.server import ListenError, Server, ext_proc_methods, open_server
from endpick.transport.tls import TlsError

_log = logging.getLogger("endpick.serve")


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a serving process can be reached; the ports that were bound, also when 0 was asked for."""

    ext_proc: int
    health: int
    metrics: int


async def serve(plan: Plan, settings: ServeSettings, stop: asyncio.Event, started: Callable[[Ports], None]) -> None:
    """Serve a plan until `stop` is set.

    Args:
        plan: Proven by `make_plan`.
        settings: Ports, intervals and limits.
        stop: Set by a signal handler or a test.
        started: Told the bound ports once requests are answered.

    Raises:
        BuildRefused: plugins would not be constructed.
        StartupError: a port, a plugin or the discovery would not start.
        ExceptionGroup: plugins that would not stop.
    """
    async with AsyncExitStack() as stack:
        registry = _new_registry()
        metrics = EndpickMetrics(registry)
        recorder = Recorder(metrics, time.monotonic)
        table = EndpointTable(time.monotonic, declared_keys(plan), recorder.undeclared_access)
        built = _build(plan, registry, table)
        instances = built.instances
        for instance in instances.values():
            metrics.plugin_info.labels(instance.name, instance.type, instance.distribution, instance.version).set(1)
        stack.push_async_callback(stop_instances, await start_instances(instances.values()))
        table.on_removed.append(lambda name: _forget(name, instances, recorder))

        board = HealthBoard()
        reason = _Readiness()
        ports = await _open_side_ports(stack, settings, registry, board, reason)
        registry.register(PoolGauges(settings.pool_name, lambda: table.generation, time.monotonic))
        await _discover(stack, plan, instances, table, recorder, settings)

        loop_settings = CollectionSettings(settings.refresh_metrics_interval_seconds)
        collection = CollectionLoop(table, compile_collection(plan, built), loop_settings, recorder)
        collection.start()
        stack.push_async_callback(collection.stop)

        pipeline = compile_pipeline(plan, built, recorder)
        access = Access(on_violation=recorder.undeclared_access)
        director = Director(lambda: pipeline, table, recorder, time.monotonic, access=access)
        session_counters = SessionCounters()
        sessions = session_factory(director, SessionSettings(settings.max_request_body_bytes), session_counters)
        methods = ext_proc_methods(sessions) | health_methods(board)
        server = open_server(settings.transport, settings.ext_proc, methods)
        registry.register(EventCounts("endpick_transport_events", "Events on the ext_proc port.", server.counters.snapshot))
        registry.register(EventCounts("endpick_session_events", "Events in ext_proc streams.", session_counters.snapshot))
        ext_proc_port = await _start(stack, server)

        board.set_ready(True)
        reason.text = None
        started(Ports(ext_proc_port, ports.health, ports.metrics))
        await stop.wait()

        reason.text = "draining"
        board.set_ready(False)
        _log.info("draining", extra={"timeout_seconds": settings.drain_timeout_seconds})
        await server.drain(settings.drain_timeout_seconds)


class _Readiness:
    """Why `/healthz` says no; None when it says yes."""

    def __init__(self) -> None:
        self.text: str | None = "starting"


def _new_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(collector)
    return registry


def _build(plan: Plan, registry: CollectorRegistry, table: EndpointTable) -> Built:
    def context_for(planned: PlannedInstance) -> PluginContext:
        logger = logging.getLogger(f"endpick.plugin.{planned.name}")
        columns = table.writer(scope_of(planned.name, planned.subscriptions))
        return PluginContext(random.Random(), time.monotonic, logger, registry, columns)  # noqa: S311 - routing needs no secrets

    built = build_plan(plan, context_for)
    if not isinstance(built, Built):
        raise BuildRefused(built)
    return built


def _forget(name: str, instances: Mapping[str, Instance], recorder: Recorder) -> None:
    for instance in instances.values():
        try:
            instance.plugin.endpoint_removed(name)
        except Exception as problem:
            recorder.fault(instance, "EndpointRemoved", problem)


async def _open_side_ports(
    stack: AsyncExitStack, settings: ServeSettings, registry: CollectorRegistry, board: HealthBoard, reason: _Readiness
) -> Ports:
    admin = AdminServer(admin_application(registry, lambda: reason.text), settings.metrics_host, settings.metrics_port)
    metrics_port = await _listening(admin.start())
    stack.push_async_callback(admin.stop)
    health_port = await _start(stack, open_server(settings.transport, settings.health, health_methods(board)))
    return Ports(0, health_port, metrics_port)


async def _start(stack: AsyncExitStack, server: Server) -> int:
    port = await _listening(server.start())
    stack.push_async_callback(server.stop)
    return port


async def _listening(binding: Awaitable[int]) -> int:
    try:
        return await binding
    except (ListenError, TlsError) as problem:
        raise StartupError(str(problem)) from problem


async def _discover(
    stack: AsyncExitStack,
    plan: Plan,
    instances: Mapping[str, Instance],
    table: EndpointTable,
    recorder: Recorder,
    settings: ServeSettings,
) -> None:
    if plan.discovery is None:
        raise StartupError(
            "the configuration names no endpoint discovery, so there is nobody to route to; "
            "add one under dataLayer.discovery, for example file-discovery"
        )
    discovery = DiscoveryTask(instances[plan.discovery], table, recorder)
    discovery.start()
    stack.push_async_callback(discovery.stop)
    try:
        await discovery.wait_ready(settings.discovery_timeout_seconds)
    except (ConfigurationError, TimeoutError) as problem:
        raise StartupError(str(problem)) from problem
