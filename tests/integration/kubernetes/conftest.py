"""Runs a discovery against the fake API server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from endpick.api import PluginContext
from endpick.data.table import EndpointTable
from endpick_kubernetes.discovery import KubernetesDiscovery, KubernetesDiscoveryParameters
from integration.kubernetes.api_server import ApiServer, kubeconfig, serving


@dataclass
class Followed:
    """A running discovery."""

    server: ApiServer
    table: EndpointTable
    registry: CollectorRegistry
    plugin: KubernetesDiscovery
    task: asyncio.Task[None]
    stands_by: list[str] = field(default_factory=list)  # the reasons reported; empty while it serves

    @property
    def leads(self) -> bool:
        return self.stands_by[-1:] == [""]

    def members(self) -> dict[str, str]:
        return {endpoint.name.removeprefix("default/"): endpoint.address for endpoint in self.table.view()}

    async def becomes(self, members: dict[str, str]) -> None:
        await eventually(lambda: self.members() == members, lambda: f"the pool is {self.members()}, not {members}")

    def obstacles(self) -> str:
        return self.plugin.not_ready_because

    def outcomes(self, collection: str, outcome: str) -> float:
        labels = {"collection": collection, "outcome": outcome}
        return self.registry.get_sample_value("endpick_kubernetes_watches_total", labels) or 0.0


async def eventually(condition: Callable[[], bool], otherwise: Callable[[], str], seconds: float = 15) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - the plugin signals nothing
                await asyncio.sleep(0.002)
    except TimeoutError:
        pytest.fail(otherwise())


@asynccontextmanager
async def discovering(server: ApiServer, file: Path, **parameters: object) -> AsyncIterator[Followed]:
    """A discovery that may not be ready yet."""
    chosen = {} if "endpointSelector" in parameters else {"poolName": "pool"}
    given = KubernetesDiscoveryParameters.model_validate({**chosen, "kubeconfig": str(file), "longestPause": 0.1, **parameters})
    registry = CollectorRegistry()
    context = PluginContext(clock=time.monotonic, logger=logging.getLogger("tests.kubernetes"), registry=registry)
    table = EndpointTable(time.monotonic)
    stands_by: list[str] = []
    table.on_stand_by.append(stands_by.append)
    plugin = KubernetesDiscovery("k", given, context)
    task = asyncio.create_task(plugin.run(table))
    try:
        yield Followed(server, table, registry, plugin, task, stands_by)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def following(server: ApiServer, folder: Path, **parameters: object) -> AsyncIterator[Followed]:
    """A server and a discovery that is ready."""
    async with serving(server) as url, discovering(server, kubeconfig(folder / "kubeconfig", url), **parameters) as followed:
        await ready(followed)
        yield followed
        assert not followed.task.done()


async def ready(followed: Followed) -> None:
    waiting = asyncio.create_task(followed.table.is_ready.wait())
    await asyncio.wait({waiting, followed.task}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    if followed.task.done():
        followed.task.result()
    assert waiting.done(), "it is not ready after 10 s"


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()
