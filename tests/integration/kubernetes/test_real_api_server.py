"""kubernetes-discovery against a real kube-apiserver and etcd; skipped without their binaries."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from lightkube import ApiError

from endpick.api import PluginContext
from endpick.api.discovery import ModelTarget, Peer
from endpick_kubernetes import follower
from endpick_kubernetes.follower import connect, resource, status_of
from endpick_kubernetes.peers import KubernetesPeerDiscovery, PeerParameters
from integration.kubernetes.conftest import Followed, discovering, eventually, ready
from integration.kubernetes.real_api_server import GROUPS, Detour, RealApiServer, free_port, path_of
from integration.kubernetes.real_manifests import CHART_ONLY, COLLECTIONS, HIGHLY_AVAILABLE, apply, check_all, manifests
from integration.kubernetes.rendering import NEEDED, helm_template, merged

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.timeout(300),
    # httpx leaves the socket of a cancelled TLS handshake to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ONE = {"a-rank-0": "10.1.0.1:8000"}
POD = resource("", "v1", "Pod")


@asynccontextmanager
async def cluster(folder: Path, **parameters: object) -> AsyncIterator[tuple[RealApiServer, Followed]]:
    """A pool with one Pod, followed with the permissions of the manifests."""
    async with RealApiServer(folder) as real:
        for item in manifests("ServiceAccount", "Role", "RoleBinding"):
            await apply(real, item)
        await real.pool()
        await real.pod("a", "10.1.0.1")
        real.detour = Detour(real.port)
        await real.detour.open()
        file = real.kubeconfig(await real.service_account_token("default", "endpick"), real.detour.port)
        async with discovering(real, file, longestPause="2s", **parameters) as followed:
            await ready(followed)
            assert followed.members() == ONE
            yield real, followed
            assert not followed.task.done()
        await real.detour.close()


async def measured(followed: Followed, members: dict[str, str], what: str, change: Callable[[], object]) -> float:
    """Milliseconds from the request for a change until the pool shows it."""
    begun = time.perf_counter()
    arrived = asyncio.ensure_future(_arrival(followed, members))
    await change()  # type: ignore[misc]
    elapsed = 1000 * (await arrived - begun)
    print(f"  {what}: {elapsed:.1f} ms")
    return elapsed


async def _arrival(followed: Followed, members: dict[str, str]) -> float:
    async with asyncio.timeout(120):
        while followed.members() != members:  # noqa: ASYNC110 - the plugin signals nothing
            await asyncio.sleep(0.0005)
    return time.perf_counter()


async def test_changes_of_every_kind_are_followed(tmp_path):
    async with cluster(tmp_path) as (real, followed):
        for turn in range(10):
            await measured(followed, {}, f"unready {turn}", lambda: real.status("a", ip="10.1.0.1", ready=False))
            await measured(followed, ONE, f"ready {turn}", lambda: real.status("a", ip="10.1.0.1", ready=True))
        two = {**ONE, "b-rank-0": "10.1.0.2:8000"}
        await measured(followed, two, "created", lambda: real.pod("b", "10.1.0.2"))
        await measured(followed, ONE, "terminating", lambda: real.delete("b"))
        await real.delete("b", at_once=True)
        ranks = {**ONE, "a-rank-1": "10.1.0.1:8001"}
        await measured(followed, ranks, "another port", lambda: real.pool(8000, 8001))
        await measured(followed, {}, "pool deleted", lambda: real.call("DELETE", path_of("inferencepools", "pool")))
        await measured(followed, ONE, "pool made again", real.pool)

        reference = {"poolRef": {"name": "pool"}}
        rules = followed.table.rules
        await real.object("inferenceobjectives", "batch", {"priority": -1, **reference})
        await eventually(lambda: rules.objectives == {"batch": -1}, lambda: f"{rules.objectives}")
        rule = {"matches": [{"model": {"type": "Exact", "value": "m"}}], "targets": [{"modelRewrite": "n", "weight": 2}]}
        await real.object("inferencemodelrewrites", "m", {"rules": [rule], **reference})
        await eventually(lambda: rules.rewrites == {"m": (ModelTarget("n", 2),)}, lambda: f"{rules.rewrites}")


async def test_older_group_counts_if_the_newer_is_not_installed(tmp_path, monkeypatch):
    async with RealApiServer(tmp_path) as real:
        for plural in GROUPS:
            await real.install(plural, old=True)
        for item in manifests("ServiceAccount", "Role", "RoleBinding"):
            await apply(real, item)
        await real.pool()
        await real.pod("a", "10.1.0.1")
        reference = {"poolRef": {"name": "pool"}}
        rewrite = {"rules": [{"targets": [{"modelRewrite": "old"}]}], **reference}
        await real.object("inferenceobjectives", "batch", {"priority": -7, **reference}, old=True)
        await real.object("inferencemodelrewrites", "all", rewrite, old=True)
        file = real.kubeconfig(await real.service_account_token("default", "endpick"))
        monkeypatch.setattr(follower, "_NOT_INSTALLED_PAUSE_SECONDS", 0.2)
        async with discovering(real, file) as followed:
            await ready(followed)
            rules = followed.table.rules
            assert (rules.objectives, rules.rewrites) == ({}, {}), "the newer group is installed: it counts, even if empty"
            for plural in ("inferenceobjectives", "inferencemodelrewrites"):
                await real.uninstall(plural)
            await eventually(lambda: rules.objectives == {"batch": -7}, lambda: f"{rules.objectives}")
            await eventually(lambda: rules.rewrites == {"": (ModelTarget("old"),)}, lambda: f"{rules.rewrites}")
            await real.install("inferenceobjectives")
            await real.object("inferenceobjectives", "batch", {"priority": 3, **reference})
            await eventually(lambda: rules.objectives == {"batch": 3}, lambda: f"{rules.objectives}")
            assert followed.members() == ONE


async def test_pool_of_the_older_group(tmp_path):
    async with RealApiServer(tmp_path) as real:
        await real.install("inferencepools", old=True)
        await real.object("inferencepools", "pool", {"selector": {"app": "vllm"}, "targetPortNumber": 8000}, old=True)
        await real.pod("a", "10.1.0.1")
        async with discovering(real, real.kubeconfig(real.token), poolGroup="inference.networking.x-k8s.io") as followed:
            await ready(followed)
            assert followed.members() == ONE
            await measured(followed, {}, "unready", lambda: real.status("a", ip="10.1.0.1", ready=False))


async def test_server_that_crashes_and_comes_back(tmp_path):
    async with cluster(tmp_path) as (real, followed):
        for crash in (True, False):
            begun = time.perf_counter()
            await real.stop(crash=crash)
            stopped = time.perf_counter() - begun
            assert followed.members() == ONE, "the last known pool still serves"
            up = await real.start()
            print(f"  {'killed' if crash else 'terminated'}: gone after {stopped:.1f} s, up again in {up:.1f} s")
            await measured(followed, {}, "first change after that", lambda: real.status("a", ip="10.1.0.1", ready=False))
            await measured(followed, ONE, "and the next", lambda: real.status("a", ip="10.1.0.1", ready=True))
        listed = {plural: followed.outcomes(plural, "listed") for plural in ("pods", "inferencepools")}
        print(f"  lists: {listed}")
        assert max(listed.values()) <= 1 + 2 * 2, "each restart costs a list, and one more if the server was not ready for it"


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGSTOP], ids=["draining", "frozen"])
async def test_silent_server_is_replaced_after_the_watch_timeout(tmp_path, signal_number):
    async with cluster(tmp_path, watchTimeout="2s") as (real, followed):
        other = free_port()
        await real.start("other", other)
        real.detour.to = real.admin_port = other
        real.processes["apiserver"].send_signal(signal_number)
        try:
            await measured(followed, {}, "first change", lambda: real.status("a", ip="10.1.0.1", ready=False))
        finally:
            real.processes["apiserver"].send_signal(signal.SIGCONT)
        await measured(followed, ONE, "and the next", lambda: real.status("a", ip="10.1.0.1", ready=True))


async def test_history_compacted_while_the_picker_was_cut_off(tmp_path):
    async with cluster(tmp_path) as (real, followed):
        await real.detour.close()
        answer: dict = {}
        for turn in range(20):
            answer = await real.status("a", ip="10.1.0.1", ready=turn % 2 == 1)
        await real.status("a", ip="10.1.0.1", ready=False)
        await real.stop(crash=True)
        await real.start()
        await real.compact(answer["metadata"]["resourceVersion"])
        assert followed.members() == ONE
        await measured(followed, {}, "way open again: list after 410", real.detour.open)
        assert followed.outcomes("pods", "expired") == 1
        assert followed.outcomes("pods", "listed") == 2
        await measured(followed, ONE, "and the next change", lambda: real.status("a", ip="10.1.0.1", ready=True))


async def test_service_account_token_is_read_again_after_401(tmp_path, monkeypatch):
    async with RealApiServer(tmp_path) as real:
        for item in manifests("ServiceAccount", "Role", "RoleBinding"):
            await apply(real, item)
        await real.pod("a", "10.1.0.1")
        account = tmp_path / "account"
        account.mkdir()
        (account / "ca.crt").write_bytes(real.certificate.read_bytes())
        (account / "namespace").write_text("default")
        (account / "token").write_text("expired")
        for name, value in (("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", str(real.port))):
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("KUBECONFIG", raising=False)
        client, _ = connect("", str(account))
        try:
            with pytest.raises(ApiError, match="Unauthorized") as raised:
                [pod async for pod in client.list(POD)]
            assert status_of(raised.value) == 401
            (account / "token").write_text(await real.service_account_token("default", "endpick"))
            assert [pod["metadata"]["name"] async for pod in client.list(POD)] == ["a"]
        finally:
            await client.close()


async def test_service_account_has_no_further_permissions(tmp_path):
    async with cluster(tmp_path) as (real, _):
        token = await real.service_account_token("default", "endpick")
        refused = {}
        asked = ("secrets", "configmaps", "services", "nodes")
        for plural in asked:
            path = "/api/v1/nodes" if plural == "nodes" else path_of(plural)
            async with real.client.get(real.url(path), headers={"Authorization": f"Bearer {token}"}) as response:
                refused[plural] = response.status
        async with real.client.delete(real.url(path_of("pods", "a")), headers={"Authorization": f"Bearer {token}"}) as response:
            refused["delete pods"] = response.status
    assert refused == dict.fromkeys((*asked, "delete pods"), 403)


async def test_server_accepts_every_manifest(tmp_path):
    async with RealApiServer(tmp_path) as real:
        accepted = await check_all(real, manifests(folder=HIGHLY_AVAILABLE))
    assert accepted == set(COLLECTIONS) - CHART_ONLY


@pytest.mark.parametrize("replicas", [1, 2])
async def test_server_accepts_the_rendered_chart(tmp_path, replicas):
    epp = {"replicas": replicas, "podDisruptionBudget": {"maxUnavailable": "50%"}, "networkPolicy": {"enabled": True}}
    more = {
        "router": {
            "epp": epp,
            "inferenceObjectives": [{"name": "batch", "priority": -1}],
            "monitoring": {"prometheus": {"enabled": True}},
            "proxy": {"enabled": True, "image": "registry.example/envoy:1.40"},
        }
    }
    rendered = [item for item in helm_template(merged(NEEDED, more), namespace="default") if item["kind"] != "ServiceMonitor"]
    async with RealApiServer(tmp_path) as real:
        assert await check_all(real, rendered) == set(COLLECTIONS)


async def test_peers_are_the_other_ready_pods(tmp_path, monkeypatch):
    monkeypatch.setenv("POD_IP", "10.1.0.1")
    async with RealApiServer(tmp_path) as real:
        for item in manifests("ServiceAccount", "Role", "RoleBinding"):
            await apply(real, item)
        for name, address in (("a", "10.1.0.1"), ("b", "10.1.0.2")):
            await real.pod(name, address)
        file = real.kubeconfig(await real.service_account_token("default", "endpick"))
        parameters = PeerParameters.model_validate({"selector": "app=vllm", "port": 9002, "kubeconfig": str(file)})
        discovery = KubernetesPeerDiscovery("peers", parameters, PluginContext(clock=time.monotonic))
        await discovery.start()
        try:
            b = Peer("default/b", "10.1.0.2", 9002)
            await eventually(lambda: discovery.peers == (b,), lambda: f"{discovery.peers}")
            await real.pod("c", "10.1.0.3")
            await eventually(lambda: discovery.peers == (b, Peer("default/c", "10.1.0.3", 9002)), lambda: f"{discovery.peers}")
            await real.status("b", ip="10.1.0.2", ready=False)
            await real.delete("c", at_once=True)
            await eventually(lambda: discovery.peers == (), lambda: f"{discovery.peers}")
        finally:
            await discovery.stop()
