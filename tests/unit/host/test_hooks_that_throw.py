"""Whatever a hook object throws, or has thrown when its answer is looked at, is told as its failure."""

from __future__ import annotations

import asyncio

import pytest

from endpick.api import hookimpl
from endpick.diagnostics import Code
from endpick.host.discovery import Candidate
from endpick.host.hooks import HookRegistry
from endpick.host.resolution import Reference


class OwnKind(BaseException):
    """No subclass of `Exception`."""


def registry_of(hook_object) -> HookRegistry:
    """With this hook object alone."""
    registry = HookRegistry()
    candidate = Candidate("hooks.acme", 1, "acme", "1.0", "acme:Hooks", "/site/acme-1.0.dist-info")
    assert registry.add_first(Reference("hooks.acme"), candidate, hook_object) is None
    return registry


@pytest.mark.asyncio
@pytest.mark.parametrize("thrown", [OwnKind("x"), GeneratorExit(), SystemExit(3), KeyboardInterrupt()])
async def test_whatever_a_hook_throws_at_a_reload_is_told_as_its_failure(thrown, monkeypatch):
    monkeypatch.setattr("endpick.host.hooks.is_the_hosts", lambda _error: False)  # as in `endpick serve`, which answers Ctrl-C itself

    class Throwing:
        @hookimpl
        def endpick_config_reload(self):
            raise thrown

    (fault,) = await registry_of(Throwing()).reload({}, {})

    assert fault.code is Code.E0707
    assert f"failed in endpick_config_reload: {type(thrown).__name__}" in fault.message


@pytest.mark.asyncio
async def test_an_exception_of_an_own_kind_is_told_also_of_what_is_awaited():
    class Throwing:
        @hookimpl
        async def endpick_config_reload(self):
            raise OwnKind("x")

    (fault,) = await registry_of(Throwing()).reload({}, {})

    assert "failed in endpick_config_reload: OwnKind: x" in fault.message


def test_an_offered_type_that_raises_when_it_is_looked_at_is_told():
    class Sly:
        def __getattribute__(self, name):
            raise SystemExit(9)

    class Offering:
        @hookimpl
        def endpick_register(self):
            return {"acme.sly": Sly()}

    candidates, (fault,) = registry_of(Offering()).offered()

    assert candidates == ()
    assert "failed in endpick_register: SystemExit: 9" in fault.message


class Nosy:
    """Is looked at by code of its own, which cancels the task that looks, if there is one."""

    @property
    def __class__(self):
        task = asyncio.current_task()
        if task is not None:
            task.cancel()
        return object


@pytest.mark.asyncio
async def test_what_a_hook_answers_finds_no_task_that_it_could_cancel():
    class Answering:
        @hookimpl
        def endpick_config_reload(self):
            return Nosy()

    assert await registry_of(Answering()).reload({}, {}) == ()
    assert not asyncio.current_task().cancelling()
