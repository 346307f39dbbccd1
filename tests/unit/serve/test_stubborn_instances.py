"""Instances that do not heed their cancellation: their start is refused and their stop told in time, and what comes after them goes on."""

from __future__ import annotations

import asyncio

import pytest

from endpick.api import Scorer
from endpick.diagnostics import Code
from endpick.serve.deployment import StartRefused, start_instances, stop_instances
from unit.scheduling.workbench import instance

pytestmark = pytest.mark.asyncio


class Recording(Scorer):
    """Notes what it is told."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.told: list[str] = []

    async def start(self):
        self.told.append("start")

    async def stop(self):
        self.told.append("stop")


class Endless(Recording):
    """Goes on until it is released, however often it is cancelled."""

    released: asyncio.Event

    async def start(self):
        await self.go_on()

    stop = start

    async def go_on(self):
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                continue


@pytest.fixture
def endless():
    Endless.released = asyncio.Event()
    return instance(Endless, "endless")


async def end() -> None:
    """Let what was left behind end."""
    Endless.released.set()
    await asyncio.wait([task for task in asyncio.all_tasks() if task is not asyncio.current_task()])


async def test_a_start_that_does_not_end_is_refused_in_time(endless):
    first = instance(Recording, "first")
    with pytest.raises(StartRefused) as refused:
        await start_instances([first, endless], timeout_seconds=0.01)

    (diagnostic,) = refused.value.diagnostics
    assert (diagnostic.code, diagnostic.message) == (Code.E0703, "'endless' did not start within 0.01 s")
    assert first.plugin.told == ["start", "stop"]
    await end()


async def test_a_stop_that_does_not_end_is_told_and_the_others_are_stopped(endless):
    first = instance(Recording, "first")
    with pytest.raises(ExceptionGroup) as problems:
        await stop_instances([first, endless], timeout_seconds=0.01)

    (problem,) = problems.value.exceptions
    assert str(problem) == "while stopping endless (test.Endless, endpick 0): TimeoutError: it did not stop within 0.01 s"
    assert first.plugin.told == ["stop"]
    await end()


class UnwillingError(Exception):
    """Answers whatever it is asked with an exception, and takes no note."""

    def __str__(self):
        raise SystemExit(9)

    def add_note(self, note):
        raise SystemExit(9)

    __notes__ = property(__str__)


class Raising(Recording):
    async def stop(self):
        raise UnwillingError


async def test_whatever_an_exception_answers_the_others_are_stopped_and_it_is_told():
    first, raising = instance(Recording, "first"), instance(Raising, "raising")
    with pytest.raises(ExceptionGroup) as group:
        await stop_instances([first, raising])

    (problem,) = group.value.exceptions
    assert str(problem) == "while stopping raising (test.Raising, endpick 0): UnwillingError: (its message cannot be shown)"
    assert first.plugin.told == ["stop"]
