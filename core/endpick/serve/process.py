"""One serving process: starts its parts in order, and stops them in reverse order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress

from prometheus_client.registry import Collector, CollectorRegistry

from endpick.api.access import Access
from endpick.api.hooks import HostServices, HostView
from endpick.data.collection import CollectionSettings
from endpick.data.table import EndpointTable
from endpick.diagnostics import Code, Diagnostic
from endpick.extproc.session import session_factory
from endpick.extproc.stream import SessionCounters
from endpick.fleet.columns import SharedColumns
from endpick.fleet.exchange import Exchange
from endpick.fleet.link import FleetLink, new_origin
from endpick.host.boundary import left_out_now
from endpick.host.planning.changes import plan_hash
from endpick.host.planning.plan import Plan
from endpick.requests.director import Director
from endpick.requests.memory import Memory, OverloadStage
from endpick.requests.waiting import FlowGate
from endpick.serve.active_plan import ActivePlan, Reloader
from endpick.serve.admin import AdminServer, EventCounts, Exposition, MetricsPages, new_host_registry
from endpick.serve.admin_api import AdminAPI, Sources
from endpick.serve.decisions import DecisionRecords, RecordSettings
from endpick.serve.deployment import Runtime, StartRefused, declared_keys, deploy, document_of
from endpick.serve.drift import DriftWatch
from endpick.serve.legacy import LegacyNames
from endpick.serve.lifecycle import Phase, Readiness, unless, wait_for_gateways
from endpick.serve.logs import log_uncaught_errors
from endpick.serve.metrics import EndpickMetrics, StreamMetrics, measured
from endpick.serve.pool_metrics import FlowControlMetrics, PoolGauges, PoolLog, has_usable_endpoint, unwell_endpoints
from endpick.serve.ports import started_port
from endpick.serve.recorder import Recorder, detailed_combinations
from endpick.serve.reload_log import ReloadEntry, ReloadResult, Trigger
from endpick.serve.settings import Control, Ports, ServeSettings
from endpick.serve.tracing import open_tracing
from endpick.serve.watchdog import OverloadWatch, Watchdog
from endpick.transport.methods import ext_proc_methods
from endpick.transport.server import Server, open_server
from endpick.transport.services import HealthBoard, health_methods, reflection_methods

_log = logging.getLogger("endpick.serve")

_ENDPOINTS_SECONDS = 0.5  # between looks at the pool for the readiness


async def serve(plan: Plan, settings: ServeSettings, control: Control, started: Callable[[Ports], None]) -> None:
    """Serve a plan until `control.stop` is set; calls `started` once requests are answered.

    Raises:
        StartRefused: a port, a plugin, the discovery or a hook object did not start.
        StoppedWhileStarting: `control.stop` was set before requests could be served.
        ExceptionGroup: plugins did not stop.
    """
    async with AsyncExitStack() as stack:
        process = _Process(plan, settings, control, stack)
        health, health_port, metrics_port = await process.open_health_and_metrics()
        process.watch_event_loop()
        await process.start_instances()
        await process.start_hooks()
        director, gate = process.make_director()
        server = process.make_server(director)
        ports = Ports(await _start(stack, server), health_port, metrics_port)
        await process.start_gateway(ports.ext_proc)
        control.lifecycle.enter(Phase.SERVING)
        started(ports)
        await process.reload_until_stopped()
        await process.drain(server, health, gate)


class _Process:
    def __init__(self, plan: Plan, settings: ServeSettings, control: Control, stack: AsyncExitStack) -> None:
        self._plan = plan
        self._settings = settings
        self._control = control
        self._stack = stack
        self._registry = new_host_registry()
        self._metrics = EndpickMetrics(self._registry)
        self._services = HostServices(time.monotonic, CollectorRegistry())
        _refuse_if_any(plan.hooks.configure(self._services))
        clock = self._services.clock

        self._recorder = Recorder(self._metrics, clock, settings.max_metric_combinations)
        self._table = EndpointTable(clock, declared_keys(plan), self._recorder.undeclared_access, settings.max_endpoints)
        self._table.rules.configure(plan.models)
        self._table.on_changed += control.pool_watchers
        PoolLog(self._table, self._metrics, clock)
        self._records = _new_records(plan, settings.records, self._metrics, clock, traces=settings.traces)
        self._runtime = Runtime(self._services, self._table, self._recorder, settings.breaker)
        collection = CollectionSettings(settings.refresh_metrics_interval_seconds, settings.idle_metrics_interval_seconds)
        self._current = ActivePlan(self._runtime, collection, settings.finish_timeout_seconds)
        self._reloader = Reloader(self._current, self._runtime, plan.hooks, control.replan)
        self._drift = DriftWatch(self._current, settings.config_file, self._metrics)
        columns = None if control.handover is None else SharedColumns(self._table, sends=control.handover.number == 0)
        self._exchange = Exchange(new_origin(), clock, self._recorder, columns)
        self._fleet = FleetLink(self._exchange)
        self._memory = _new_memory(settings.max_memory_bytes)
        self._overload = OverloadWatch(self._memory, self._registry)
        self._board = HealthBoard()
        self._readiness = Readiness(control.lifecycle, self._board, self._remarks)
        self._metrics.ready.set_function(lambda: self._readiness.is_ready)
        self._table.on_stand_by.append(self._readiness.stand_by)
        control.lifecycle.on_entered(self._phase_entered)
        self._registry.register(PoolGauges(settings.pool_name, lambda: self._table.generation, clock, settings.metrics_staleness_seconds))
        self._count_events("endpick_polls", "Polls of endpoints, by outcome.", self._current.polls.snapshot)
        self._count_events("endpick_fleet_messages", "Messages of other pickers, by what became of them.", self._exchange.events)
        self._count_events("endpick_fleet_bytes", "Bytes of messages between pickers.", self._fleet.sizes)
        self._metrics.fleet_peers.set_function(lambda: len(self._exchange.peers))
        self._metrics.fleet_connected.set_function(lambda: self._fleet.is_connected)
        self._count_events("endpick_decision_records", "Decision records by outcome: recorded, shown or dropped.", self._records.counts)
        log_uncaught_errors(asyncio.get_running_loop(), self._metrics.uncaught)

    async def open_health_and_metrics(self) -> tuple[Server, int, int]:
        settings = self._settings
        exposition = Exposition(self._registry, self._services.registry, self._current.instances, self._recorder)
        page: Collector = LegacyNames(exposition) if settings.legacy_metrics else exposition
        access = self._current.metrics_access if settings.metrics_auth else None
        pages = MetricsPages(page, exposition.gather, self._readiness.report, access)
        application = pages.application(self._admin_api())
        admin = AdminServer(application, settings.metrics_host, settings.metrics_port, settings.metrics_tls)
        metrics_port = await _start(self._stack, admin)
        health = open_server("h2", settings.health, health_methods(self._board))
        health_port = await _start(self._stack, health)
        self._count_events("endpick_health_events", "Events on the gRPC health port.", health.counters.snapshot)
        return health, health_port, metrics_port

    def _admin_api(self) -> AdminAPI:
        sources = Sources(
            self._current,
            self._records,
            self._metrics,
            lambda: self._table.generation,
            lambda: self._reloader.log,
            lambda: self._drift.drift,
        )
        token_file = self._settings.admin_token_file
        try:
            return AdminAPI(sources, token_file)
        except OSError as error:
            message = f"the token file {token_file} cannot be read: {error.strerror}"
            raise StartRefused(Diagnostic(Code.E0808, message, help="name a readable file with --admin-token-file")) from error

    def watch_event_loop(self) -> None:
        watchdog = Watchdog(self._settings.watchdog, self._metrics, self._readiness.stalled)
        self._stack.callback(watchdog.stop)
        watchdog.start()

    async def start_instances(self) -> None:
        stop = self._control.stop
        deployment = await unless(stop, deploy(self._plan, self._runtime))
        self._stack.push_async_callback(self._current.end)
        await unless(stop, self._current.begin(deployment, self._settings.discovery_timeout_seconds))
        self._reloader.log.append(ReloadEntry(time.time(), Trigger.START, "", plan_hash(self._plan), ReloadResult.APPLIED))
        self._show_plan()
        await unless(stop, self._fleet.start(deployment.plan.fleet, deployment.instances))
        self._stack.push_async_callback(self._fleet.stop)
        self._current.on_replaced.append(lambda new: self._fleet.change(new.plan.fleet, new.instances))
        await self._drift.check()

    async def start_hooks(self) -> None:
        deployment = self._current.deployment
        plugins = {name: instance.plugin for name, instance in deployment.instances.items()}
        host = HostView(document_of(deployment.plan), plugins)
        hooks = deployment.plan.hooks
        _refuse_if_any(await hooks.startup(host))

        async def shut_down() -> None:
            for diagnostic in await hooks.shutdown(host):
                _log.error(diagnostic.message, extra={"code": str(diagnostic.code)})

        self._stack.push_async_callback(shut_down)
        self._stack.callback(self._overload.stop)
        self._overload.start()
        self._records.start()
        self._stack.push_async_callback(asyncio.to_thread, self._records.stop)

    def make_director(self) -> tuple[Director, FlowGate]:
        table, clock = self._table, self._services.clock
        access = Access(on_violation=self._recorder.undeclared_access)
        gate = FlowGate(table, access, clock, self._memory, self._flow_control_metrics)
        table.on_changed.append(gate.something_changed)
        table.on_delivered.append(gate.something_changed)
        director = Director(
            self._current.deployment.pipeline,
            table,
            self._recorder,
            clock,
            access=access,
            sent=table.sent,
            memory=self._memory,
            emits_scores=self._settings.emits_scores,
            rules=table.rules,
            gate=gate,
            decisions=self._records,
        )
        self._current.on_replaced.append(lambda new: director.switch(new.pipeline))
        return director, gate

    def make_server(self, director: Director) -> Server:
        counters = SessionCounters()
        sessions = session_factory(director, self._settings.sessions, counters, self._memory)
        if self._settings.grpc_stream_metrics:
            sessions = measured(sessions, StreamMetrics(self._registry), self._services.clock)
        methods = ext_proc_methods(sessions) | health_methods(self._board)
        server = open_server(self._settings.transport, self._settings.ext_proc, methods | reflection_methods(methods))
        self._count_events("endpick_transport_events", "Events on the ext_proc port.", server.counters.snapshot)
        self._count_events("endpick_session_events", "Events in ext_proc streams.", counters.snapshot)
        return server

    async def start_gateway(self, ext_proc_port: int) -> None:
        gateway = self._control.gateway
        if gateway is not None:
            self._stack.push_async_callback(gateway.stop)
            await unless(self._control.stop, gateway.start(ext_proc_port, self._readiness.without_gateway))

    async def reload_until_stopped(self) -> None:
        control, watched = self._control, self._settings.watched_config
        tasks = [asyncio.ensure_future(self._reload_on_request()), asyncio.ensure_future(self._drift.run())]
        if self._settings.unready_without_endpoints:
            tasks.append(asyncio.ensure_future(self._follow_endpoints()))
        if watched is not None:
            tasks.append(asyncio.ensure_future(watched.watch(lambda: control.request_reload(Trigger.FILE))))
        stopped = asyncio.ensure_future(control.stop.wait())
        try:
            await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stopped, *tasks):
                task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def drain(self, server: Server, health: Server, gate: FlowGate) -> None:
        """Serve until gateways have noticed, refuse waiting requests, then let open streams finish."""
        control, settings = self._control, self._settings
        control.lifecycle.enter(Phase.DRAINING)
        _log.info("draining: new requests are still served", extra={"timeout_seconds": settings.drain_timeout_seconds})
        if control.gateway is not None:
            control.gateway.drain()
        count = self._metrics.streams_while_draining.inc
        reason = await wait_for_gateways(server, health, settings.drain_timeout_seconds, control.hasten, count)
        control.lifecycle.enter(Phase.FINISHING)
        open_streams = server.counters.streams_active
        refused = await gate.shut_down()
        _log.info(
            "finishing",
            extra={
                "reason": reason,
                "open_streams": open_streams,
                "waiting_refused": refused,
                "timeout_seconds": settings.finish_timeout_seconds,
            },
        )
        await server.drain(settings.finish_timeout_seconds)

    async def _reload_on_request(self) -> None:
        while True:
            await self._control.reload.wait()
            self._control.reload.clear()
            entry = await self._reloader.reload(self._control.trigger)
            self._metrics.reloads.labels(entry.result.value).inc()
            self._show_plan()
            await self._drift.check()

    async def _follow_endpoints(self) -> None:
        while True:
            usable = has_usable_endpoint(self._table.generation)
            self._readiness.without_endpoints("" if usable else "no endpoint is healthy, degraded or probing")
            await asyncio.sleep(_ENDPOINTS_SECONDS)

    def _count_events(self, name: str, documentation: str, counts: Callable[[], Mapping[str, int]]) -> None:
        self._registry.register(EventCounts(name, documentation, counts))

    def _flow_control_metrics(self) -> FlowControlMetrics:
        settings = self._settings
        combinations = detailed_combinations(settings.max_metric_combinations)
        return FlowControlMetrics(self._registry, settings.pool_name, combinations, self._metrics.overflows.inc)

    def _remarks(self) -> tuple[str, ...]:
        generation = self._table.generation
        plugins, endpoints = left_out_now(self._current.instances()), unwell_endpoints(generation)
        return (
            *self._overload.remarks(),
            *plugins,
            *endpoints,
            *self._fleet.remarks(),
            *self._records.remarks(),
            *self._drift.drift.remarks(),
        )

    def _phase_entered(self, entered: Phase) -> None:
        for phase in Phase:
            self._metrics.phase.labels(phase.value).set(phase is entered)
        if entered is Phase.DRAINING:
            self._table.is_ending.set()

    def _show_plan(self) -> None:
        self._metrics.plan_info.clear()
        self._metrics.plan_info.labels(plan_hash(self._current.deployment.plan)).set(1)
        self._metrics.plugin_info.clear()
        self._metrics.circuits.clear()
        for instance in self._current.instances():
            self._metrics.circuits.labels(instance.name, instance.type).set(instance.breaker.state)
            self._metrics.plugin_info.labels(instance.name, instance.type, instance.distribution, instance.version).set(1)


def _new_memory(limit_bytes: int) -> Memory:
    memory = Memory(limit_bytes)
    memory.measure()
    if memory.stage is not OverloadStage.NORMAL:
        message = f"--max-memory {limit_bytes >> 20}Mi leaves no memory for requests: endpick itself takes {memory.resident() >> 20} MiB"
        raise StartRefused(Diagnostic(Code.E0807, message, help="allow more"))
    return memory


def _new_records(
    plan: Plan, settings: RecordSettings, metrics: EndpickMetrics, clock: Callable[[], float], *, traces: bool
) -> DecisionRecords:
    try:
        return DecisionRecords(plan.hooks, settings, metrics, clock, open_tracing() if traces else None)
    except OSError as error:
        message = f"the decision log {settings.file} cannot be opened: {error.strerror}"
        raise StartRefused(Diagnostic(Code.E0808, message, help="name a file in a writable folder with --decision-log")) from error


def _refuse_if_any(diagnostics: tuple[Diagnostic, ...]) -> None:
    if diagnostics:
        raise StartRefused(*diagnostics)


async def _start(stack: AsyncExitStack, server: Server | AdminServer) -> int:
    port = await started_port(server)
    stack.push_async_callback(server.stop)
    return port
