"""Large bodies for one test: real parsers, real helper processes, and a registry that shows what was counted."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from endpick.serve.bodies.queue import Answer
from endpick.serve.bodies.reader import LargeBodies, LargeBodySettings
from endpick.serve.registry_in_parts import RegistryInParts
from prometheus_client import CollectorRegistry

from endpick.api import PluginContext
from endpick.config import load_config
from endpick.host.discovery import discover
from endpick.host.instance import Instance, build, instance_logger
from endpick.host.loader import load
from endpick.host.parameters import ParameterSource, check_parameters
from endpick.host.resolution import Reference, resolve
from endpick.host.telemetry import NullTelemetry
from endpick.requests.large import LargeBody
from endpick.requests.long_body import Body
from endpick.serve.exposition import Exposition
from endpick.serve.metrics import EndpickMetrics

CHAT = "/v1/chat/completions"
QUICK = LargeBodySettings(timeout_seconds=20.0)


def parser(plugin_type: str = "openai-parser", name: str = "parser", path: Sequence[Path] = (), **parameters: object) -> Instance:
    """An instance as `endpick serve` builds it from a document."""
    written = "".join(f"    {key}: {value}\n" for key, value in parameters.items())
    text = f"plugins:\n- type: {plugin_type}\n  name: {name}\n" + (f"  parameters:\n{written}" if written else "")
    source = load_config(text=text, name="test.yaml").source
    reference = Reference(plugin_type, name)
    loaded = load(resolve(reference, discover([*map(str, path)] or None)), reference).loaded
    place = ParameterSource(reference, ("plugins", 0, "parameters"), source)
    checked = check_parameters(loaded, parameters)
    context = PluginContext(clock=time.monotonic, logger=instance_logger(loaded, name), registry=CollectorRegistry())
    return build(loaded, name, checked, None, context, place=place)


@dataclass
class Reading:
    """A reader, and what it has counted."""

    bodies: LargeBodies
    registry: CollectorRegistry

    async def read(
        self, instance: Instance, body: Body, path: str = CHAT, *, rewrite: str | None = None, fairness_id: str = "f", **headers: str
    ) -> Answer:
        return await self.bodies.read(LargeBody(instance, path, headers, body, rewrite, fairness_id))

    def outcomes(self) -> dict[str, float]:
        """How often each outcome was counted."""
        (family,) = (family for family in self.registry.collect() if family.name == "endpick_large_bodies")
        return {each.labels["outcome"]: each.value for each in family.samples if each.name.endswith("_total")}

    def value(self, name: str) -> float:
        found = self.registry.get_sample_value(name)
        assert found is not None, name
        return found

    @property
    def pid(self) -> int | None:
        """Of the helper."""
        helper = self.bodies._helper
        return None if helper is None else helper.pid


@asynccontextmanager
async def reading(settings: LargeBodySettings = QUICK) -> AsyncIterator[Reading]:
    """A reader; at the end it is stopped, and no helper is left."""
    registry = CollectorRegistry()
    bodies = LargeBodies(settings, EndpickMetrics(registry), time.monotonic)
    read = Reading(bodies, registry)
    try:
        yield read
    finally:
        last = read.pid
        await bodies.stop()
    assert last is None or not is_running(last)


def is_running(pid: int) -> bool:
    """Whether there is a process of this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(condition, what: str, timeout_seconds: float = 20.0) -> None:
    """Wait for a condition to come true."""
    try:
        async with asyncio.timeout(timeout_seconds):
            while not condition():  # noqa: ASYNC110 - what is waited for happens in another process
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_seconds} s: {what}") from None


def page(instance: Instance) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What `/metrics` shows of an instance."""
    exposition = Exposition(RegistryInParts(), lambda: [instance], NullTelemetry(), [].append)
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for family in exposition.collect() for each in family.samples}
