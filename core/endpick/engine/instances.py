"""Starts and stops the instances of a plan."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from endpick.api.errors import ConfigurationError
from endpick.diagnostics import Code, Diagnostic, PluginReference
from endpick.host.failures import PLUGIN_ERRORS, describe_error
from endpick.host.instance import Instance

_log = logging.getLogger("endpick.engine")

START_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 10.0


async def start_instances(instances: Iterable[Instance], timeout_seconds: float = START_TIMEOUT_SECONDS) -> None:
    """Start the instances in order. After a failure, stops the started ones and raises StartRefused."""
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
    """Stop the instances in reverse order. Raises ExceptionGroup of `NotStoppedError`."""
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
    """Raised for an instance or a part of the data layer that did not stop."""

    @classmethod
    def of(cls, name: str, error: BaseException) -> NotStoppedError:
        """Return an error for `name` that is caused by `error`."""
        made = cls(f"while stopping {name}: {describe_error(error)}")
        made.__cause__ = error
        return made


async def stop_quietly(instances: Iterable[Instance]) -> None:
    """Stop the instances of a refused configuration; failures are logged."""
    try:
        await stop_instances(instances)
    except ExceptionGroup as errors:
        _log.error("instances of a refused configuration did not stop", exc_info=errors)


def _why_not_started(instance: Instance, error: BaseException, timeout_seconds: float | None) -> Diagnostic:
    if timeout_seconds is not None:
        return instance_failed(Code.E0703, instance, f"did not start within {timeout_seconds:g} s")
    if isinstance(error, ConfigurationError):
        return instance_failed(Code.E0706, instance, f"cannot start: {error}", error.repair)
    return instance_failed(Code.E0706, instance, f"failed to start: {describe_error(error)}")


class StartRefused(Exception):  # noqa: N818 - a refusal, with its code and place in the configuration
    """Raised for a mistake that only starting can find, such as a port in use."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__("; ".join(diagnostic.message for diagnostic in diagnostics))
        self.diagnostics: Sequence[Diagnostic] = diagnostics


def instance_failed(code: Code, instance: Instance, problem: str, help_line: str | None = None) -> Diagnostic:
    """Return a diagnostic at the place of the instance; further lines of `problem` become notes."""
    plugin = PluginReference(instance.type, instance.name, instance.distribution, instance.version)
    headline, *notes = (line.strip() for line in problem.splitlines())
    message = f"'{instance.name}' {headline.removesuffix(':')}"
    if instance.place is None:
        return Diagnostic(code, message, help=help_line, notes=tuple(notes), plugin=plugin)
    span, path = instance.place.key_span(()), instance.place.path
    return Diagnostic(code, message, span, help=help_line, notes=tuple(notes), plugin=plugin, path=path)
