"""Envoy sends load to a pool of a real API server while Pods change and the server restarts; skipped without binaries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from statistics import median

import pytest

from integration.kubernetes.conftest import eventually
from integration.kubernetes.loaded import PODS, Scene, loaded, model_servers
from integration.kubernetes.real_api_server import Detour, RealApiServer
from integration.kubernetes.real_manifests import apply, manifests

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.timeout(400),
    # httpx leaves the socket of a cancelled TLS handshake to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TURNS = 48
RESTARTS = 3


@asynccontextmanager
async def scene_and_cluster(folder: Path) -> AsyncIterator[tuple[Scene, RealApiServer, int]]:
    async with RealApiServer(folder) as real, model_servers() as servers:
        for item in manifests("ServiceAccount", "Role", "RoleBinding"):
            await apply(real, item)
        await real.pool(servers.port)
        for name, ip in PODS.items():
            await real.pod(name, ip)
        real.detour = Detour(real.port)
        await real.detour.open()
        file = real.kubeconfig(await real.service_account_token("default", "endpick"), real.detour.port)
        async with loaded(folder, servers, file) as scene:
            await scene.beyond(1)
            yield scene, real, servers.port
        await real.detour.close()


def outcome_of(scene: Scene, what: str, latest_seconds: float = 0.2) -> None:
    """Print how late requests came; none may be too late or lost."""
    late = sorted(1000 * scene.late(absence) for absence in scene.absences)
    print(
        f"  {what}: {len(scene.visits)} requests, {len(late)} departures, last request after (ms): median {median(late):.1f}, {late[-3:]}"
    )
    assert scene.failed == []
    assert scene.trespasses() == []
    assert late[-1] <= 1000 * latest_seconds


async def lists(scene: Scene) -> dict[str, float]:
    """How often the picker has listed each collection."""
    samples = await scene.picker.samples("endpick_kubernetes_watches_total")
    labelled = [(dict(labels), value) for labels, value in samples.items()]
    return {labels["collection"]: value for labels, value in labelled if labels["outcome"] == "listed"}


async def test_pods_come_and_go_under_load(tmp_path):
    random = Random(7)
    async with scene_and_cluster(tmp_path) as (scene, real, port):
        for turn in range(TURNS):
            name = random.choice(list(PODS))
            match turn % 3:
                case 0:
                    await scene.leaves(name, real.status(name, ip=PODS[name], ready=False))
                    await scene.beyond(50)
                    await scene.joins(name, real.status(name, ip=PODS[name], ready=True))
                case 1:
                    await scene.leaves(name, real.delete(name))
                    await scene.beyond(50)
                    await real.delete(name, at_once=True)
                    await scene.joins(name, real.pod(name, PODS[name]))
                case 2:
                    await scene.leaves(name, real.delete(name, at_once=True))
                    await scene.joins(name, real.pod(name, PODS[name]))
        rule = {"matches": [{"model": {"type": "Exact", "value": "m"}}], "targets": [{"modelRewrite": "tuned"}]}
        await real.object("inferencemodelrewrites", "r", {"poolRef": {"name": "pool"}, "rules": [rule]})
        await eventually(lambda: scene.visits[-1].model == "tuned", lambda: f"{scene.visits[-1]}")
        await real.object("inferenceobjectives", "o", {"poolRef": {"name": "pool"}, "priority": 1})
        await real.remove("inferencemodelrewrites", "r")
        await eventually(lambda: scene.visits[-1].model == "m", lambda: f"{scene.visits[-1]}")
        await real.remove("inferenceobjectives", "o")
        scene.may_refuse = True
        await scene.leaves("a", real.remove("inferencepools", "pool"))
        await scene.joins("a", real.pool(port))
        scene.may_refuse = False
        await scene.beyond(100)
        outcome_of(scene, "Pods come and go")
        counted = await lists(scene)
        print(f"  lists: {counted}")
        assert counted["pods"] == 2, "one at the start, one for the pool that was made again"


async def test_the_server_is_restarted_and_compacted_under_load(tmp_path):
    async with scene_and_cluster(tmp_path) as (scene, real, _):
        for turn in range(RESTARTS):
            name = list(PODS)[turn]
            await real.detour.close()
            answer: dict = {}
            for count in range(20):  # changes that the picker misses; readiness stays
                answer = await real.object("inferenceobjectives", "o", {"poolRef": {"name": "pool"}, "priority": count})
                await real.label("f", str(count))
            await real.stop(crash=turn % 2 == 0)
            await real.start()
            await real.compact(answer["metadata"]["resourceVersion"])
            await real.detour.open()
            seconds = await scene.leaves(name, real.status(name, ip=PODS[name], ready=False))
            print(f"  restart {turn}: the picker said so after {1000 * seconds:.0f} ms")
            await scene.beyond(100)
            await scene.joins(name, real.status(name, ip=PODS[name], ready=True))
        for turn in range(RESTARTS):  # mid-watch, and the first change as soon as the server takes it
            name = list(PODS)[turn]
            await real.stop(crash=True)
            await real.start()
            await scene.leaves(name, real.status(name, ip=PODS[name], ready=False))
            await scene.joins(name, real.status(name, ip=PODS[name], ready=True))
        await asyncio.sleep(1)
        outcome_of(scene, "restarts", 10.0)  # a server that starts refuses service accounts for some seconds
        counted = await lists(scene)
        print(f"  lists: {counted}")
        assert max(counted.values()) <= 1 + 2 * RESTARTS, "each restart costs one list of each collection"
