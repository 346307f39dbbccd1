"""The leader labels its Pod at the fake API server, and the other replicas are ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from endpick.api import ConfigurationError
from integration.kubernetes.api_server import LEASES, PODS, ApiServer, kubeconfig, pod, pool, status
from integration.kubernetes.api_server import serving as serving_api
from integration.kubernetes.conftest import Followed, discovering, eventually, ready
from integration.kubernetes.test_leader_election import LEASE, ONE, QUICK, take_away

pytestmark = pytest.mark.asyncio

KEY, VALUE = "endpick.dev/leader", "epp"
NAMES = ("epp-5d9c7b-aaaaa", "epp-5d9c7b-bbbbb")


def labelled(server: ApiServer) -> list[str]:
    return [name for name, item in server.objects[PODS].items() if item["metadata"].get("labels", {}).get(KEY) == VALUE]


async def becomes(server: ApiServer, *names: str) -> None:
    await eventually(lambda: labelled(server) == list(names), lambda: f"labelled are {labelled(server)}, not {names}")


@asynccontextmanager
async def replicas(server: ApiServer, folder, monkeypatch, count: int = 2, **parameters: object) -> AsyncIterator[list[Followed]]:
    """Replicas in Pods of their own that follow a pool with one Pod; the first one leads."""
    pool(server)
    pod(server, "a", "10.0.0.1")
    async with serving_api(server) as url, AsyncExitStack() as stack:
        file = kubeconfig(folder / "kubeconfig", url)
        started: list[Followed] = []
        for name in NAMES[:count]:
            monkeypatch.setenv("POD_NAME", name)
            server.put(PODS, name, metadata={"labels": {"app": "epp"}})
            one = await stack.enter_async_context(discovering(server, file, **{**QUICK, "leaderLabel": f"{KEY}={VALUE}", **parameters}))
            await ready(one)
            started.append(one)
            await eventually(lambda: NAMES[0] in labelled(server), lambda: "the first is not labelled")
        yield started


async def test_followers_are_ready_and_the_leader_is_labelled(server, tmp_path, monkeypatch):
    server.put(PODS, "former", metadata={"labels": {KEY: VALUE}})
    server.put(PODS, "other", metadata={"labels": {KEY: "another-epp"}})
    async with replicas(server, tmp_path, monkeypatch) as (one, other):
        await becomes(server, NAMES[0])
        assert other.members() == ONE
        assert one.stands_by == other.stands_by == [], "neither is unready"
        one.table.is_ending.set()
        await becomes(server, NAMES[1])
        assert server.objects[PODS]["other"]["metadata"]["labels"] == {KEY: "another-epp"}
        assert server.objects[PODS][NAMES[1]]["metadata"]["labels"] == {"app": "epp", KEY: VALUE}


async def test_released_lease_is_taken_at_once(server, tmp_path, monkeypatch):
    slow = {"retryPeriod": "50s", "renewDeadline": "60s", "leaseDuration": "70s"}
    async with replicas(server, tmp_path, monkeypatch, **slow) as (one, _):
        await eventually(lambda: sum(watch.path == LEASES for watch in server.watches) == 2, lambda: "the lease is not watched")
        one.table.is_ending.set()
        await becomes(server, NAMES[1])


async def test_replica_that_steps_down_loses_its_label(server, tmp_path, monkeypatch):
    async with replicas(server, tmp_path, monkeypatch, 1) as (one,):
        take_away(server, 3600)
        await becomes(server)
        assert one.stands_by == []
        server.delete(LEASES, LEASE)
        await becomes(server, NAMES[0])


async def test_leader_without_endpoints_is_not_labelled(server, tmp_path, monkeypatch):
    async with replicas(server, tmp_path, monkeypatch, populateFollowers=False) as (one, other):
        assert other.members() == {}
        silent = asyncio.Event()
        truth = server.handle

        async def handle(request):
            if request.path == PODS and "labelSelector" in request.query and "app" in request.query["labelSelector"]:
                await silent.wait()
            return await truth(request)

        server.handle = handle
        one.table.is_ending.set()
        await eventually(lambda: other.registry.get_sample_value("endpick_leads") == 1, lambda: "it does not lead")
        assert labelled(server) == [NAMES[0]]
        silent.set()
        await becomes(server, NAMES[1])
        assert other.members() == ONE


async def test_refused_label_is_logged_and_tried_again(server, tmp_path, monkeypatch, caplog):
    refused = iter(range(2))
    server.instead = lambda request: status(403, "Forbidden") if request.method == "PATCH" and next(refused, None) is not None else None
    async with replicas(server, tmp_path, monkeypatch, 1):
        assert "the Role needs the verbs `list` and `patch` for pods" in caplog.text


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [({}, r"needs the name of this Pod in \$POD_NAME"), ({"leaderElection": False}, "needs `leaderElection`")],
)
async def test_label_without_pod_name_or_election_is_refused(server, tmp_path, monkeypatch, parameters, reason):
    monkeypatch.delenv("POD_NAME", raising=False)
    async with discovering(server, tmp_path / "none", **{**QUICK, "leaderLabel": f"{KEY}={VALUE}", **parameters}) as one:
        with pytest.raises(ConfigurationError, match=reason):
            await one.plugin.start()
