"""Replicas of a picker elect a leader by a Lease of the fake API server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest
from aiohttp import web
from grpc_health.v1 import health_pb2, health_pb2_grpc

from integration.kubernetes.api_server import LEASES, ApiServer, kubeconfig, pod, pool, status
from integration.kubernetes.api_server import serving as serving_api
from integration.kubernetes.conftest import Followed, discovering, eventually
from integration.plugins.serving import Picker, serving

pytestmark = [pytest.mark.long, pytest.mark.asyncio]

LEASE = "epp-default-pool.llm-d.ai"
ONE = {"a-rank-0": "10.0.0.1:8000"}
QUICK = {"leaderElection": True, "leaseDuration": "3s", "renewDeadline": "1500ms", "retryPeriod": "50ms"}
CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: random-picker}
"""
EMPTY_FOLLOWERS = "featureGates: [haPopulateNonLeaderDatastore=false]\n"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def replicas(server: ApiServer, folder, count: int, **parameters: object) -> AsyncIterator[list[Followed]]:
    """Replicas that follow a pool with one Pod; the first one leads."""
    pool(server)
    pod(server, "a", "10.0.0.1")
    async with serving_api(server) as url, AsyncExitStack() as stack:
        file = kubeconfig(folder / "kubeconfig", url)
        started: list[Followed] = []
        for _ in range(count):
            started.append(await stack.enter_async_context(discovering(server, file, **{**QUICK, **parameters})))
            await eventually(lambda: started[0].leads, lambda: f"the first does not lead: {started[0].stands_by}")
        yield started


def holder(server: ApiServer) -> str:
    return server.objects[LEASES][LEASE]["spec"]["holderIdentity"]


def take_away(server: ApiServer, seconds: int) -> None:
    """Let an unknown replica hold the lease, with a clock that is years off."""
    spec = {"holderIdentity": "other", "leaseDurationSeconds": seconds, "renewTime": "2099-01-01T00:00:00.000000Z", "leaseTransitions": 7}
    server.put(LEASES, LEASE, spec=spec)


def attempts(replica: Followed, outcome: str) -> float:
    return replica.registry.get_sample_value("endpick_lease_attempts_total", {"outcome": outcome}) or 0.0


async def test_follower_takes_over_when_the_leader_shuts_down(server, tmp_path):
    async with replicas(server, tmp_path, 2, retryPeriod="500ms") as (one, other):
        await eventually(lambda: other.members() == ONE, lambda: "a replica that stands by follows the pool, too")
        await eventually(lambda: other.stands_by[-1] == f"standing by: {holder(server)} leads", lambda: f"{other.stands_by}")
        assert (one.registry.get_sample_value("endpick_leads"), other.registry.get_sample_value("endpick_leads")) == (1, 0)
        before = attempts(other, "held")
        one.table.is_ending.set()
        await eventually(lambda: other.leads, lambda: f"it does not lead: {other.stands_by}")
        assert attempts(other, "held") <= before + 1, "it need not wait for the lease to be over"
        assert attempts(one, "released") == 1
        assert one.members() == ONE, "the one that ends serves what still comes to it"
        assert server.objects[LEASES][LEASE]["spec"]["leaseTransitions"] == 2


@pytest.mark.parametrize("steps", [0, 3])
async def test_lease_is_released_even_if_the_process_ends_at_once(server, tmp_path, steps):
    async with replicas(server, tmp_path, 1) as (one,):
        one.table.is_ending.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        for _ in range(2):
            one.task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([one.task])
        assert "holderIdentity" not in server.objects[LEASES][LEASE]["spec"]
        assert attempts(one, "released") == 1


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_lease_written_without_an_answer_is_released(server, tmp_path, method):
    pool(server)
    pod(server, "a", "10.0.0.1")
    handle, written = server.handle, asyncio.Event()

    async def keep_the_answer(request: web.Request) -> web.StreamResponse:
        answer = await handle(request)
        if request.method == method and not written.is_set():
            written.set()
            await asyncio.Event().wait()
        return answer

    server.handle = keep_the_answer
    async with serving_api(server) as url:
        file = kubeconfig(tmp_path / "kubeconfig", url)
        async with discovering(server, file, **{**QUICK, "renewDeadline": "1500ms"}) as one:
            await written.wait()
            one.task.cancel()
            await asyncio.wait([one.task])
            assert "holderIdentity" not in server.objects[LEASES][LEASE]["spec"]
            assert attempts(one, "released") == 1


async def test_dead_leader_is_replaced_when_its_lease_expires(server, tmp_path):
    take_away(server, 1)
    async with replicas(server, tmp_path, 1) as (one,):
        assert attempts(one, "held") >= 5, "it has waited"
        assert "standing by: other leads" in one.stands_by
        assert server.objects[LEASES][LEASE]["spec"]["leaseTransitions"] == 8


async def test_leader_stands_by_if_its_lease_was_taken(server, tmp_path):
    async with replicas(server, tmp_path, 1) as (one,):
        take_away(server, 3600)
        await eventually(lambda: one.stands_by[-1] == "standing by: other leads", lambda: f"{one.stands_by}")
        assert one.members() == ONE
        server.delete(LEASES, LEASE)
        await eventually(lambda: one.leads, lambda: f"it does not lead again: {one.stands_by}")


async def test_leader_that_cannot_renew_stands_by_and_recovers(server, tmp_path):
    async with replicas(server, tmp_path, 1) as (one,):
        mine = holder(server)
        server.instead = lambda request: status(403, "Refused") if request.method != "GET" else None
        await eventually(lambda: not one.leads, lambda: "it goes on to lead")
        assert attempts(one, "overdue") == 1
        server.instead = lambda _request: None
        await eventually(lambda: one.leads, lambda: f"it does not lead again: {one.stands_by}")
        assert holder(server) == mine


async def test_request_that_hangs_costs_one_attempt(server, tmp_path):
    async with replicas(server, tmp_path, 1, renewDeadline="2s", leaseDuration="3s") as (one,):
        truth, frozen = server.handle, iter([True])

        async def handle(request: web.Request) -> web.StreamResponse:
            if request.method == "PUT" and next(frozen, False):
                await asyncio.Event().wait()
            return await truth(request)

        server.handle = handle
        await eventually(lambda: attempts(one, "failed") == 1, lambda: "no attempt ends")
        before = attempts(one, "renewed")
        await eventually(lambda: attempts(one, "renewed") > before + 3, lambda: "it does not renew")
        assert one.stands_by[-1] == ""
        assert (attempts(one, "overdue"), attempts(one, "taken")) == (0, 1)


async def test_lost_answer_to_a_write_does_not_depose(server, tmp_path):
    async with replicas(server, tmp_path, 1) as (one,):
        truth, lost = server.handle, iter([True])

        async def handle(request: web.Request) -> web.StreamResponse:
            answer = await truth(request)
            if request.method == "PUT" and next(lost, False):
                assert request.transport is not None
                request.transport.abort()
            return answer

        server.handle = handle
        before = attempts(one, "renewed")
        await eventually(lambda: attempts(one, "renewed") > before + 3, lambda: "it does not renew")
        assert one.stands_by[-1] == ""
        assert (attempts(one, "held"), attempts(one, "taken")) == (0, 1)


async def test_without_populate_followers_only_the_leader_follows(server, tmp_path):
    async with replicas(server, tmp_path, 2, populateFollowers=False) as (one, other):
        await eventually(lambda: attempts(other, "held") > 0, lambda: "it takes no part")
        assert (one.members(), other.members()) == (ONE, {})
        assert other.table.is_ready.is_set(), "it need not wait for endpoints"
        one.task.cancel()
        await eventually(lambda: other.leads, lambda: f"it does not lead: {other.stands_by}")
        assert other.members() == ONE
        take_away(server, 3600)
        await other.becomes({})
        server.delete(LEASES, LEASE)
        await other.becomes(ONE)


async def health(picker: Picker, service: str) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{picker.health_port}") as channel:
        return int((await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))).status)


async def serves(picker: Picker, expected: int) -> None:
    async with asyncio.timeout(30):
        while await health(picker, "readiness") != expected:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("gate", "answer"), [("", ("10.0.0.1:8000", 0)), ("featureGates: [haPopulateNonLeaderDatastore=false]\n", ("", 503))]
)
async def test_standby_picker_takes_over(server, tmp_path, gate, answer):
    pool(server)
    pod(server, "a", "10.0.0.1")
    (tmp_path / "config.yaml").write_text(CONFIG + gate)
    async with serving_api(server) as url, AsyncExitStack() as stack:
        options = ("--pool-name=pool", f"--kubeconfig={kubeconfig(tmp_path / 'kubeconfig', url)}", "--ha-enable-leader-election")
        one = await stack.enter_async_context(serving(tmp_path, *options))
        await serves(one, SERVING)
        other = await stack.enter_async_context(serving(tmp_path, *options))
        assert [await health(other, name) for name in ("liveness", "readiness", "")] == [SERVING, NOT_SERVING, NOT_SERVING]
        assert await one.ask() == ("10.0.0.1:8000", 0)
        assert await other.ask() == answer
        code, text = await other.health()
        assert (code, text.startswith("standing by: ")) == (503, True)
        one.process.send_signal(signal.SIGTERM)
        await serves(other, SERVING)
        assert await other.ask() == ("10.0.0.1:8000", 0)
        assert [event["event"] for event in await other.logged("this replica leads")] == ["this replica leads"]
        await one.process.wait()  # a second SIGTERM on the way out would end it with another code
