"""One serving process: starts its parts in order, and stops them in reverse order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial

from prometheus_client.registry import Collector, CollectorRegistry

from endpick.api.hooks import HostServices
from endpick.data.collection import CollectionSettings
from endpick.diagnostics import Code, Diagnostic
from endpick.engine.changes import plan_hash
from endpick.engine.instances import StartRefused
from endpick.engine.picker import Picker, PickerSettings, view_of
from endpick.engine.reload_log import ReloadEntry, ReloadResult, Trigger
from endpick.engine.reloads import Reloader
from endpick.extproc.session import session_factory
from endpick.extproc.stream import SessionCounters
from endpick.fleet.columns import SharedColumns
from endpick.fleet.exchange import Exchange
from endpick.fleet.link import FleetLink, new_origin
from endpick.host.boundary import left_out_now
from endpick.host.hooks import Failure
from endpick.host.planning.plan import Plan
from endpick.requests.memory import Memory, OverloadStage
from endpick.serve import legacy
from endpick.serve.admin import AdminServer, EventCounts, Exposition, FilteredMetrics, MetricsPages, new_host_registry
from endpick.serve.admin_api import AdminAPI, Sources
from endpick.serve.decision_log import DecisionFile, DecisionLines
from endpick.serve.decisions import DecisionRecords
from endpick.serve.drift import DriftWatch
from endpick.serve.hook_objects import HistoryPages, HookFaults, HookPages
from endpick.serve.lifecycle import Cause, Phase, Readiness, unless, wait_for_gateways
from endpick.serve.logs import log_uncaught_errors
from endpick.serve.metrics import EndpickMetrics, StreamMetrics, measured
from endpick.serve.pool_metrics import FlowControlMetrics, PoolGauges, PoolLog, has_usable_endpoint, unwell_endpoints
from endpick.serve.ports import started_port
from endpick.serve.recorder import Recorder, detailed_combinations
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
        await process.start_picker()
        await process.start_hooks()
        server = process.make_server()
        ports = Ports(await _start(stack, server), health_port, metrics_port)
        await process.start_gateway(ports.ext_proc)
        control.lifecycle.enter(Phase.SERVING)
        started(ports)
        await process.reload_until_stopped()
        await process.drain(server, health)


class _Process:
    def __init__(self, plan: Plan, settings: ServeSettings, control: Control, stack: AsyncExitStack) -> None:
        self._plan = plan
        self._settings = settings
        self._control = control
        self._stack = stack
        self._registry = new_host_registry()
        self._metrics = EndpickMetrics(self._registry)
        self._hooks = plan.hooks
        self._services = HostServices(time.monotonic, CollectorRegistry())
        if settings.legacy_metrics:
            self._hooks.register(legacy, "legacy-metrics")
        _refuse_failures(self._hooks.call("endpick_configure", services=self._services))
        clock = self._services.clock

        self._hook_faults = HookFaults(self._metrics, clock)
        self._recorder = Recorder(self._metrics, clock, settings.max_metric_combinations)
        self._memory = _new_memory(settings.max_memory_bytes)
        tracing = open_tracing() if settings.traces else None
        self._records = DecisionRecords(self._hooks, settings.records, self._hook_faults.report, clock, tracing)
        self._decision_file = None if settings.records.file is None else DecisionFile(settings.records.file, clock)
        self._picker = Picker(
            plan,
            PickerSettings(
                collection=CollectionSettings(settings.refresh_metrics_interval_seconds, settings.idle_metrics_interval_seconds),
                breaker=settings.breaker,
                discovery_timeout_seconds=settings.discovery_timeout_seconds,
                finish_timeout_seconds=settings.finish_timeout_seconds,
                max_endpoints=settings.max_endpoints,
                emits_scores=settings.emits_scores,
            ),
            clock=clock,
            telemetry=self._recorder,
            memory=self._memory,
            report=self._flow_control_metrics,
            decisions=self._records,
        )
        table = self._picker.table
        table.on_changed += control.pool_watchers
        PoolLog(table, self._metrics, clock)
        self._reloader = Reloader(self._picker, control.replan)
        self._drift = DriftWatch(self._picker, settings.config_file, self._metrics)
        own = {
            "decision-file": self._decision_file,
            "decision-lines": DecisionLines() if settings.records.logs else None,
            "drift": self._drift,
            "history": HistoryPages(lambda: self._reloader.log),
            "tracing": tracing,
        }
        for name, hook_object in reversed(own.items()):
            if hook_object is not None:
                self._hooks.register(hook_object, name)
        columns = None if control.handover is None else SharedColumns(table, sends=control.handover.number == 0)
        self._exchange = Exchange(new_origin(), clock, self._recorder, columns)
        self._fleet = self._picker.fleet = FleetLink(self._exchange)
        self._overload = OverloadWatch(self._memory, self._registry)
        self._board = HealthBoard()
        self._readiness = Readiness(control.lifecycle, self._board, self._remarks)
        self._metrics.ready.set_function(lambda: self._readiness.is_ready)
        table.on_stand_by.append(partial(self._readiness.set_reason, Cause.STAND_BY))
        control.lifecycle.on_entered(self._phase_entered)
        self._registry.register(PoolGauges(settings.pool_name, lambda: table.generation, clock, settings.metrics_staleness_seconds))
        self._count_events("endpick_polls", "Polls of endpoints, by outcome.", self._picker.polls.snapshot)
        self._count_events("endpick_fleet_messages", "Messages of other pickers, by what became of them.", self._exchange.events)
        self._count_events("endpick_fleet_bytes", "Bytes of messages between pickers.", self._fleet.sizes)
        self._metrics.fleet_peers.set_function(lambda: len(self._exchange.peers))
        self._metrics.fleet_connected.set_function(lambda: self._fleet.is_connected)
        self._count_events("endpick_decision_records", "Decision records by outcome: recorded, shown or dropped.", self._records.counts)
        log_uncaught_errors(asyncio.get_running_loop(), self._metrics.uncaught)

    async def open_health_and_metrics(self) -> tuple[Server, int, int]:
        settings = self._settings
        exposition = Exposition(self._registry, self._services.registry, self._picker.instances, self._recorder)
        page: Collector = exposition
        for metrics_filter in self._services.metrics_filters:
            page = FilteredMetrics(page, metrics_filter)
        access = self._picker.metrics_access if settings.metrics_auth else None
        pages = MetricsPages(page, exposition.gather, self._readiness.report, access)
        application = pages.application(self._admin_api())
        admin = AdminServer(application, settings.metrics_host, settings.metrics_port, settings.metrics_tls)
        metrics_port = await _start(self._stack, admin)
        health = open_server("h2", settings.health, health_methods(self._board))
        health_port = await _start(self._stack, health)
        self._count_events("endpick_health_events", "Events on the gRPC health port.", health.counters.snapshot)
        return health, health_port, metrics_port

    def _admin_api(self) -> AdminAPI:
        sources = Sources(self._picker, self._records, self._metrics, lambda: self._drift.drift)
        pages, token_file = HookPages(self._hook_faults), self._settings.admin_token_file
        self._hook_faults.report(self._hooks.call("endpick_admin_pages", pages=pages))
        try:
            return AdminAPI(sources, pages.routes, token_file)
        except OSError as error:
            message = f"the token file {token_file} cannot be read: {error.strerror}"
            raise StartRefused(Diagnostic(Code.E0808, message, help="name a readable file with --admin-token-file")) from error

    def watch_event_loop(self) -> None:
        watchdog = Watchdog(self._settings.watchdog, self._metrics, partial(self._readiness.set_reason, Cause.EVENT_LOOP))
        self._stack.callback(watchdog.stop)
        watchdog.start()

    async def start_picker(self) -> None:
        self._stack.push_async_callback(self._picker.stop)
        await unless(self._control.stop, self._picker.start())
        self._reloader.log.append(ReloadEntry(time.time(), Trigger.START, "", plan_hash(self._plan), ReloadResult.APPLIED))
        self._show_plan()

    async def start_hooks(self) -> None:
        self._stack.push_async_callback(self._stop_hooks)
        _refuse_failures(await self._hooks.call_awaited("endpick_started", host=view_of(self._picker.deployment)))
        self._stack.callback(self._overload.stop)
        self._overload.start()
        self._records.start()
        self._stack.push_async_callback(asyncio.to_thread, self._records.stop)

    def make_server(self) -> Server:
        counters = SessionCounters()
        sessions = session_factory(self._picker.director, self._settings.sessions, counters, self._memory)
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
            await unless(self._control.stop, gateway.start(ext_proc_port, partial(self._readiness.set_reason, Cause.GATEWAY)))

    async def reload_until_stopped(self) -> None:
        control, watched = self._control, self._settings.watched_config
        tasks = [asyncio.ensure_future(self._reload_on_request())]
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

    async def drain(self, server: Server, health: Server) -> None:
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
        refused = await self._picker.gate.shut_down()
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
            before = self._picker.deployment
            entry = await self._reloader.reload(self._control.trigger)
            self._metrics.reloads.labels(entry.result.value).inc()
            self._show_plan()
            if self._picker.deployment is before:
                await self._drift.check()  # the file has changed
            else:
                failures = await self._hooks.call_awaited("endpick_reloaded", host=view_of(self._picker.deployment))
                self._hook_faults.report(failures, Code.E0705)

    async def _stop_hooks(self) -> None:
        failures = await self._hooks.call_awaited("endpick_stopping", host=view_of(self._picker.deployment))
        self._hook_faults.report(failures, Code.E0704)

    async def _follow_endpoints(self) -> None:
        while True:
            usable = has_usable_endpoint(self._picker.table.generation)
            self._readiness.set_reason(Cause.ENDPOINTS, "" if usable else "no endpoint is healthy, degraded or probing")
            await asyncio.sleep(_ENDPOINTS_SECONDS)

    def _count_events(self, name: str, documentation: str, counts: Callable[[], Mapping[str, int]]) -> None:
        self._registry.register(EventCounts(name, documentation, counts))

    def _flow_control_metrics(self) -> FlowControlMetrics:
        settings = self._settings
        combinations = detailed_combinations(settings.max_metric_combinations)
        return FlowControlMetrics(self._registry, settings.pool_name, combinations, self._metrics.overflows.inc)

    def _remarks(self) -> tuple[str, ...]:
        generation = self._picker.table.generation
        plugins, endpoints = left_out_now(self._picker.instances()), unwell_endpoints(generation)
        return (
            *self._overload.remarks(),
            *plugins,
            *endpoints,
            *self._fleet.remarks(),
            *self._records.remarks(),
            *(() if self._decision_file is None else self._decision_file.remarks()),
            *self._drift.drift.remarks(),
        )

    def _phase_entered(self, entered: Phase) -> None:
        for phase in Phase:
            self._metrics.phase.labels(phase.value).set(phase is entered)
        if entered is Phase.DRAINING:
            self._picker.table.is_ending.set()

    def _show_plan(self) -> None:
        self._metrics.plan_info.clear()
        self._metrics.plan_info.labels(plan_hash(self._picker.deployment.plan)).set(1)
        self._metrics.plugin_info.clear()
        self._metrics.circuits.clear()
        for instance in self._picker.instances():
            self._metrics.circuits.labels(instance.name, instance.type).set(instance.breaker.state)
            self._metrics.plugin_info.labels(instance.name, instance.type, instance.distribution, instance.version).set(1)


def _new_memory(limit_bytes: int) -> Memory:
    memory = Memory(limit_bytes)
    memory.measure()
    if memory.stage is not OverloadStage.NORMAL:
        message = f"--max-memory {limit_bytes >> 20}Mi leaves no memory for requests: endpick itself takes {memory.resident() >> 20} MiB"
        raise StartRefused(Diagnostic(Code.E0807, message, help="allow more"))
    return memory


def _refuse_failures(failures: Iterable[Failure]) -> None:
    diagnostics = [failure.diagnostic(Code.E0706 if failure.late_seconds is None else Code.E0703) for failure in failures]
    if diagnostics:
        raise StartRefused(*diagnostics)


async def _start(stack: AsyncExitStack, server: Server | AdminServer) -> int:
    port = await started_port(server)
    stack.push_async_callback(server.stop)
    return port
