"""Builds and starts the instances of a plan; reuses those of the previous deployment that did not change."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.registry import CollectorRegistry

from endpick.api.errors import ConfigurationError
from endpick.api.hooks import Document, HostServices
from endpick.api.plugin import PluginContext
from endpick.data.table import EndpointTable
from endpick.diagnostics import Code, Diagnostic, PluginReference
from endpick.host.breaker import DEFAULT_SETTINGS, BreakerSettings
from endpick.host.failures import PLUGIN_ERRORS, describe_error
from endpick.host.instance import Instance, instance_logger, scope_of
from endpick.host.planning.plan import Plan, PlannedInstance
from endpick.host.telemetry import Telemetry
from endpick.requests.pipeline import Pipeline
from endpick.serve.compile import Built, build_plan, carry_over, compile_plan

_log = logging.getLogger("endpick.serve")


@dataclass(frozen=True, slots=True)
class Runtime:
    """Shared by all deployments of one process."""

    services: HostServices
    table: EndpointTable
    telemetry: Telemetry
    watched: Callable[[Pipeline], Pipeline] = lambda pipeline: pipeline
    """Makes a pipeline show a sample of its decisions to hook objects."""
    breaker: BreakerSettings = DEFAULT_SETTINGS


@dataclass(frozen=True, slots=True)
class Deployment:
    """Started instances and the pipeline compiled from them.

    Attributes:
        plan: The deployed plan.
        built: All instances by name.
        fresh: The instances this deployment started; the others were carried over.
        pipeline: Used by requests that arrive while this deployment is current.
    """

    plan: Plan
    built: Built
    fresh: tuple[Instance, ...]
    pipeline: Pipeline

    @property
    def instances(self) -> Mapping[str, Instance]:
        """All instances by name, in plan order."""
        return self.built.instances


async def deploy(plan: Plan, runtime: Runtime, previous: Deployment | None = None) -> Deployment:
    """Build and start the instances the plan needs and `previous` does not have.

    An unchanged instance is carried over, so its learnt state (for example a prefix index) survives.

    Raises:
        StartRefused: a plugin could not be built or did not start. Instances started here have been stopped again.
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
    return PluginContext(random.Random(), runtime.services.clock, logger, CollectorRegistry(), columns)  # noqa: S311 - routing needs no secrets


def left_behind(old: Deployment, new: Deployment) -> tuple[Instance, ...]:
    """Instances of `old` that `new` no longer uses."""
    kept = {id(instance.plugin) for instance in new.instances.values()}
    return tuple(instance for instance in old.instances.values() if id(instance.plugin) not in kept)


def document_of(plan: Plan) -> Document:
    """The configuration as written, for hook objects."""
    data = plan.config.source.data
    assert isinstance(data, Mapping), "only a mapping has a plan"
    return data


START_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 10.0


async def start_instances(instances: Iterable[Instance], timeout_seconds: float = START_TIMEOUT_SECONDS) -> None:
    """Start each in order; after a failure, stop those already started.

    Raises:
        StartRefused: an instance refused to start, failed, or took too long.
    """
    started: list[Instance] = []
    for instance in instances:
        try:
            async with asyncio.timeout(timeout_seconds) as limit:
                await instance.plugin.start()
        except PLUGIN_ERRORS as error:
            await stop_quietly(started)
            raise StartRefused(_why_not_started(instance, error, timeout_seconds if limit.expired() else None)) from error
        started.append(instance)


async def stop_instances(instances: Iterable[Instance], timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
    """Stop all in reverse order, also after one fails.

    Raises:
        ExceptionGroup: a `NotStoppedError` for each instance that failed to stop.
    """
    errors: list[Exception] = []
    for instance in reversed(tuple(instances)):
        try:
            async with asyncio.timeout(timeout_seconds) as limit:
                await instance.plugin.stop()
        except PLUGIN_ERRORS as error:
            problem = TimeoutError(f"it did not stop within {timeout_seconds:g} s") if limit.expired() else error
            errors.append(NotStoppedError.of(instance.origin, problem))
    if errors:
        raise ExceptionGroup("some plugins did not stop", errors)


class NotStoppedError(Exception):
    """An instance or a part of the data layer did not stop."""

    @classmethod
    def of(cls, name: str, error: BaseException) -> NotStoppedError:
        """The error for `name`, caused by `error`."""
        made = cls(f"while stopping {name}: {describe_error(error)}")
        made.__cause__ = error
        return made


async def stop_quietly(instances: Iterable[Instance]) -> None:
    """Stop all of a refused configuration; log failures, because the operator needs to see the refusal."""
    try:
        await stop_instances(instances)
    except ExceptionGroup as errors:
        _log.error("instances of a refused configuration did not stop", exc_info=errors)


def _why_not_started(instance: Instance, error: BaseException, timeout_seconds: float | None) -> Diagnostic:
    if timeout_seconds is not None:
        return instance_failed(Code.E0703, instance, f"did not start within {timeout_seconds:g} s")
    if isinstance(error, ConfigurationError):
        return instance_failed(Code.E0706, instance, f"cannot start: {error}")
    return instance_failed(Code.E0706, instance, f"failed to start: {describe_error(error)}")


class StartRefused(Exception):  # noqa: N818 - a refusal, with its code and place in the configuration
    """A mistake only starting can find: a port in use, a plugin that does not start, no endpoints in time."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__("; ".join(diagnostic.message for diagnostic in diagnostics))
        self.diagnostics: Sequence[Diagnostic] = diagnostics


def instance_failed(code: Code, instance: Instance, problem: str, help_line: str | None = None) -> Diagnostic:
    """A diagnostic about one instance, at its place in the configuration; further lines of `problem` become notes."""
    plugin = PluginReference(instance.type, instance.name, instance.distribution, instance.version)
    headline, *notes = (line.strip() for line in problem.splitlines())
    message = f"'{instance.name}' {headline.removesuffix(':')}"
    if instance.place is None:
        return Diagnostic(code, message, help=help_line, notes=tuple(notes), plugin=plugin)
    span, path = instance.place.key_span(()), instance.place.path
    return Diagnostic(code, message, span, help=help_line, notes=tuple(notes), plugin=plugin, path=path)
