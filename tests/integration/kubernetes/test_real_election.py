"""Pickers elect a leader by a Lease of a real API server, with the permissions of the manifests; skipped without binaries."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import AsyncExitStack

import pytest

from integration.kubernetes.conftest import Followed, discovering, eventually
from integration.kubernetes.loaded import CONFIG
from integration.kubernetes.real_api_server import RealApiServer
from integration.kubernetes.real_manifests import HIGHLY_AVAILABLE, apply, manifests
from integration.kubernetes.test_leader_election import LEASE, NOT_SERVING, SERVING, health, serves
from integration.plugins.serving import serving

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.timeout(300),
    # httpx leaves the socket of a cancelled TLS handshake to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PATH = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


async def test_leader_is_replaced_when_it_ends_or_dies(tmp_path):
    async with RealApiServer(tmp_path) as real, AsyncExitStack() as stack:
        for item in manifests("ServiceAccount", "Role", "RoleBinding", folder=HIGHLY_AVAILABLE):
            await apply(real, item)
        await real.pool()
        await real.pod("a", "10.1.0.1")
        (tmp_path / "config.yaml").write_text(CONFIG)
        token = await real.service_account_token("default", "endpick")
        options = ("--pool-name=pool", f"--kubeconfig={real.kubeconfig(token)}", "--ha-enable-leader-election")
        first = await stack.enter_async_context(serving(tmp_path, *options))
        await serves(first, SERVING)
        second = await stack.enter_async_context(serving(tmp_path, *options, exit_code=-signal.SIGKILL))
        assert await health(second, "readiness") == NOT_SERVING
        assert await second.ask() == ("10.1.0.1:8000", 0), "a replica that stands by can route"
        begun = time.perf_counter()
        first.process.terminate()
        await serves(second, SERVING)
        print(f"  the leader was told to end: the other leads after {time.perf_counter() - begun:.2f} s")

        third = await stack.enter_async_context(serving(tmp_path, *options))
        await real.stop(crash=True)
        await asyncio.sleep(1)
        await real.start()
        assert [await health(picker, "readiness") for picker in (second, third)] == [SERVING, NOT_SERVING], "a restart changes no leader"
        begun = time.perf_counter()
        second.process.kill()
        await serves(third, SERVING)
        print(f"  the leader was killed: the other leads after {time.perf_counter() - begun:.2f} s")
        spec = (await real.call("GET", f"{PATH}/{LEASE}"))["spec"]
        print(f"  {spec}")
        assert spec["leaseDurationSeconds"] == 15
        headers = {"Authorization": f"Bearer {token}"}
        async with real.client.delete(real.url(f"{PATH}/{LEASE}"), headers=headers) as response:
            assert response.status == 403, "leases are neither deleted"
        async with real.client.get(real.url(f"{PATH}/{LEASE}"), headers=headers) as response:
            assert response.status == 403, "nor got one by one"


TIMES = {"leaderElection": True, "leaseDuration": "6s", "renewDeadline": "3s", "retryPeriod": "300ms"}


async def one_leads(replicas: list[Followed]) -> Followed:
    await eventually(lambda: sum(one.leads for one in replicas) == 1, lambda: f"{[one.stands_by for one in replicas]}", 60)
    return next(one for one in replicas if one.leads)


async def test_lease_that_is_deleted_taken_or_out_of_reach(tmp_path):
    async with RealApiServer(tmp_path) as real, AsyncExitStack() as stack:
        for item in manifests("ServiceAccount", "Role", "RoleBinding", folder=HIGHLY_AVAILABLE):
            await apply(real, item)
        await real.pool()
        await real.pod("a", "10.1.0.1")
        file = real.kubeconfig(await real.service_account_token("default", "endpick"))
        replicas = [
            await stack.enter_async_context(discovering(real, file, **TIMES, populateFollowers=populate)) for populate in (True, False)
        ]
        leader = await one_leads(replicas)
        await leader.becomes({"a-rank-0": "10.1.0.1:8000"})

        before = await real.call("DELETE", f"{PATH}/{LEASE}")
        while "spec" not in (lease := await real.call("GET", f"{PATH}/{LEASE}", ok=False)):
            assert lease["code"] == 404
        assert lease["metadata"]["uid"] != before["details"]["uid"], "it is made again"
        leader = await one_leads(replicas)

        lease["spec"] |= {"holderIdentity": "other", "leaseDurationSeconds": 4, "renewTime": "2099-01-01T00:00:00.000000Z"}
        while (await real.call("PUT", f"{PATH}/{LEASE}", lease, ok=False)).get("code") == 409:
            lease["metadata"] = (await real.call("GET", f"{PATH}/{LEASE}"))["metadata"]
        await eventually(lambda: not any(one.leads for one in replicas), lambda: "a replica leads beside the other")
        begun = time.perf_counter()
        await one_leads(replicas)
        print(f"  a lease of 4 s, renewed in 2099: a replica leads after {time.perf_counter() - begun:.1f} s")

        await real.stop(crash=True)
        begun = time.perf_counter()
        await eventually(lambda: not any(one.leads for one in replicas), lambda: "it goes on to lead")
        print(f"  the API server is away: the leader stands by after {time.perf_counter() - begun:.1f} s")
        await real.start()
        leader = await one_leads(replicas)
        await leader.becomes({"a-rank-0": "10.1.0.1:8000"})
        assert all(one.members() == {} for one in replicas[1:] if one is not leader), "without populateFollowers it knows no endpoints"
