"""Runs the current deployment and replaces it at a reload; requests in flight keep their pipeline."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from endpick.api.access import Access
from endpick.api.discovery import MetricsAccess
from endpick.api.errors import ConfigurationError
from endpick.api.plugin import Plugin
from endpick.data.collection import CollectionLoop, CollectionSettings
from endpick.data.discovery import DiscoveryTask
from endpick.data.polling import PollCounts
from endpick.diagnostics import Code, Diagnostic
from endpick.host.boundary import Step
from endpick.host.failures import PLUGIN_ERRORS, describe_error
from endpick.host.hooks import HookRegistry
from endpick.host.instance import Instance
from endpick.host.kinds import ExtensionPoint
from endpick.host.planning.changes import changes, plan_hash
from endpick.host.planning.plan import Plan, PlanOutcome
from endpick.host.planning.pool import missing_discovery
from endpick.serve.deployment import (
    Deployment,
    NotStoppedError,
    Runtime,
    StartRefused,
    carry_over,
    compile_collection,
    declared_keys,
    deploy,
    document_of,
    instance_failed,
    left_behind,
    stop_instances,
    stop_quietly,
)
from endpick.serve.reload_log import ReloadEntry, ReloadLog, ReloadResult, Trigger

_log = logging.getLogger("endpick.serve")

PLANNING_SECONDS = 60.0


class ActivePlan:
    """Runs the data layer of the current deployment and replaces it at a reload."""

    def __init__(self, runtime: Runtime, collection_settings: CollectionSettings, finish_timeout_seconds: float) -> None:
        self._runtime = runtime
        self._collection_settings = collection_settings
        self._finish_timeout_seconds = finish_timeout_seconds
        self._deployment: Deployment | None = None
        self._collection: CollectionLoop | None = None
        self._discovery: DiscoveryTask | None = None
        self.on_replaced: list[Callable[[Deployment], None]] = []
        self.polls = PollCounts()
        self._access = Access(None, runtime.telemetry.undeclared_access)
        self._retiring: set[asyncio.Task[None]] = set()
        self._ending = asyncio.Event()
        runtime.table.on_removed.append(self._endpoint_removed)

    @property
    def deployment(self) -> Deployment:
        """The current one; requires `begin`."""
        assert self._deployment is not None
        return self._deployment

    def instances(self) -> Iterable[Instance]:
        """The current instances; none before `begin`."""
        return () if self._deployment is None else self._deployment.instances.values()

    async def metrics_access(self, token: str) -> MetricsAccess:
        """Asks the discovery. Raises ConnectionError before there is one."""
        if self._discovery is None:
            raise ConnectionError("discovery has not started")
        return await self._discovery.plugin.metrics_access(token)

    async def begin(self, deployment: Deployment, discovery_timeout_seconds: float) -> None:
        """Discover the endpoints and collect their data. Raises StartRefused."""
        self._deployment = deployment
        self._discovery = self._new_discovery(deployment)
        if self._discovery is None:
            missing = missing_discovery(deployment.plan.config)
            assert missing is not None
            raise StartRefused(missing)
        self._discovery.start()
        try:
            await self._discovery.wait_ready(discovery_timeout_seconds)
        except ConfigurationError as problem:
            failure = instance_failed(Code.E0706, self._discovery.instance, f"cannot discover endpoints: {problem}")
            raise StartRefused(failure) from problem
        except TimeoutError as problem:
            failure = instance_failed(Code.E0703, self._discovery.instance, str(problem))
            raise StartRefused(failure) from problem
        self._collection = self._new_collection(deployment)
        self._collection.start()

    async def replace(self, new: Deployment) -> None:
        """Serve `new` from the next request on; unused instances stop after the finish timeout."""
        old = self.deployment
        collection = self._new_collection(new)  # first: if it fails, the old deployment keeps serving
        self._runtime.table.declare(declared_keys(new.plan))
        self._runtime.table.rules.configure(new.plan.models)
        self._deployment = new
        for replaced in self.on_replaced:
            replaced(new)
        try:
            await self._replace_collection(collection)
            await self._replace_discovery(old, new)
        finally:  # also if the process ends during the reload
            self._begin_to_retire(left_behind(old, new))

    async def end(self) -> None:
        """Stop everything. Raises ExceptionGroup for parts that did not stop."""
        problems: list[Exception] = []
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
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def _retire(self, instances: tuple[Instance, ...]) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), self._finish_timeout_seconds)
        try:
            await stop_instances(instances)
        except ExceptionGroup as problems:
            if self._ending.is_set():
                raise
            _log.error("instances of an earlier configuration did not stop", exc_info=problems)

    def _new_collection(self, deployment: Deployment) -> CollectionLoop:
        bindings = compile_collection(deployment.plan, deployment.instances)
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
        # Without a new discovery, the pool stays as it is.
        if _discovery_plugin(old) is _discovery_plugin(new):
            return
        if self._discovery is not None:
            await self._discovery.stop()
        self._discovery = self._new_discovery(new)
        if self._discovery is not None:
            self._discovery.start()

    def _endpoint_removed(self, name: str) -> None:
        for instance in self.instances():
            if type(instance.plugin).endpoint_removed is not Plugin.endpoint_removed:
                # Settles: also called while the instance's circuit is open.
                step = Step(
                    instance.plugin.endpoint_removed, instance, ExtensionPoint.ENDPOINT_REMOVED, self._runtime.telemetry, settles=True
                )
                step.run(self._access, name)


def _discovery_plugin(deployment: Deployment) -> object:
    name = deployment.plan.discovery
    return None if name is None else deployment.instances[name].plugin


class Reloader:
    """Deploys the configuration again if it is valid and does something else; `log` remembers each reload."""

    def __init__(self, current: ActivePlan, runtime: Runtime, hooks: HookRegistry, replan: Callable[[], PlanOutcome]) -> None:
        """`replan` is called in a thread."""
        self.log = ReloadLog()
        self._current = current
        self._runtime = runtime
        self._hooks = hooks
        self._replan = replan

    async def reload(self, trigger: Trigger) -> ReloadEntry:
        """If the new configuration is refused, the old one keeps serving, and the reason is logged."""
        attempt = _Attempt(self._current.deployment.plan)
        before = self._current.deployment
        try:
            result = await self._reload(attempt, trigger)
        except StartRefused as refusal:
            attempt.diagnostics = tuple(refusal.diagnostics)
            _log_diagnostics(refusal.diagnostics)
            _log.error("configuration refused; the old one keeps serving", extra={"trigger": trigger.value})
            result = ReloadResult.REFUSED
        except PLUGIN_ERRORS as error:
            attempt.problem = describe_error(error)
            serves = "old" if self._current.deployment is before else "new"
            _log.error("a reload failed: %s; the %s configuration serves", attempt.problem, serves, exc_info=error)
            result = ReloadResult.REFUSED
        entry = attempt.entry(trigger, result)
        self.log.append(entry)
        return entry

    async def _reload(self, attempt: _Attempt, trigger: Trigger) -> ReloadResult:
        try:
            async with asyncio.timeout(PLANNING_SECONDS) as limit:
                outcome = await asyncio.to_thread(self._replan)
        except TimeoutError:
            if limit.expired():
                raise TimeoutError(f"the plugins of the new configuration are not loaded within {PLANNING_SECONDS:g} s") from None
            raise
        if outcome.plan is None:
            raise StartRefused(*outcome.diagnostics)
        attempt.new, attempt.diagnostics = outcome.plan, outcome.diagnostics
        _log_diagnostics(outcome.diagnostics)
        told = {"trigger": trigger.value, "old_hash": plan_hash(attempt.old), "new_hash": plan_hash(attempt.new)}
        if told["old_hash"] == told["new_hash"] and self._carries_everything(attempt.new):
            _log.info("configuration unchanged", extra=told)
            return ReloadResult.UNCHANGED
        new = await self._admitted(attempt.new)
        if new.plan.hooks.names != self._hooks.names:
            _log.warning("a change of `hooks:` takes effect at the next start only")
        try:
            await self._current.replace(new)
        except BaseException:
            if self._current.deployment is not new:
                await stop_quietly(new.fresh)
            raise
        told["changes"] = "; ".join(map(str, changes(attempt.old, attempt.new)))
        built = {"carried_over": len(new.instances) - len(new.fresh), "built": len(new.fresh)}
        _log.info("configuration replaced", extra={**told, **built})
        return ReloadResult.APPLIED

    def _carries_everything(self, plan: Plan) -> bool:
        serving = self._current.deployment
        return len(carry_over(serving.plan, serving.instances, plan)) == len(plan.instances)

    async def _admitted(self, plan: Plan) -> Deployment:
        """Raises StartRefused, also for a veto of a hook object, after stopping new instances."""
        old = self._current.deployment
        new = await deploy(plan, self._runtime, old)
        async with AsyncExitStack() as unless_admitted:
            unless_admitted.push_async_callback(stop_quietly, new.fresh)
            vetoes = await self._hooks.reload(document_of(old.plan), document_of(plan))
            if vetoes:
                raise StartRefused(*vetoes)
            unless_admitted.pop_all()
        return new


@dataclass(slots=True)
class _Attempt:
    old: Plan
    new: Plan | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    problem: str = ""

    def entry(self, trigger: Trigger, result: ReloadResult) -> ReloadEntry:
        old, new = self.old, self.new
        differences = () if new is None else changes(old, new)
        new_hash = "" if new is None else plan_hash(new)
        return ReloadEntry(time.time(), trigger, plan_hash(old), new_hash, result, differences, self.diagnostics, self.problem)


def _log_diagnostics(diagnostics: Iterable[Diagnostic]) -> None:
    for diagnostic in diagnostics:
        level = logging.ERROR if diagnostic.is_error else logging.WARNING
        _log.log(level, diagnostic.message, extra={"code": str(diagnostic.code), "place": str(diagnostic.span or "")})


_FileIdentity = tuple[int, int, int]  # inode, modification time, size


@dataclass(frozen=True, slots=True)
class WatchedFile:
    """A file's identity before it was read, to notice a change during the read."""

    path: Path
    seen: _FileIdentity | None

    @classmethod
    def now(cls, path: Path) -> WatchedFile:
        """Call before reading the file."""
        return cls(path, _identity(path))

    async def watch(self, changed: Callable[[], None], interval_seconds: float = 1.0) -> None:
        """Call `changed` after each change. Polls: a ConfigMap changes by swapping a symlink."""
        seen = self.seen
        while True:
            now = _identity(self.path)
            if now is not None and now != seen:
                seen = now
                changed()
            await asyncio.sleep(interval_seconds)


def _identity(path: Path) -> _FileIdentity | None:
    """None while the file is missing, as during an editor's rename."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
