"""Builds and starts the instances of a plan, carrying over those that the previous deployment already has."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from endpick.api.errors import ConfigurationError
from endpick.api.hooks import Document, HostServices
from endpick.api.plugin import PluginContext
from endpick.data.table import EndpointTable
from endpick.diagnostics import Code, Diagnostic, PluginReference
from endpick.host.attempt import LateError, attempt
from endpick.host.breaker import DEFAULT_SETTINGS, BreakerSettings
from endpick.host.failures import CALL_FAILURES, is_a, is_the_hosts, message_of
from endpick.host.importing import describe
from endpick.host.instance import Instance, instance_logger, scope_of
from endpick.host.planning.plan import Plan, PlannedInstance
from endpick.host.telemetry import Telemetry
from endpick.requests.pipeline import Pipeline
from endpick.serve.compile import Built, build_plan, carry_over, compile_plan
from endpick.serve.registry_in_parts import RegistryInParts

_log = logging.getLogger("endpick.serve")


@dataclass(frozen=True, slots=True)
class Runtime:
    """What all deployments of one process share."""

    services: HostServices
    table: EndpointTable
    telemetry: Telemetry
    watched: Callable[[Pipeline], Pipeline] = lambda pipeline: pipeline
    """Changes a pipeline so that hook objects are shown a sample of its decisions."""
    breaker: BreakerSettings = DEFAULT_SETTINGS
    """When an instance that fails is left out."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Started instances and the pipeline compiled from them.

    Attributes:
        plan: What was deployed.
        built: All instances by name.
        fresh: Those that this deployment built and started; the others were carried over.
        pipeline: Used by requests that arrive while this deployment is the current one.
    """

    plan: Plan
    built: Built
    fresh: tuple[Instance, ...]
    pipeline: Pipeline

    @property
    def instances(self) -> Mapping[str, Instance]:
        """All instances by name, in the order of the plan."""
        return self.built.instances


async def deploy(plan: Plan, runtime: Runtime, previous: Deployment | None = None) -> Deployment:
    """Build and start the instances that the plan needs and `previous` does not have.

    An instance of the same name, type, origin and parameters is carried over, so that what it has learnt (a prefix index) survives.

    Raises:
        StartRefused: a plugin could not be built or did not start; instances started here have been stopped again.
    """
    carried = {} if previous is None else carry_over(previous.plan, previous.built, plan)
    built = build_plan(plan, lambda planned: _context(planned, runtime), carried, runtime.breaker)
    if not isinstance(built, Built):
        raise StartRefused(*built)
    fresh = tuple(instance for instance in built.instances.values() if instance.name not in carried)
    await start_instances(fresh)
    try:
        pipeline = runtime.watched(compile_plan(plan, built, runtime.telemetry))
    except BaseException:
        await stop_quietly(fresh)
        raise
    return Deployment(plan, built, fresh, pipeline)


def _context(planned: PlannedInstance, runtime: Runtime) -> PluginContext:
    logger = instance_logger(planned.loaded, planned.name)
    columns = runtime.table.writer(scope_of(planned.name, planned.subscriptions))
    return PluginContext(random.Random(), runtime.services.clock, logger, RegistryInParts(), columns)  # noqa: S311 - routing needs no secrets


def left_behind(old: Deployment, new: Deployment) -> tuple[Instance, ...]:
    """Instances of `old` that `new` does not use any more."""
    kept = {id(instance.plugin) for instance in new.instances.values()}
    return tuple(instance for instance in old.instances.values() if id(instance.plugin) not in kept)


def document_of(plan: Plan) -> Document:
    """The configuration as it was written, for hook objects."""
    data = plan.config.source.data
    assert isinstance(data, Mapping), "a document that is no mapping has no plan"
    return data


START_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 10.0


async def start_instances(instances: Iterable[Instance], timeout_seconds: float = START_TIMEOUT_SECONDS) -> list[Instance]:
    """Start each in turn; those started before a failure are stopped again.

    Raises:
        StartRefused: an instance refused to start, failed, or took too long.
    """
    started: list[Instance] = []
    for instance in instances:
        try:
            await attempt(instance.plugin.start, timeout_seconds)
        except CALL_FAILURES as problem:
            await stop_quietly(started)
            if is_the_hosts(problem):
                raise
            raise StartRefused(_why_not_started(instance, problem, timeout_seconds)) from problem
        started.append(instance)
    return started


async def stop_instances(instances: Iterable[Instance], timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
    """Stop all of them in reverse order, also after one fails.

    Raises:
        ExceptionGroup: a `NotStoppedError` for each instance that failed to stop.
    """
    problems: list[Exception] = []
    for instance in reversed(tuple(instances)):
        try:
            await attempt(instance.plugin.stop, timeout_seconds)
        except LateError:
            problems.append(NotStoppedError.of(instance.origin, TimeoutError(f"it did not stop within {timeout_seconds:g} s")))
        except CALL_FAILURES as problem:
            if is_the_hosts(problem):
                raise
            problems.append(NotStoppedError.of(instance.origin, problem))
    if problems:
        raise ExceptionGroup("some plugins did not stop", problems)


class NotStoppedError(Exception):
    """What did not stop, and what it raised, as text: an exception of a plugin answers with code of its own, and is its cause alone."""

    @classmethod
    def of(cls, what: str, problem: BaseException) -> NotStoppedError:
        """That of `what`, as in "while stopping queue"."""
        made = cls(f"while stopping {what}: {describe(problem)}")
        made.__cause__ = problem
        return made


async def stop_quietly(instances: Iterable[Instance]) -> None:
    """Stop all of them after a refusal; a failure to stop is logged, because the operator needs to see the refusal."""
    try:
        await stop_instances(instances)
    except ExceptionGroup as problems:
        _log.error("instances of a refused configuration did not stop", exc_info=problems)


def _why_not_started(instance: Instance, problem: BaseException, timeout_seconds: float) -> Diagnostic:
    if is_a(problem, LateError):
        return instance_failed(Code.E0703, instance, f"did not start within {timeout_seconds:g} s")
    if is_a(problem, ConfigurationError):
        return instance_failed(Code.E0706, instance, f"cannot start: {message_of(problem)}")
    return instance_failed(Code.E0706, instance, f"failed to start: {describe(problem)}")


class StartRefused(Exception):  # noqa: N818 - a refusal, with its code and, where there is one, its place in the configuration
    """A mistake that only starting can find: a port in use, a plugin that does not start, no endpoints in time."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__("; ".join(diagnostic.message for diagnostic in diagnostics))
        self.diagnostics: Sequence[Diagnostic] = diagnostics


def instance_failed(code: Code, instance: Instance, what: str, help_line: str | None = None) -> Diagnostic:
    """A diagnostic that blames one instance, at its place in the configuration; further lines of `what` become notes."""
    plugin = PluginReference(instance.type, instance.name, instance.distribution, instance.version)
    headline, *notes = (line.strip() for line in what.splitlines())
    message = f"'{instance.name}' {headline.removesuffix(':')}"
    if instance.place is None:
        return Diagnostic(code, message, help=help_line, notes=tuple(notes), plugin=plugin)
    span, path = instance.place.key_span(()), instance.place.path
    return Diagnostic(code, message, span, help=help_line, notes=tuple(notes), plugin=plugin, path=path)
