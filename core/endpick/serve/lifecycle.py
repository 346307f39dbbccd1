"""Starts and stops the instances of a plan, all of them, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from endpick.api.errors import ConfigurationError
from endpick.diagnostics import Code, Diagnostic
from endpick.plugins.instance import Instance
from endpick.serve.failure import Refused, instance_failed

START_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 10.0


async def start_instances(instances: Iterable[Instance], timeout_seconds: float = START_TIMEOUT_SECONDS) -> list[Instance]:
    """Start each in turn; those started before a failure are stopped again.

    Raises:
        Refused: one of them refused, failed, or took too long.
    """
    started: list[Instance] = []
    for instance in instances:
        try:
            async with asyncio.timeout(timeout_seconds):
                await instance.plugin.start()
        except Exception as problem:
            await _stop_quietly(started)
            raise Refused(_why_not_started(instance, problem, timeout_seconds)) from problem
        started.append(instance)
    return started


async def stop_instances(instances: Iterable[Instance], timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
    """Stop all of them in reverse order, whatever happens.

    Raises:
        ExceptionGroup: one error for each instance that failed to stop, each with a note that names it.
    """
    problems: list[Exception] = []
    for instance in reversed(tuple(instances)):
        try:
            async with asyncio.timeout(timeout_seconds):
                await instance.plugin.stop()
        except Exception as problem:
            problem.add_note(f"while stopping {instance.origin}")
            problems.append(problem)
    if problems:
        raise ExceptionGroup("some plugins did not stop", problems)


async def _stop_quietly(instances: Iterable[Instance]) -> None:
    try:
        await stop_instances(instances)
    except ExceptionGroup:
        return  # the failure to start is the news; what came of it is not


def _why_not_started(instance: Instance, problem: Exception, timeout_seconds: float) -> Diagnostic:
    if isinstance(problem, TimeoutError):
        return instance_failed(Code.E0703, instance, f"did not start within {timeout_seconds:g} s")
    if isinstance(problem, ConfigurationError):
        return instance_failed(Code.E0706, instance, f"cannot start: {problem}")
    return instance_failed(Code.E0706, instance, f"failed to start: {type(problem).__name__}: {problem}")
