"""Holds the deployment that serves now and replaces it at a reload: swaps one reference, so requests in flight keep their pipeline."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

from endpick.api.errors import ConfigurationError
from endpick.api.plugin import Plugin
from endpick.data.announcing import Announcements
from endpick.data.collection import CollectionLoop, CollectionSettings
from endpick.data.discovery import DiscoveryTask
from endpick.data.pace import PollCounts
from endpick.diagnostics import Code, Diagnostic
from endpick.host.apart import apart
from endpick.host.circuits import late
from endpick.host.failures import CALL_FAILURES, is_the_hosts, message_of
from endpick.host.hooks import HookRegistry
from endpick.host.instance import Instance
from endpick.host.kinds import ExtensionPoint
from endpick.host.planning.plan import Plan, PlanOutcome
from endpick.host.planning.request_plugins import missing_discovery
from endpick.serve.compile import compile_collection, declared_keys
from endpick.serve.deployment import (
    Deployment,
    NotStoppedError,
    Runtime,
    StartRefused,
    deploy,
    document_of,
    instance_failed,
    left_behind,
    stop_instances,
    stop_quietly,
)

_log = logging.getLogger("endpick.serve")

PLANNING_SECONDS = 60.0
"""For a plan of what the configuration says: that of thousands of instances takes some."""
MOST_PLANNING = 3
"""Plans that do not end."""

_Identity = tuple[int, int, int]
"""Inode, time of change, size."""


class ActivePlan:
    """Runs the data layer of one deployment and hands its pipeline to requests."""

    def __init__(self, runtime: Runtime, collection_settings: CollectionSettings, finish_timeout_seconds: float) -> None:
        """Nothing runs until `begin`."""
        self._runtime = runtime
        self._collection_settings = collection_settings
        self._finish_timeout_seconds = finish_timeout_seconds
        self._deployment: Deployment | None = None
        self._collection: CollectionLoop | None = None
        self._discovery: DiscoveryTask | None = None
        self.on_replaced: list[Callable[[Deployment], None]] = []
        self.planning: set[object] = set()
        """Plans that are being made; but for one they are those that do not end."""
        self.polls = PollCounts()
        """Of all deployments."""
        self._farewells = Announcements(runtime.telemetry)
        self._retiring: dict[asyncio.Task[None], tuple[Instance, ...]] = {}
        self._ending = asyncio.Event()
        runtime.table.on_removed.append(self._forget)

    @property
    def deployment(self) -> Deployment:
        """The deployment that serves now; there is none before `begin`."""
        assert self._deployment is not None
        return self._deployment

    def instances(self) -> Iterable[Instance]:
        """The instances of the deployment that serves now; none before `begin`."""
        return () if self._deployment is None else self._deployment.instances.values()

    def all_instances(self) -> Iterable[Instance]:
        """Those, and the ones that reloads have left behind and that are not stopped yet: they still hold what they have learnt."""
        return itertools.chain(self.instances(), *self._retiring.values())

    async def begin(self, deployment: Deployment, discovery_timeout_seconds: float) -> None:
        """Discover the endpoints and collect their data for the first deployment.

        Raises:
            StartRefused: there is no discovery, or it reported nothing in time.
        """
        self._deployment = deployment
        self._discovery = self._new_discovery(deployment)
        if self._discovery is None:
            missing = missing_discovery(deployment.plan.config)
            assert missing is not None, "a plan without discovery is of a document that names none"
            raise StartRefused(missing)
        self._discovery.start()
        try:
            await self._discovery.wait_ready(discovery_timeout_seconds)
        except ConfigurationError as problem:
            what = f"cannot discover endpoints: {message_of(problem)}"
            raise StartRefused(instance_failed(Code.E0706, self._discovery.instance, what)) from problem
        except TimeoutError as problem:
            what = f"reported no endpoints within {discovery_timeout_seconds:g} s"
            raise StartRefused(instance_failed(Code.E0703, self._discovery.instance, what)) from problem
        with apart():
            self._collection = self._new_collection(deployment)
        self._collection.start()

    async def replace(self, new: Deployment) -> None:
        """Let `new` serve from the next request on. Requests in flight keep their pipeline; instances only they use are stopped later."""
        old = self.deployment
        with apart():  # before anything changes: where this fails, the old deployment serves on
            collection = self._new_collection(new)
        self._runtime.table.declare(declared_keys(new.plan))
        self._runtime.table.rules.configure(new.plan.models)
        self._deployment = new
        self._farewells.keep({id(instance.breaker): instance for instance in new.instances.values()})
        with apart():
            for replaced in self.on_replaced:  # policies are asked about what waits
                replaced(new)
        try:
            await self._replace_collection(collection)
            await self._replace_discovery(old, new)
        finally:  # also when the process ends in the middle of a reload: the instances left behind have to be stopped
            self._begin_to_retire(left_behind(old, new))

    async def end(self) -> None:
        """Stop the data layer, then every instance once, those retired earlier included; a failure does not keep the others from stopping.

        Raises:
            ExceptionGroup: what did not stop.
        """
        problems: list[Exception] = []
        self._farewells.stop()
        for data_layer in (self._discovery, self._collection):
            if data_layer is not None:
                try:
                    await data_layer.stop()
                except Exception as problem:
                    problems.append(NotStoppedError.of(f"the {type(data_layer).__name__}", problem))
        self._ending.set()
        serving = () if self._deployment is None else self._deployment.instances.values()
        outcomes = await asyncio.gather(*self._retiring, stop_instances(serving), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, ExceptionGroup):
                problems += outcome.exceptions
            elif isinstance(outcome, BaseException):
                raise outcome
        if problems:
            raise ExceptionGroup("endpick did not stop cleanly", problems)

    def _begin_to_retire(self, instances: tuple[Instance, ...]) -> None:
        if instances:
            task = asyncio.get_running_loop().create_task(self._retire(instances))
            self._retiring[task] = instances
            task.add_done_callback(self._retiring.pop)

    async def _retire(self, instances: tuple[Instance, ...]) -> None:
        """Stop instances that no new request uses: when those in flight have had their time, or at once when the process ends.

        Raises:
            ExceptionGroup: instances that did not stop while the process ends; before, they are logged.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), self._finish_timeout_seconds)
        try:
            await stop_instances(instances)
        except ExceptionGroup as problems:
            if self._ending.is_set():
                raise
            _log.error("instances of an earlier configuration did not stop", exc_info=problems)

    def _new_collection(self, deployment: Deployment) -> CollectionLoop:
        bindings = compile_collection(deployment.plan, deployment.built)
        return CollectionLoop(self._runtime.table, bindings, self._collection_settings, self._runtime.telemetry, self.polls)

    async def _replace_collection(self, new: CollectionLoop) -> None:
        if self._collection is not None:
            await self._collection.stop()
        self._collection = new
        self._collection.start()

    def _new_discovery(self, deployment: Deployment) -> DiscoveryTask | None:
        name = deployment.plan.discovery
        return None if name is None else DiscoveryTask(deployment.instances[name], self._runtime.table, self._runtime.telemetry)

    async def _replace_discovery(self, old: Deployment, new: Deployment) -> None:
        """A carried-over discovery keeps running; if `new` names none, the pool stays as it is."""
        if _discovery_plugin(old) is _discovery_plugin(new):
            return
        if self._discovery is not None:
            await self._discovery.stop()
        self._discovery = self._new_discovery(new)
        if self._discovery is not None:
            self._discovery.start()

    def _forget(self, name: str) -> None:
        for instance in self.instances():
            if type(instance.plugin).endpoint_removed is not Plugin.endpoint_removed:
                self._farewells.tell(instance, partial(self._tell_removed, instance, name))

    def _tell_removed(self, instance: Instance, name: str) -> None:
        telemetry = self._runtime.telemetry
        began = perf_counter()
        try:
            with apart():
                instance.plugin.endpoint_removed(name)
        except CALL_FAILURES as problem:
            if is_the_hosts(problem):
                raise
            telemetry.fault(instance, ExtensionPoint.ENDPOINT_REMOVED, problem)
        seconds = perf_counter() - began
        if seconds > instance.breaker.budget_seconds:
            late(instance, ExtensionPoint.ENDPOINT_REMOVED, seconds, telemetry)


def _discovery_plugin(deployment: Deployment) -> object:
    name = deployment.plan.discovery
    return None if name is None else deployment.instances[name].plugin


async def reload_once(current: ActivePlan, runtime: Runtime, hooks: HookRegistry, replan: Callable[[], PlanOutcome]) -> bool:
    """Read the configuration again and serve it; True when it serves now, False when it was refused.

    Every mistake in it is logged, and the old configuration keeps serving. So is what nothing else of the reload has caught: it would end
    the process.
    """
    before = current.deployment
    try:
        return await _reload(current, runtime, hooks, replan)
    except CALL_FAILURES as problem:
        if is_the_hosts(problem):
            raise
        serves = "old" if current.deployment is before else "new"
        if isinstance(problem, OSError):  # the surroundings failed, as where no descriptor or no room is left: a stack tells no more
            _log.error("a reload failed: %s; the %s configuration serves", message_of(problem), serves)
        else:
            _log.error("a reload failed; the %s configuration serves", serves, exc_info=problem)
        return False


async def _reload(current: ActivePlan, runtime: Runtime, hooks: HookRegistry, replan: Callable[[], PlanOutcome]) -> bool:
    outcome = await _planned(current, replan)
    if outcome is None:
        return False
    _log_all(outcome.diagnostics)
    if outcome.plan is None:
        _log.error("configuration refused; the old one keeps serving")
        return False
    try:
        new = await _admitted(current.deployment, runtime, hooks, outcome.plan)
    except StartRefused as refusal:
        _log_all(refusal.diagnostics)
        _log.error("configuration refused; the old one keeps serving")
        return False
    if new.plan.hooks.names != hooks.names:
        _log.warning("a change of `hooks:` takes effect at the next start only")
    try:
        await current.replace(new)
    except BaseException:
        if current.deployment is not new:
            await stop_quietly(new.fresh)
        raise
    _log.info("configuration replaced", extra={"carried_over": len(new.instances) - len(new.fresh), "built": len(new.fresh)})
    return True


async def _planned(current: ActivePlan, replan: Callable[[], PlanOutcome]) -> PlanOutcome | None:
    """What a thread makes of the configuration as it is now; None where that does not end: an import or a validator of a plugin waits.

    The thread stays, as Python cannot end it. A few may stay: the next reload has another one, and finds a configuration that was mended.
    """
    this = object()

    def plan() -> PlanOutcome:
        current.planning.add(this)
        try:
            return replan()
        finally:
            current.planning.discard(this)

    if len(current.planning) >= MOST_PLANNING:
        _log.error("a reload was not begun: %d before it do not end; restart endpick, the old configuration keeps serving", MOST_PLANNING)
        return None
    try:
        async with asyncio.timeout(PLANNING_SECONDS) as limit:
            return await asyncio.to_thread(plan)
    except TimeoutError:
        if not limit.expired():
            raise
        what = "a reload was given up: the plugins of the new configuration are not loaded within %g s; the old one keeps serving"
        _log.error(what, PLANNING_SECONDS)
        return None


async def _admitted(old: Deployment, runtime: Runtime, hooks: HookRegistry, plan: Plan) -> Deployment:
    """The plan deployed, with no hook object against it.

    Raises:
        StartRefused: an instance did not start, or a hook object vetoed; instances started here have been stopped again.
    """
    new = await deploy(plan, runtime, old)
    async with AsyncExitStack() as unless_admitted:
        unless_admitted.push_async_callback(stop_quietly, new.fresh)
        vetoes = await hooks.reload(document_of(old.plan), document_of(plan))
        if vetoes:
            raise StartRefused(*vetoes)
        unless_admitted.pop_all()
    return new


def _log_all(diagnostics: Iterable[Diagnostic]) -> None:
    for diagnostic in diagnostics:
        level = logging.ERROR if diagnostic.is_error else logging.WARNING
        _log.log(level, diagnostic.message, extra={"code": str(diagnostic.code), "place": str(diagnostic.span or "")})


@dataclass(frozen=True, slots=True)
class WatchedFile:
    """A file that is read, and what identified its content before: a change while it is read, or soon after, counts, too."""

    path: Path
    seen: _Identity | None

    @classmethod
    def as_it_is(cls, path: Path) -> WatchedFile:
        """The file as it is now; called before it is read."""
        return cls(path, _identity(path))

    async def watch(self, changed: Callable[[], None], interval_seconds: float = 1.0) -> None:
        """Call `changed` after each change or replacement of the file, until cancelled; a ConfigMap replaces it by swapping a link."""
        seen = self.seen
        while True:
            now = _identity(self.path)
            if now is not None and now != seen:
                seen = now
                changed()
            await asyncio.sleep(interval_seconds)


def _identity(path: Path) -> _Identity | None:
    """What changes with the file; None while there is no such file, as in the middle of an editor's rename."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
