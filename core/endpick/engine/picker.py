"""One picker: a plan, its instances, the endpoint table and the data layer, assembled.

`endpick serve`, the simulation and the conformance kit all use `Picker`, so their decisions are the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from prometheus_client.registry import CollectorRegistry

from endpick.api.access import Access
from endpick.api.data import AnyKey
from endpick.api.datalayer import DataCollector, DataSource
from endpick.api.discovery import EndpointDiscovery, MetricsAccess
from endpick.api.errors import ConfigurationError
from endpick.api.hooks import HostView
from endpick.api.plugin import PluginContext
from endpick.data.collection import Collection, CollectionLoop, CollectionSettings
from endpick.data.discovery import DiscoveryTask
from endpick.data.polling import PollCounts, SourceBinding
from endpick.data.table import MAX_ENDPOINTS, EndpointTable
from endpick.diagnostics import Code
from endpick.engine.building import build_plan, carry_over, compile_collection, compile_plan, declared_keys
from endpick.engine.instances import NotStoppedError, StartRefused, instance_failed, start_instances, stop_instances, stop_quietly
from endpick.fleet.link import FleetLink
from endpick.flow_control.controller import NullReport, Report
from endpick.host.boundary import bind_wanted
from endpick.host.breaker import BreakerSettings
from endpick.host.instance import Instance, instance_logger, scope_of
from endpick.host.methods import ENDPOINT_REMOVED
from endpick.host.planning.plan import Plan, PlannedInstance
from endpick.host.planning.pool import missing_discovery
from endpick.host.telemetry import NullTelemetry, Telemetry
from endpick.requests.director import Director
from endpick.requests.memory import Memory
from endpick.requests.model import Decision, IncomingRequest
from endpick.requests.pipeline import Pipeline
from endpick.requests.record import DecisionLog
from endpick.requests.waiting import FlowGate

_log = logging.getLogger("endpick.engine")

_DATA_LAYER = frozenset({DataSource, DataCollector})


@dataclass(frozen=True, slots=True)
class PickerSettings:
    """How a picker runs its plan.

    Attributes:
        is_offline: Discovery and the sources that ask other servers do not run, and are not started. The caller fills the table.
        finish_timeout_seconds: How long instances that a reload replaced keep running, for requests in flight.
        max_endpoints: The table ignores further endpoints.
    """

    is_offline: bool = False
    collection: CollectionSettings = field(default_factory=CollectionSettings)
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    discovery_timeout_seconds: float = 60.0
    finish_timeout_seconds: float = 30.0
    max_endpoints: int = MAX_ENDPOINTS
    emits_scores: bool = False


@dataclass(frozen=True, slots=True)
class Deployment:
    """Started instances in plan order, and their pipeline; `fresh` instances were not carried over."""

    plan: Plan
    instances: Mapping[str, Instance]
    fresh: tuple[Instance, ...]
    pipeline: Pipeline


def asks_others(instance: Instance) -> bool:
    """Return True for discoveries, and for sources that only fetch data for collectors."""
    kinds = set(instance.kinds)
    return EndpointDiscovery in kinds or (DataSource in kinds and kinds <= _DATA_LAYER)


def view_of(deployment: Deployment) -> HostView:
    """Return the view of the deployment for hook objects."""
    data = deployment.plan.config.source.data
    assert isinstance(data, Mapping), "only a mapping has a plan"
    return HostView(data, {name: instance.plugin for name, instance in deployment.instances.items()})


class Picker:
    """Decides about requests with a plan, which `replace` exchanges for another.

    Requests in flight keep the pipeline that decided about them.
    """

    def __init__(
        self,
        plan: Plan,
        settings: PickerSettings,
        *,
        clock: Callable[[], float],
        telemetry: Telemetry | None = None,
        random: Random | None = None,
        memory: Memory | None = None,
        report: Callable[[], Report] = NullReport,
        decisions: DecisionLog | None = None,
        keys: Iterable[AnyKey] = (),
        is_shared: bool | None = None,
        adapt: Callable[[Pipeline], Pipeline] = lambda pipeline: pipeline,
    ) -> None:
        """Make the endpoint table; `start` does the rest.

        `clock` gives monotonic seconds. A seeded `random` makes decisions repeatable. `report` makes the receiver of flow control's events
        when flow control is first enabled. `keys` are columns of the table besides those that the plan declares. Instances share what they
        learn if `is_shared`; by default, if the plan names a state store. `adapt` changes each compiled pipeline.
        """
        self._plan = plan
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry or NullTelemetry()
        self._random = random or Random()  # noqa: S311 - routing needs no secrets
        self._decisions = decisions
        self._is_shared = is_shared
        self._adapt = adapt
        on_violation = self._telemetry.undeclared_access
        self.memory = memory or Memory()
        columns = {key.name: key for key in (*keys, *declared_keys(plan))}
        self.table = EndpointTable(clock, columns.values(), on_violation, settings.max_endpoints)
        self.table.rules.configure(plan.models)
        self.table.on_removed.append(self._endpoint_removed)
        self._access = Access(None, on_violation)
        self._access_outside_requests = Access(None, on_violation)
        self.gate = FlowGate(self.table, self._access, clock, self.memory, report)
        self.table.on_changed.append(self.gate.something_changed)
        self.table.on_delivered.append(self.gate.something_changed)
        self.polls = PollCounts()
        self.fleet: FleetLink | None = None  # exchanges learnt state with other pickers from `start` on
        self.on_replaced: list[Callable[[Deployment], None]] = []
        self.not_polled: tuple[SourceBinding, ...] = ()
        """The sources that do not run because the picker is offline."""
        self._deployment: Deployment | None = None
        self._director: Director | None = None
        self._collection: CollectionLoop | None = None
        self._discovery: DiscoveryTask | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._ending = asyncio.Event()

    @property
    def deployment(self) -> Deployment:
        """The current deployment; `start` must have been called."""
        assert self._deployment is not None
        return self._deployment

    @property
    def director(self) -> Director:
        """The director, which decides about requests; `start` must have been called."""
        assert self._director is not None
        return self._director

    def instances(self) -> Iterable[Instance]:
        """Return the current instances; none before `start`."""
        return () if self._deployment is None else self._deployment.instances.values()

    async def metrics_access(self, token: str) -> MetricsAccess:
        """Ask the discovery about a client of /metrics. Raises ConnectionError before the start of discovery."""
        if self._discovery is None:
            raise ConnectionError("discovery has not started")
        return await self._discovery.plugin.metrics_access(token)

    async def start(self) -> None:
        """Start instances, discovery and collection. Raises StartRefused; `stop` must be called in that case, too."""
        deployment = await self.prepare(self._plan)
        self._deployment = deployment
        self._director = Director(
            deployment.pipeline,
            self.table,
            self._telemetry,
            self._clock,
            random=Random(self._random.random()),  # noqa: S311
            access=self._access,
            sent=self.table.sent,
            memory=self.memory,
            emits_scores=self._settings.emits_scores,
            rules=self.table.rules,
            gate=self.gate,
            decisions=self._decisions,
        )
        if not self._settings.is_offline:
            await self._discover(deployment)
        self._collection = self._new_collection(deployment)
        self._collection.start()
        if self.fleet is not None:
            await self.fleet.start(deployment.plan.fleet, deployment.instances)

    def decide(self, incoming: IncomingRequest) -> Decision | Awaitable[Decision]:
        """Decide about a request; the decision is awaitable if the request has to wait."""
        return self.director.decide(incoming)

    async def prepare(self, plan: Plan) -> Deployment:
        """Build and start a plan, reusing unchanged instances. Raises StartRefused after stopping new ones."""
        old = self._deployment
        carried = {} if old is None else carry_over(old.plan, old.instances, plan)
        is_shared = plan.fleet is not None if self._is_shared is None else self._is_shared
        built = build_plan(plan, lambda planned: self._context(planned, is_shared=is_shared), carried, self._settings.breaker)
        if isinstance(built, tuple):
            raise StartRefused(*built)
        fresh = tuple(instance for instance in built.values() if instance.name not in carried)
        running = [instance for instance in fresh if self._runs(instance)]
        await start_instances(running)
        try:
            pipeline = self._adapt(compile_plan(plan, built, self._telemetry))
        except BaseException:
            await stop_quietly(running)
            raise
        return Deployment(plan, built, fresh, pipeline)

    async def replace(self, new: Deployment) -> None:
        """Use `new`, made by `prepare`, from the next request on; unused instances stop after the finish timeout."""
        old = self.deployment
        collection = self._new_collection(new)  # first: if it fails, the old deployment keeps serving
        self.table.declare(declared_keys(new.plan))
        self.table.rules.configure(new.plan.models)
        self._deployment = new
        self.director.switch(new.pipeline)
        if self.fleet is not None:
            self.fleet.change(new.plan.fleet, new.instances)
        for replaced in self.on_replaced:
            replaced(new)
        try:
            await self._replace_collection(collection)
            await self._replace_discovery(old, new)
        finally:  # also if the process ends during the reload
            self._begin_to_retire(_left_behind(old, new))

    async def discard(self, prepared: Deployment) -> None:
        """Stop the new instances of a deployment that is not used; logs failures."""
        await stop_quietly(filter(self._runs, prepared.fresh))

    async def stop(self) -> None:
        """Stop everything, also after a failed start. Raises ExceptionGroup for parts that did not stop."""
        if self.fleet is not None and self._deployment is not None:
            await self.fleet.stop()
        problems: list[Exception] = []
        for data_layer in (self._discovery, self._collection):
            if data_layer is not None:
                try:
                    await data_layer.stop()
                except Exception as problem:
                    problems.append(NotStoppedError.of(f"the {type(data_layer).__name__}", problem))
        self._ending.set()
        serving = [instance for instance in self.instances() if self._runs(instance)]
        outcomes = await asyncio.gather(*self._retiring, stop_instances(serving), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, ExceptionGroup):
                problems += outcome.exceptions
            elif isinstance(outcome, BaseException):
                raise outcome
        if problems:
            raise ExceptionGroup("endpick did not stop cleanly", problems)

    def _context(self, planned: PlannedInstance, *, is_shared: bool) -> PluginContext:
        return PluginContext(
            Random(self._random.random()),  # noqa: S311
            self._clock,
            instance_logger(planned.loaded, planned.name),
            CollectorRegistry(),
            self.table.writer(scope_of(planned.name, planned.subscriptions)),
            is_shared=is_shared,
        )

    def _runs(self, instance: Instance) -> bool:
        return not (self._settings.is_offline and asks_others(instance))

    async def _discover(self, deployment: Deployment) -> None:
        self._discovery = self._new_discovery(deployment)
        if self._discovery is None:
            missing = missing_discovery(deployment.plan.config)
            assert missing is not None
            raise StartRefused(missing)
        self._discovery.start()
        try:
            await self._discovery.wait_ready(self._settings.discovery_timeout_seconds)
        except ConfigurationError as problem:
            failure = instance_failed(Code.E0706, self._discovery.instance, f"cannot discover endpoints: {problem}")
            raise StartRefused(failure) from problem
        except TimeoutError as problem:
            failure = instance_failed(Code.E0703, self._discovery.instance, str(problem))
            raise StartRefused(failure) from problem

    def _begin_to_retire(self, instances: tuple[Instance, ...]) -> None:
        running = tuple(filter(self._runs, instances))
        if running:
            task = asyncio.get_running_loop().create_task(self._retire(running))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def _retire(self, instances: tuple[Instance, ...]) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), self._settings.finish_timeout_seconds)
        try:
            await stop_instances(instances)
        except ExceptionGroup as problems:
            if self._ending.is_set():
                raise
            _log.error("instances of an earlier configuration did not stop", exc_info=problems)

    def _new_collection(self, deployment: Deployment) -> CollectionLoop:
        collection = compile_collection(deployment.plan, deployment.instances)
        running = tuple(binding for binding in collection.bindings if self._runs(binding.source))
        self.not_polled = tuple(binding for binding in collection.bindings if binding not in running)
        polled = Collection(running, collection.tolerated_age_seconds)
        return CollectionLoop(self.table, polled, self._settings.collection, self._telemetry, self.polls)

    async def _replace_collection(self, new: CollectionLoop) -> None:
        if self._collection is not None:
            await self._collection.stop()
        self._collection = new
        self._collection.start()

    def _new_discovery(self, deployment: Deployment) -> DiscoveryTask | None:
        name = deployment.plan.discovery
        return None if name is None else DiscoveryTask(deployment.instances[name], self.table, self._telemetry)

    async def _replace_discovery(self, old: Deployment, new: Deployment) -> None:
        # Without a new discovery, the pool stays as it is.
        if self._settings.is_offline or _discovery_plugin(old) is _discovery_plugin(new):
            return
        if self._discovery is not None:
            await self._discovery.stop()
        self._discovery = self._new_discovery(new)
        if self._discovery is not None:
            self._discovery.start()

    def _endpoint_removed(self, name: str) -> None:
        for instance in self.instances():
            step = bind_wanted(instance, ENDPOINT_REMOVED, self._telemetry)
            if step is not None:
                step.run(self._access_outside_requests, name)


def _left_behind(old: Deployment, new: Deployment) -> tuple[Instance, ...]:
    kept = {id(instance.plugin) for instance in new.instances.values()}
    return tuple(instance for instance in old.instances.values() if id(instance.plugin) not in kept)


def _discovery_plugin(deployment: Deployment) -> object:
    name = deployment.plan.discovery
    return None if name is None else deployment.instances[name].plugin
