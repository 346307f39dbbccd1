"""Reloads during which a plugin throws whatever can be thrown, wherever the host calls it: none of them ends the process."""

from __future__ import annotations

from itertools import product

import pytest

from integration.plugins.serving import serving
from integration.serve.gateway import RANDOM

pytestmark = pytest.mark.asyncio

HOSTILE = """\
import asyncio
from pathlib import Path

import numpy as np
from pydantic import field_validator

from endpick.api import Parameters, Scorer


class Own(BaseException):
    pass


THROWN = {
    "SystemExit": SystemExit(7),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "CancelledError": asyncio.CancelledError(),
    "GeneratorExit": GeneratorExit(),
    "Own": Own(),
    "BaseExceptionGroup": BaseExceptionGroup("g", [SystemExit(7)]),
    "ValueError": ValueError("no"),
}


def throw(here):
    where, _, what = Path("told").read_text().partition(" ")
    if where == here:
        raise THROWN[what]


class HostileParameters(Parameters):
    step: int = 0

    @field_validator("step")
    @classmethod
    def judge(cls, value):
        throw("validator")
        return value

    def __eq__(self, other):
        throw("comparison")
        return super().__eq__(other)

    __hash__ = None


class Hostile(Scorer[HostileParameters]):
    \"\"\"Throws what a file says.\"\"\"

    @classmethod
    def subscriptions(cls, parameters):
        throw("subscriptions")
        return super().subscriptions(parameters)

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        throw("constructor")

    async def start(self):
        throw("start")

    async def stop(self):
        throw("stop")

    def score(self, request, endpoints, state):
        return np.ones(len(endpoints))
"""
PLACES = ("validator", "comparison", "subscriptions", "constructor", "start", "stop")
THROWN = ("SystemExit", "KeyboardInterrupt", "CancelledError", "GeneratorExit", "Own", "BaseExceptionGroup", "ValueError")


async def test_whatever_a_plugin_throws_during_a_reload_the_process_serves_on(tmp_path, make_distribution):
    project = make_distribution("hostile", {"hostile.scorer": "hostile:Hostile"}, modules={"hostile": HOSTILE})
    (tmp_path / "endpoints.yaml").write_text('endpoints: [{name: a, address: 127.0.0.1, port: "1"}]\n')
    told = tmp_path / "told"
    told.write_text("nowhere")

    def configure(step: int) -> None:
        entry = f"plugins:\n- {{type: hostile.scorer, parameters: {{step: {step}}}}}\n"
        used = "  plugins:\n  - {pluginRef: hostile.scorer}\n"
        (tmp_path / "config.yaml").write_text(RANDOM.replace("\nplugins:\n", f"\n{entry}", 1).replace("  plugins:\n", used, 1))

    configure(0)
    async with serving(tmp_path, "--finish-timeout=0s", path=[project]) as picker:
        for step, (where, what) in enumerate(product(PLACES, THROWN), 1):
            told.write_text(f"{where} {what}")
            configure(step)
            picker.reload()
            await picker.logged("configuration re", times=step)  # `replaced` or `refused`
            told.write_text("nowhere")
        assert await picker.ask() == ("127.0.0.1:1", 0)
        assert [event for event in picker.events if str(event["event"]).startswith("a reload failed")] == []
