"""One serving process: starts its parts in order, serves until the caller stops it, and stops the parts in reverse order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client.registry import CollectorRegistry

from endpick.api.access import Access
from endpick.api.hooks import HostServices, HostView
from endpick.data.collection import CollectionSettings
from endpick.data.table import MAX_ENDPOINTS, EndpointTable
from endpick.diagnostics import Code, Diagnostic
from endpick.extproc.session import SessionSettings, session_factory
from endpick.extproc.stream import SessionCounters
from endpick.host.boundary import left_out_now
from endpick.host.breaker import BreakerSettings
from endpick.host.planning.plan import Plan, PlanOutcome
from endpick.requests.director import Director
from endpick.requests.memory import STAGE_BOUNDS, MemoryAccount, OverloadStage
from endpick.requests.model import MAX_NAME_CHARACTERS
from endpick.requests.waiting import WaitingRoom
from endpick.serve.active_plan import ActivePlan, WatchedFile, reload_once
from endpick.serve.admin import AdminServer, admin_pages
from endpick.serve.admin_limits import AdminLimits
from endpick.serve.bodies.reader import LargeBodies, LargeBodySettings
from endpick.serve.compile import declared_keys
from endpick.serve.decisions import DecisionObservers
from endpick.serve.deployment import Deployment, Runtime, StartRefused, deploy, document_of
from endpick.serve.exposition import MAX_SAMPLES, EventCounts, Exposition, PoolGauges
from endpick.serve.free_memory import resident_bytes
from endpick.serve.hook_circuits import HookCircuits
from endpick.serve.lifecycle import DrainTime, Lifecycle, Phase, Readiness, unless
from endpick.serve.limit_log import ADMIN, FLOW_CONTROL, SESSION, TRANSPORT, LimitLog
from endpick.serve.log_lines import LOST
from endpick.serve.metrics import EndpickMetrics, StreamMetrics
from endpick.serve.overload import OverloadWatch, available_bytes
from endpick.serve.pool_log import PoolLog
from endpick.serve.recorder import MAX_COMBINATIONS, Recorder
from endpick.serve.registry_in_parts import new_host_registry
from endpick.serve.uncaught import Uncaught, UncaughtCounts
from endpick.serve.watchdog import Watchdog, WatchdogSettings
from endpick.transport.address import ListenError, ListenSettings
from endpick.transport.health import HealthBoard, health_methods
from endpick.transport.limits import RUSH_CONNECTIONS, Limits
from endpick.transport.methods import ext_proc_methods
from endpick.transport.reflection import reflection_methods
from endpick.transport.server import Server, TransportName, open_server
from endpick.transport.tls import TlsError, TlsSettings

if TYPE_CHECKING:
    from endpick.serve.flow_control_metrics import FlowControlMetrics
    from endpick.serve.legacy import LegacyTwins

_log = logging.getLogger("endpick.serve")


HEALTH_LIMITS = Limits(
    max_connections=64,
    max_peer_share=1.0,
    reserved_descriptors=0,
    connections_flag="--grpc-health-max-connections",
    keeps_busy=False,
    rush_connections=RUSH_CONNECTIONS,
)
"""Of the port of gRPC health, which takes descriptors that the port of ext_proc leaves."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Ports, intervals and limits of one serving process; defaults are llm-d's where llm-d has them."""

    ext_proc: ListenSettings = field(default_factory=ListenSettings)
    health: ListenSettings = field(default_factory=lambda: ListenSettings(port=9003, limits=HEALTH_LIMITS))
    metrics_host: str = ""
    metrics_port: int = 9090
    metrics_limits: AdminLimits = field(default_factory=AdminLimits)
    metrics_tls: TlsSettings | None = None
    metrics_staleness_seconds: float = 2.0
    """Older values do not count in the pool's gauges."""
    transport: TransportName = "h2"
    pool_name: str = "endpick"
    """Label `name` of the pool's gauges."""
    emits_scores: bool = False
    """Whether the gateway is told what each candidate scored."""
    refresh_metrics_interval_seconds: float = 0.05
    idle_metrics_interval_seconds: float = 1.0
    max_endpoints: int = MAX_ENDPOINTS
    """Of the pool; those that the discovery names beyond are left out."""
    max_name_characters: int = MAX_NAME_CHARACTERS
    """Of a model, a cache salt and a fairness id."""
    discovery_timeout_seconds: float = 60.0
    """How long start-up waits for the discovery to report the endpoints of the pool."""
    drain_timeout_seconds: float = 30.0
    """How long requests are still taken after SIGTERM, so that gateways have time to notice that this process is going."""
    finish_timeout_seconds: float = 30.0
    """How long streams may finish after that; also how long instances that a reload left behind wait for the requests that use them."""
    sessions: SessionSettings = field(default_factory=SessionSettings)
    """What holds of every ext_proc stream."""
    decision_sampling_ratio: float = 0.01
    """Share of the decisions that hook objects are shown, 0 to 1."""
    max_metric_combinations: int = MAX_COMBINATIONS
    """See `CombinationLimit`."""
    max_metric_samples: int = MAX_SAMPLES
    """Of one instance of a plugin, on a page."""
    legacy_metrics: bool = False
    """Whether `/metrics` repeats llm-d's families under the names of before August 2026."""
    grpc_stream_metrics: bool = False
    """Whether ext_proc streams are counted and timed."""
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    """When a plugin that fails, or keeps the event loop busy, is left out."""
    watchdog: WatchdogSettings = field(default_factory=WatchdogSettings)
    """When the event loop counts as standing still."""
    large_bodies: LargeBodySettings = field(default_factory=LargeBodySettings)
    """Which bodies are parsed in another process, and what that may cost."""
    max_memory_bytes: int = field(default_factory=available_bytes)
    """What the process may use; the stages of overload are shares of it."""
    watched_config: WatchedFile | None = None
    """The configuration file, if a change of it is to be served; SIGHUP reloads in any case."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports that a serving process listens on; also those that the system chose."""

    ext_proc: int
    health: int
    metrics: int


@dataclass(slots=True)
class Control:
    """What the caller of `serve` controls while it runs."""

    replan: Callable[[], PlanOutcome]
    """Reads the configuration again; called in a thread."""
    lifecycle: Lifecycle
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    hasten: asyncio.Event = field(default_factory=asyncio.Event)
    """Ends the drain time before it is over; has no effect before `stop`."""
    reload: asyncio.Event = field(default_factory=asyncio.Event)
    uncaught: Uncaught = field(default_factory=Uncaught)
    """What plugins do where no call of endpick's stands; installed by the owner of the process."""


async def serve(plan: Plan, settings: ServeSettings, control: Control, started: Callable[[Ports], None]) -> None:
    """Serve a plan until `control.stop` is set.

    Args:
        plan: Proven by `make_plan`.
        settings: Ports, intervals and limits.
        control: Set by signal handlers or a test.
        started: Called with the bound ports once requests are answered.

    Raises:
        StartRefused: a port, a plugin, the discovery or a hook object would not start.
        StoppedWhileStarting: `control.stop` was set before requests could be served.
        ExceptionGroup: plugins that would not stop.
    """
    async with AsyncExitStack() as stack:
        registry = new_host_registry()
        metrics = EndpickMetrics(registry)
        services = HostServices(time.monotonic, registry)
        _refuse_if_any(plan.hooks.configure(services))
        recorder = Recorder(metrics, services.clock, settings.max_metric_combinations)
        table = EndpointTable(services.clock, declared_keys(plan), recorder.undeclared_access, settings.max_endpoints)
        pool_log = PoolLog(table, metrics, services.clock)
        stack.callback(pool_log.stop)
        circuits = HookCircuits(plan.hooks, settings.breaker, metrics, services.clock)
        table.rules.configure(plan.models)
        observers = DecisionObservers(plan.hooks, settings.decision_sampling_ratio, circuits)
        runtime = Runtime(services, table, recorder, observers.watched, settings.breaker)
        collection = CollectionSettings(settings.refresh_metrics_interval_seconds, settings.idle_metrics_interval_seconds)
        current = ActivePlan(runtime, collection, settings.finish_timeout_seconds)

        board = HealthBoard()
        control.lifecycle.on_entered(lambda phase: _show_phase(metrics, phase))
        account = _new_account(settings.max_memory_bytes)
        overload = OverloadWatch(account, current.all_instances, recorder, registry)
        readiness = Readiness(
            control.lifecycle, board, lambda: (*overload.remarks(), *left_out_now(current.instances()), *circuits.remarks())
        )
        table.on_stand_by.append(readiness.stand_by)
        control.lifecycle.on_entered(lambda phase: table.is_ending.set() if phase is Phase.DRAINING else None)
        exposition = Exposition(registry, current.instances, recorder, control.uncaught.collector_raised, settings.max_metric_samples)
        pages = admin_pages(_with_twins(exposition) if settings.legacy_metrics else exposition, readiness.report)
        admin = AdminServer(pages, settings.metrics_host, settings.metrics_port, settings.metrics_limits, settings.metrics_tls)
        health = open_server("h2", settings.health, health_methods(board))  # which leaves probes their seats in a flood
        metrics_port = await _start(stack, admin)
        health_port = await _start(stack, health)
        watchdog = Watchdog(settings.watchdog, metrics, readiness.stalled)
        stack.callback(watchdog.stop)
        watchdog.start()
        registry.register(EventCounts("endpick_polls", "Polls of endpoints that were due, by what became of them.", current.polls.snapshot))
        registry.register(PoolGauges(settings.pool_name, lambda: table.generation, services.clock, settings.metrics_staleness_seconds))

        deployment = await unless(control.stop, deploy(plan, runtime))
        stack.push_async_callback(current.end)
        await unless(control.stop, current.begin(deployment, settings.discovery_timeout_seconds))
        _show_instances(metrics, control.uncaught, deployment)
        await _start_hooks(stack, deployment)
        stack.callback(overload.stop)
        overload.start()
        observers.start()
        stack.push_async_callback(asyncio.to_thread, observers.stop)

        access = Access(on_violation=recorder.undeclared_access)
        bodies = LargeBodies(settings.large_bodies, metrics, services.clock)
        stack.push_async_callback(bodies.stop)
        waiting = _FlowControlCounts(registry, settings, metrics)
        room = WaitingRoom(table, access, services.clock, account, waiting.begin)
        table.on_changed.append(room.something_changed)
        table.on_delivered.append(room.something_changed)
        director = Director(
            deployment.pipeline,
            table,
            recorder,
            services.clock,
            access=access,
            sent=table.sent,
            large_bodies=bodies,
            account=account,
            emits_scores=settings.emits_scores,
            rules=table.rules,
            room=room,
            max_name_characters=settings.max_name_characters,
        )
        current.on_replaced.append(lambda new: director.switch(new.pipeline))
        counters = SessionCounters()
        sessions = session_factory(director, settings.sessions, counters, account)
        if settings.grpc_stream_metrics:
            from endpick.serve.stream_metrics import measured  # noqa: PLC0415 - only where streams are counted

            sessions = measured(sessions, StreamMetrics(registry), services.clock)
        methods = ext_proc_methods(sessions) | health_methods(board)
        server = open_server(settings.transport, settings.ext_proc, methods | reflection_methods(methods), account)
        registry.register(EventCounts("endpick_transport_events", "Events on the ext_proc port.", server.counters.snapshot))
        registry.register(EventCounts("endpick_health_events", "Events on the port of gRPC health.", health.counters.snapshot))
        registry.register(EventCounts("endpick_admin_events", "Events on the port of metrics and /healthz.", admin.counters.snapshot))
        registry.register(UncaughtCounts(control.uncaught))
        registry.register(EventCounts("endpick_log_lines", "Log lines that could not be written at once.", LOST.snapshot))
        registry.register(EventCounts("endpick_session_events", "Events in ext_proc streams.", counters.snapshot))
        registry.register(EventCounts("endpick_decision_records", "Decisions that were to be shown to hook objects.", observers.counts))
        ext_proc_port = await _start(stack, server)
        told = LimitLog(
            {
                TRANSPORT: server.counters.snapshot,
                ADMIN: admin.counters.snapshot,
                SESSION: counters.snapshot,
                FLOW_CONTROL: waiting.by_outcome,
            },
            services.clock,
        )
        stack.callback(told.stop)
        told.start()

        control.lifecycle.enter(Phase.SERVING)
        started(Ports(ext_proc_port, health_port, metrics_port))
        await _reload_until_stopped(plan, settings, control, current, runtime, metrics)
        await _end(control, settings, server, health, metrics, room)


def _with_twins(exposition: Exposition) -> LegacyTwins:
    from endpick.serve.legacy import LegacyTwins  # noqa: PLC0415 - only where the names of before are asked for

    return LegacyTwins(exposition)


class _FlowControlCounts:
    """The metrics of flow control, which are there from the moment in which a configuration has it."""

    def __init__(self, registry: CollectorRegistry, settings: ServeSettings, metrics: EndpickMetrics) -> None:
        self._registry = registry
        self._settings = settings
        self._overflowed = metrics.overflows.inc
        self._begun: FlowControlMetrics | None = None

    def begin(self) -> FlowControlMetrics:
        from endpick.serve.flow_control_metrics import FlowControlMetrics  # noqa: PLC0415 - only where requests may wait

        self._begun = FlowControlMetrics(self._registry, self._settings.pool_name, self._settings.max_metric_combinations, self._overflowed)
        return self._begun

    def by_outcome(self) -> dict[str, int]:
        return {} if self._begun is None else self._begun.by_outcome()


async def _end(
    control: Control, settings: ServeSettings, server: Server, health: Server, metrics: EndpickMetrics, room: WaitingRoom
) -> None:
    """Take requests until gateways have noticed that this process is going, tell those that still wait, let open streams finish."""
    control.lifecycle.enter(Phase.DRAINING)
    _log.info("draining: new requests are still served", extra={"timeout_seconds": settings.drain_timeout_seconds})
    watch = DrainTime(server, health, metrics.streams_while_draining.inc)
    reason = await watch.wait(settings.drain_timeout_seconds, control.hasten)
    control.lifecycle.enter(Phase.FINISHING)
    open_streams = server.counters.streams_active
    told = await room.shut_down()
    _log.info(
        "finishing",
        extra={"reason": reason, "open_streams": open_streams, "waiting_told": told, "timeout_seconds": settings.finish_timeout_seconds},
    )
    await server.drain(settings.finish_timeout_seconds)


def _new_account(limit_bytes: int) -> MemoryAccount:
    own = resident_bytes()
    if own >= limit_bytes * STAGE_BOUNDS[OverloadStage.RELEASING].ends:
        needed = f"endpick itself takes {own >> 20} MiB"
        raise StartRefused(
            Diagnostic(Code.E0807, f"--max-memory {limit_bytes >> 20}Mi leaves no memory for requests: {needed}", help="allow more")
        )
    return MemoryAccount(limit_bytes, own)


def _show_phase(metrics: EndpickMetrics, entered: Phase) -> None:
    for phase in Phase:
        metrics.phase.labels(phase.value).set(phase is entered)


def _refuse_if_any(diagnostics: tuple[Diagnostic, ...]) -> None:
    if diagnostics:
        raise StartRefused(*diagnostics)


async def _start(stack: AsyncExitStack, server: Server | AdminServer) -> int:
    port = await _listening(server.start())
    stack.push_async_callback(server.stop)
    return port


async def _listening(binding: Awaitable[int]) -> int:
    try:
        return await binding
    except ListenError as problem:
        raise StartRefused(Diagnostic(Code.E0801, str(problem), help=problem.advice)) from problem
    except TlsError as problem:
        advice = "tls.crt and tls.key under --cert-path, and the --client-ca-file, must be PEM files that belong together"
        raise StartRefused(Diagnostic(Code.E0802, str(problem), help=advice)) from problem


async def _start_hooks(stack: AsyncExitStack, deployment: Deployment) -> None:
    plugins = {name: instance.plugin for name, instance in deployment.instances.items()}
    host = HostView(document_of(deployment.plan), plugins)
    hooks = deployment.plan.hooks
    _refuse_if_any(await hooks.startup(host))

    async def shut_down() -> None:
        for diagnostic in await hooks.shutdown(host):
            _log.error(diagnostic.message, extra={"code": str(diagnostic.code)})

    stack.push_async_callback(shut_down)


def _show_instances(metrics: EndpickMetrics, uncaught: Uncaught, deployment: Deployment) -> None:
    uncaught.plugins_are(deployment.instances.values(), deployment.plan.hooks.files)
    metrics.plugin_info.clear()
    metrics.circuits.clear()
    for instance in deployment.instances.values():
        metrics.circuits.labels(instance.name, instance.type).set(instance.breaker.state)
        metrics.plugin_info.labels(instance.name, instance.type, instance.distribution, instance.version).set(1)


async def _reload_until_stopped(
    plan: Plan, settings: ServeSettings, control: Control, current: ActivePlan, runtime: Runtime, metrics: EndpickMetrics
) -> None:
    async def reload_on_request() -> None:
        while True:
            await control.reload.wait()
            control.reload.clear()
            applied = await reload_once(current, runtime, plan.hooks, control.replan)
            metrics.reloads.labels("applied" if applied else "refused").inc()
            _show_instances(metrics, control.uncaught, current.deployment)

    tasks = [asyncio.ensure_future(reload_on_request())]
    if settings.watched_config is not None:
        tasks.append(asyncio.ensure_future(settings.watched_config.watch(control.reload.set)))
    stopped = asyncio.ensure_future(control.stop.wait())
    try:
        await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (stopped, *tasks):
            task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
