"""Starts and stops the instances of a plan, all of them, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from endpick.api.errors import ConfigurationError
from endpick.plugins.instance import Instance
from endpick.serve.failure import StartupError

START_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 10.0


async def start_instances(instances: Iterable[Instance], timeout_seconds: float = START_TIMEOUT_SECONDS) -> list[Instance]:
    """Start each in turn; those started before a failure are stopped again.

    Raises:
        StartupError: one of them refused, failed, or took too long; the message names it.
    """
    started: list[Instance] = []
    for instance in instances:
        try:
            async with asyncio.timeout(timeout_seconds):
                await instance.plugin.start()
        except Exception as problem:
            await _stop_quietly(started)
            raise StartupError(_why_not_started(instance, problem, timeout_seconds)) from problem
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


def _why_not_started(instance: Instance, problem: Exception, timeout_seconds: float) -> str:
    if isinstance(problem, TimeoutError):
        return f"{instance.origin} did not start within {timeout_seconds:g} s"
    if isinstance(problem, ConfigurationError):
        return f"{instance.origin}: {problem}"
    return f"{instance.origin} failed to start: {type(problem).__name__}: {problem}"
