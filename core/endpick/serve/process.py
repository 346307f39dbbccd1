"""One serving process: starts everything in order, serves until told to stop, and takes it down in reverse."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry

from endpick.api.access import Access
from endpick.api.hooks import HostServices, HostView
from endpick.datalayer.loop import CollectionSettings
from endpick.datalayer.table import EndpointTable
from endpick.diagnostics import Code, Diagnostic
from endpick.extproc.counters import SessionCounters
from endpick.extproc.session import SessionSettings, session_factory
from endpick.observability.counts import EventCounts
from endpick.observability.exposition import Exposition
from endpick.observability.metrics import EndpickMetrics
from endpick.observability.recorder import Recorder
from endpick.planning.compile import declared_keys
from endpick.planning.plan import Plan, PlanOutcome
from endpick.requests.director import Director
from endpick.serve.admin import AdminServer, admin_application
from endpick.serve.current import Current
from endpick.serve.decisions import DecisionObservers
from endpick.serve.deployment import Deployment, Ground, deploy, document_of
from endpick.serve.failure import Refused
from endpick.serve.pool_metrics import PoolGauges
from endpick.serve.reload import reload_once, watch_file
from endpick.serve.settings import ServeSettings
from endpick.transport.choice import open_server
from endpick.transport.health import HealthBoard, health_methods
from endpick.transport.reflection import reflection_methods
from endpick.transport.server import ListenError, Server, ext_proc_methods
from endpick.transport.tls import TlsError

_log = logging.getLogger("endpick.serve")


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a serving process can be reached; the ports that were bound, also when 0 was asked for."""

    ext_proc: int
    health: int
    metrics: int


@dataclass(slots=True)
class Control:
    """How the outside steers a serving process; needs a running event loop to be waited for, not to be made."""

    stop: asyncio.Event
    reload: asyncio.Event
    replan: Callable[[], PlanOutcome]
    """Reads the configuration again; called in a thread."""


async def serve(plan: Plan, settings: ServeSettings, control: Control, started: Callable[[Ports], None]) -> None:
    """Serve a plan until `control.stop` is set.

    Args:
        plan: Proven by `make_plan`.
        settings: Ports, intervals and limits.
        control: Set by signal handlers or a test.
        started: Told the bound ports once requests are answered.

    Raises:
        Refused: a port, a plugin, the discovery or a hook object would not start.
        ExceptionGroup: plugins that would not stop.
    """
    async with AsyncExitStack() as stack:
        registry = _new_registry()
        metrics = EndpickMetrics(registry)
        services = HostServices(time.monotonic, registry)
        _refuse_if_any(plan.hooks.configure(services))
        recorder = Recorder(metrics, services.clock)
        table = EndpointTable(services.clock, declared_keys(plan), recorder.undeclared_access)
        observers = DecisionObservers(plan.hooks, settings.decision_sampling_ratio)
        ground = Ground(services, table, recorder, observers.watched)
        current = Current(ground, CollectionSettings(settings.refresh_metrics_interval_seconds), settings.drain_timeout_seconds)

        board = HealthBoard()
        readiness = _Readiness()
        exposition = Exposition(registry, current.instances, recorder)
        health_port, metrics_port = await _open_side_ports(stack, settings, exposition, board, readiness)
        registry.register(PoolGauges(settings.pool_name, lambda: table.generation, services.clock))

        deployment = await deploy(plan, ground)
        stack.push_async_callback(current.end)
        await current.begin(deployment, settings.discovery_timeout_seconds)
        _show_instances(metrics, deployment)
        await _start_hooks(stack, deployment)
        observers.start()
        stack.push_async_callback(asyncio.to_thread, observers.stop)

        access = Access(on_violation=recorder.undeclared_access)
        director = Director(current.pipeline, table, recorder, services.clock, access=access)
        counters = SessionCounters()
        sessions = session_factory(director, SessionSettings(settings.max_request_body_bytes), counters)
        methods = ext_proc_methods(sessions) | health_methods(board)
        server = open_server(settings.transport, settings.ext_proc, methods | reflection_methods(methods))
        registry.register(EventCounts("endpick_transport_events", "Events on the ext_proc port.", server.counters.snapshot))
        registry.register(EventCounts("endpick_session_events", "Events in ext_proc streams.", counters.snapshot))
        registry.register(EventCounts("endpick_decision_records", "Decisions that were to be shown to hook objects.", observers.counts))
        ext_proc_port = await _start(stack, server)

        board.set_ready(True)
        readiness.reason = None
        started(Ports(ext_proc_port, health_port, metrics_port))
        await _reload_until_stopped(plan, settings, control, current, ground, metrics)

        readiness.reason = "draining"
        board.set_ready(False)
        _log.info("draining", extra={"timeout_seconds": settings.drain_timeout_seconds})
        await server.drain(settings.drain_timeout_seconds)


class _Readiness:
    """Why `/healthz` says no; None when it says yes."""

    def __init__(self) -> None:
        self.reason: str | None = "starting"


async def _reload_until_stopped(
    plan: Plan, settings: ServeSettings, control: Control, current: Current, ground: Ground, metrics: EndpickMetrics
) -> None:
    async def reload_on_request() -> None:
        while True:
            await control.reload.wait()
            control.reload.clear()
            applied = await reload_once(current, ground, plan.hooks, control.replan)
            metrics.reloads.labels("applied" if applied else "refused").inc()
            _show_instances(metrics, current.deployment)

    tasks = [asyncio.ensure_future(reload_on_request())]
    if settings.watch_config and plan.config.path is not None:
        tasks.append(asyncio.ensure_future(watch_file(Path(plan.config.path), control.reload.set)))
    stopped = asyncio.ensure_future(control.stop.wait())
    try:
        await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (stopped, *tasks):
            task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


def _show_instances(metrics: EndpickMetrics, deployment: Deployment) -> None:
    metrics.plugin_info.clear()
    for instance in deployment.instances.values():
        metrics.plugin_info.labels(instance.name, instance.type, instance.distribution, instance.version).set(1)


async def _start_hooks(stack: AsyncExitStack, deployment: Deployment) -> None:
    plugins = {name: instance.plugin for name, instance in deployment.instances.items()}
    host = HostView(document_of(deployment.plan), plugins)
    hooks = deployment.plan.hooks
    _refuse_if_any(await hooks.startup(host))

    async def shut_down() -> None:
        for diagnostic in await hooks.shutdown(host):
            _log.error(diagnostic.message, extra={"code": str(diagnostic.code)})

    stack.push_async_callback(shut_down)


def _refuse_if_any(diagnostics: tuple[Diagnostic, ...]) -> None:
    if diagnostics:
        raise Refused(*diagnostics)


def _new_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(collector)
    return registry


async def _open_side_ports(
    stack: AsyncExitStack, settings: ServeSettings, exposition: Exposition, board: HealthBoard, readiness: _Readiness
) -> tuple[int, int]:
    """Health and metrics, which tell of the start itself; returns their ports."""
    admin = AdminServer(admin_application(exposition, lambda: readiness.reason), settings.metrics_host, settings.metrics_port)
    metrics_port = await _listening(admin.start())
    stack.push_async_callback(admin.stop)
    health_port = await _start(stack, open_server(settings.transport, settings.health, health_methods(board)))
    return health_port, metrics_port


async def _start(stack: AsyncExitStack, server: Server) -> int:
    port = await _listening(server.start())
    stack.push_async_callback(server.stop)
    return port


async def _listening(binding: Awaitable[int]) -> int:
    try:
        return await binding
    except ListenError as problem:
        raise Refused(Diagnostic(Code.E0801, str(problem), help="stop what listens there, or choose another port")) from problem
    except TlsError as problem:
        advice = "tls.crt and tls.key under --cert-path, and the --client-ca-file, must be PEM files that belong together"
        raise Refused(Diagnostic(Code.E0802, str(problem), help=advice)) from problem
