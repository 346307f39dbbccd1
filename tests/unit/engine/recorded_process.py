"""An active plan as in `serve`, with plugins that record how they are started and stopped."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

from endpick.api import Parameters, Scorer
from endpick.api.discovery import EndpointDiscovery
from endpick.config import load_config
from endpick.engine.picker import Picker, PickerSettings
from endpick.engine.reload_log import ReloadResult, Trigger
from endpick.engine.reloads import Reloader
from endpick.host.discovery import Candidate, discover
from endpick.host.planning.plan import Plan, PlanOutcome
from endpick.host.planning.planner import make_plan

SERVING = "first"
STOPPED: Counter[str] = Counter()


class Waiting:
    """Set when a plugin has begun a slow call."""

    begun: ClassVar[asyncio.Event]


class Recording(Parameters):
    start: str = ""
    """How `start` behaves: `fail`, `exit` or `endless`."""
    stop: str = ""
    """How `stop` behaves: `fail`, `exit` or `slow`."""


async def behave(how: str) -> None:
    if how == "fail":
        raise RuntimeError("cannot let go")
    if how == "exit":
        sys.exit(3)
    if how == "slow":
        Waiting.begun.set()
        await asyncio.sleep(0.05)
    if how == "endless":
        Waiting.begun.set()
        await asyncio.Event().wait()


class RecordingScorer(Scorer[Recording]):
    plugin_type = "test.recording"

    def score(self, request, endpoints, state):
        raise NotImplementedError

    async def start(self):
        await behave(self.parameters.start)

    async def stop(self):
        STOPPED[self.name] += 1
        await behave(self.parameters.stop)


class ReadyDiscovery(EndpointDiscovery):
    plugin_type = "test.ready"

    async def run(self, registry):
        registry.ready()
        await asyncio.Event().wait()


def offered(plugin_type: str, target: str) -> Candidate:
    return Candidate(plugin_type, 1, "tests", "1.0", f"{__name__}:{target}", "/site/tests-1.0.dist-info")


def planned(name: str = SERVING, **behaviour: str) -> Plan:
    """A plan with one recording scorer of this name and behaviour."""
    parameters = ", ".join(f'{key}: "{value}"' for key, value in behaviour.items())
    text = f"""\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
- {{type: test.ready}}
- {{type: test.recording, name: {name}, parameters: {{{parameters}}}}}
schedulingProfiles: [{{name: default, plugins: [{{pluginRef: {name}}}]}}]
dataLayer: {{discovery: {{endpoints: {{pluginRef: test.ready}}}}}}
"""
    plugins = (*discover(), offered("test.recording", "RecordingScorer"), offered("test.ready", "ReadyDiscovery"))
    outcome = make_plan(load_config(text=text), plugins, hook_objects=())
    assert outcome.plan is not None, outcome.diagnostics
    return outcome.plan


class Process:
    """A picker and its reloads."""

    def __init__(self, plan: Plan, finish_timeout_seconds: float) -> None:
        self.plan = plan
        settings = PickerSettings(discovery_timeout_seconds=5, finish_timeout_seconds=finish_timeout_seconds)
        self.picker = Picker(plan, settings, clock=time.monotonic)

    @classmethod
    async def begun(cls, plan: Plan, finish_timeout_seconds: float = 60.0) -> Process:
        STOPPED.clear()
        Waiting.begun = asyncio.Event()
        process = cls(plan, finish_timeout_seconds)
        await process.picker.start()
        return process

    async def reload(self, plan: Plan) -> bool:
        return await self.replan(lambda: PlanOutcome(plan))

    async def replan(self, replan: Callable[[], PlanOutcome]) -> bool:
        entry = await self.reloader(replan).reload(Trigger.SIGNAL)
        return entry.result is not ReloadResult.REFUSED

    def reloader(self, replan: Callable[[], PlanOutcome]) -> Reloader:
        return Reloader(self.picker, replan)

    @property
    def serving(self) -> str:
        return self.picker.deployment.plan.instances[1].name
