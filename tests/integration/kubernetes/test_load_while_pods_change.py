"""Envoy sends load to a pool that changes while its API server is in trouble: no request is lost, none comes to a Pod that has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from integration.kubernetes import api_server as api
from integration.kubernetes.api_server import NEW, POOLS, ApiServer
from integration.kubernetes.api_server import PODS as PODS_PATH
from integration.kubernetes.conftest import eventually
from integration.kubernetes.loaded import PODS, ModelServers, Scene, loaded, model_servers

pytestmark = [pytest.mark.long, pytest.mark.asyncio, pytest.mark.timeout(180)]


@dataclass
class Cluster:
    """The small API server, its port, and the token that it takes."""

    server: ApiServer
    models: ModelServers
    token_file: Path
    tokens: set[str] = field(default_factory=lambda: {"first"})
    _up: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> str:
        return await self._up.enter_async_context(api.serving(self.server, int(self.server.url.rpartition(":")[2] or 0)))

    async def stop(self) -> None:
        await self._up.aclose()

    def pod(self, name: str, *, ready: bool = True, **metadata: object) -> None:
        api.pod(self.server, name, PODS[name], ready=ready, **metadata)

    def pool(self, label: str = "vllm") -> None:
        api.pool(self.server, self.models.port, labels={"app": label})

    def refuse(self, times: int, answer: Callable[[web.Request], web.Response]) -> None:
        """Cut the watches of Pods, and answer the next questions about Pods so; then the truth again."""
        left = iter(range(times))

        def instead(request: web.Request) -> web.Response | None:
            return answer(request) if request.path == PODS_PATH and next(left, None) is not None else None

        self.server.instead = instead
        self.server.end_watches(PODS_PATH, cut=True)

    async def quiet(self) -> None:
        """Wait until Pods are watched."""
        watching = lambda: any(watch.path == PODS_PATH for watch in self.server.watches)  # noqa: E731
        await eventually(watching, lambda: "no watch is open")


async def change(step: Callable[[], None]) -> None:
    step()


async def unready(cluster: Cluster) -> None:
    cluster.pod("a", ready=False)


async def terminating(cluster: Cluster) -> None:
    cluster.pod("a", deletionTimestamp="2026-08-22T00:00:00Z")


async def deleted(cluster: Cluster) -> None:
    cluster.server.delete(PODS_PATH, "a")


async def reset(cluster: Cluster) -> None:
    def cut(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    cluster.refuse(3, cut)
    await unready(cluster)


async def lag(cluster: Cluster) -> None:
    cluster.server.mute = True
    await unready(cluster)
    cluster.server.mute = False
    await asyncio.sleep(0.2)
    cluster.server.say(PODS_PATH, {"type": "MODIFIED", "object": cluster.server.objects[PODS_PATH]["a"]})


def answered(*responses: Callable[[], web.Response]) -> Callable[[Cluster], object]:
    async def trouble(cluster: Cluster) -> None:
        made = iter(responses)
        cluster.refuse(len(responses), lambda _request: next(made)())
        await unready(cluster)

    return trouble


async def expired(cluster: Cluster) -> None:
    cluster.server.mute = True
    await unready(cluster)
    cluster.server.compacted = cluster.server.version
    cluster.server.mute = False
    cluster.server.end_watches(PODS_PATH, cut=True)


async def token_expired(cluster: Cluster) -> None:
    cluster.tokens.clear()

    def instead(request: web.Request) -> web.Response | None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return None if given in cluster.tokens else api.status(401, "Unauthorized")

    cluster.server.instead = instead
    asked = len(cluster.server.asked)
    cluster.server.end_watches(PODS_PATH, cut=True)
    await eventually(lambda: len(cluster.server.asked) > asked + 2, lambda: "it does not ask with the token that has expired")
    await unready(cluster)
    cluster.token_file.write_text("second")
    cluster.tokens.add("second")


async def restarted_and_compacted(cluster: Cluster) -> None:
    await cluster.stop()
    await unready(cluster)
    cluster.server.compacted = cluster.server.version
    cluster.server.history.clear()
    await cluster.start()


FORBIDDEN = lambda: api.status(403, "Forbidden")  # noqa: E731
BUSY = lambda: api.status(429, "TooManyRequests", {"Retry-After": "0"})  # noqa: E731
PAGE = lambda: web.Response(text="<html>", content_type="text/html")  # noqa: E731
GONE = lambda: api.status(410, "Expired")  # noqa: E731

TROUBLES = {
    "unready": (unready, 0),
    "Terminating": (terminating, 0),
    "deleted": (deleted, 0),
    "connections are reset": (reset, 0),
    "events lag": (lag, 0),
    "403": (answered(*[FORBIDDEN] * 3), 0),
    "429": (answered(*[BUSY] * 3), 0),
    "HTML": (answered(PAGE, PAGE), 0),
    "410 as the status": (answered(GONE), 1),
    "410 inside the stream": (expired, 1),
    "the token has expired": (token_expired, 0),
    "restarted and compacted": (restarted_and_compacted, 1),
}
"""What happens while Pod `a` leaves, and how many lists of Pods it may cost."""


@asynccontextmanager
async def scene_and_cluster(folder: Path) -> AsyncIterator[tuple[Scene, Cluster]]:
    async with model_servers() as servers:
        token = folder / "token"
        token.write_text("first")
        cluster = Cluster(ApiServer(), servers, token)
        cluster.pool()
        for name in "abc":
            cluster.pod(name)
        file = api.kubeconfig(folder / "kubeconfig", await cluster.start(), tokenFile="token")
        try:
            async with loaded(folder, servers, file) as scene:
                await scene.beyond(1)
                yield scene, cluster
        finally:
            await cluster.stop()


async def test_pods_leave_and_return_during_api_trouble(tmp_path):
    async with scene_and_cluster(tmp_path) as (scene, cluster):
        for title, (trouble, lists) in TROUBLES.items():
            await cluster.quiet()
            before = cluster.server.lists(PODS_PATH)
            await scene.leaves("a", trouble(cluster))
            await scene.beyond(20)
            assert cluster.server.lists(PODS_PATH) - before == lists, title
            assert (scene.failed, scene.trespasses()) == ([], []), title
            await cluster.quiet()
            await scene.joins("a", change(lambda: cluster.pod("a")))
        assert (scene.failed, scene.trespasses(), scene.refused) == ([], [], 0)


async def test_pools_objectives_and_rewrites_change_under_load(tmp_path):
    async with scene_and_cluster(tmp_path) as (scene, cluster):
        server = cluster.server

        rule = {"matches": [{"model": {"value": "m"}}], "targets": [{"modelRewrite": "tuned"}]}
        server.put(f"{NEW}/inferencemodelrewrites", "r", spec={"poolRef": {"name": "pool"}, "rules": [rule]})
        await eventually(lambda: scene.visits[-1].model == "tuned", lambda: f"{scene.visits[-1]}")
        server.put(f"{NEW}/inferenceobjectives", "o", spec={"priority": 1, "poolRef": {"name": "pool"}})
        server.delete(f"{NEW}/inferencemodelrewrites", "r")
        await eventually(lambda: scene.visits[-1].model == "m", lambda: f"{scene.visits[-1]}")
        server.delete(f"{NEW}/inferenceobjectives", "o")

        for gone in (lambda: cluster.pool("nothing"), lambda: server.delete(POOLS, "pool")):
            scene.may_refuse = True
            before = scene.refused
            await scene.leaves("a", change(gone))
            await eventually(lambda before=before: scene.refused > before + 5, lambda: "no request is refused")
            await scene.joins("a", change(cluster.pool))
            scene.may_refuse = False
            await scene.beyond(20)
        assert (scene.failed, scene.trespasses()) == ([], [])


async def test_silent_server_is_left_out_while_api_is_away(tmp_path):
    async with scene_and_cluster(tmp_path) as (scene, cluster):
        await eventually(lambda: scene.visited_lately("a"), lambda: "nothing comes to a")
        await cluster.stop()
        cluster.models.silent.add("a")
        await eventually(lambda: not scene.visited_lately("a"), lambda: "requests still come to a server that has fallen silent")
        cluster.models.silent.clear()
        await eventually(lambda: scene.visited_lately("a"), lambda: "nothing comes to a, which answers again")
        assert scene.failed == []
