"""Replicas of a picker agree by a lease which of them serves, over real sockets, whatever becomes of the API server and of the others."""

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

pytestmark = pytest.mark.asyncio

LEASE = "epp-default-pool.llm-d.ai"
ONE = {"a-rank-0": "10.0.0.1:8000"}
QUICK = {"leaderElection": True, "leaseDuration": "2s", "renewDeadline": "600ms", "retryPeriod": "50ms"}
CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: random-picker}
"""
EMPTY_FOLLOWERS = "featureGates: [haPopulateNonLeaderDatastore=false]\n"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def replicas(server: ApiServer, folder, count: int, **parameters: object) -> AsyncIterator[list[Followed]]:
    """So many replicas of one pool of one Pod, the first of which leads."""
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
    """Let a replica that is not there hold the lease, with a clock that is years off."""
    spec = {"holderIdentity": "other", "leaseDurationSeconds": seconds, "renewTime": "2099-01-01T00:00:00.000000Z", "leaseTransitions": 7}
    server.put(LEASES, LEASE, spec=spec)


def attempts(replica: Followed, outcome: str) -> float:
    return replica.registry.get_sample_value("endpick_lease_attempts_total", {"outcome": outcome}) or 0.0


async def test_one_leads_and_when_it_ends_another_leads_at_once(server, tmp_path):
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


@pytest.mark.parametrize("turns", range(6))
async def test_the_lease_is_given_back_however_soon_the_process_ends(server, tmp_path, turns):
    async with replicas(server, tmp_path, 1) as (one,):
        one.table.is_ending.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(2):
            one.task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([one.task])
        assert "holderIdentity" not in server.objects[LEASES][LEASE]["spec"]
        assert attempts(one, "released") == 1


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_a_lease_written_without_an_answer_is_given_back_too(server, tmp_path, method):
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


async def test_a_leader_that_is_gone_is_followed_when_its_lease_is_over_whatever_its_clock_says(server, tmp_path):
    take_away(server, 1)
    async with replicas(server, tmp_path, 1) as (one,):
        assert attempts(one, "held") >= 5, "it has waited"
        assert "standing by: other leads" in one.stands_by
        assert server.objects[LEASES][LEASE]["spec"]["leaseTransitions"] == 8


async def test_a_leader_whose_lease_was_taken_stands_by(server, tmp_path):
    async with replicas(server, tmp_path, 1) as (one,):
        take_away(server, 3600)
        await eventually(lambda: one.stands_by[-1] == "standing by: other leads", lambda: f"{one.stands_by}")
        assert one.members() == ONE
        server.delete(LEASES, LEASE)
        await eventually(lambda: one.leads, lambda: f"it does not lead again: {one.stands_by}")


async def test_a_leader_whose_lease_was_deleted_or_taken_learns_it_from_the_watch(server, tmp_path):
    slow = {"leaseDuration": "900s", "renewDeadline": "800s", "retryPeriod": "700s"}
    async with replicas(server, tmp_path, 1, **slow) as (one,):
        await eventually(lambda: any(watch.path == LEASES for watch in server.watches), lambda: "the lease is not watched")
        server.delete(LEASES, LEASE)
        await eventually(lambda: attempts(one, "held") == 1, lambda: "the leader does not see that the lease is gone")
        take_away(server, 3600)
        await eventually(lambda: one.stands_by[-1] == "standing by: other leads", lambda: f"{one.stands_by}")


@pytest.mark.parametrize("answer", [500, 403, 429])
async def test_a_leader_that_cannot_renew_stands_by_in_time_and_leads_again(server, tmp_path, answer):
    async with replicas(server, tmp_path, 1) as (one,):
        mine = holder(server)
        server.instead = lambda request: status(answer, "Refused") if request.method != "GET" else None
        await eventually(lambda: not one.leads, lambda: "it goes on to lead")
        assert attempts(one, "overdue") == 1
        server.instead = lambda _request: None
        await eventually(lambda: one.leads, lambda: f"it does not lead again: {one.stands_by}")
        assert holder(server) == mine


async def test_a_server_that_freezes_costs_a_leader_one_attempt_where_there_is_another(server, tmp_path):
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


async def test_a_write_whose_answer_was_lost_was_made(server, tmp_path):
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


async def test_without_populate_followers_only_the_leader_knows_the_pool(server, tmp_path):
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


@pytest.mark.parametrize(
    "wrong", [{"leaseDuration": "1s", "renewDeadline": "1s"}, {"retryPeriod": "3s", "renewDeadline": "2s", "leaseDuration": "5s"}]
)
async def test_times_with_which_two_could_lead_are_refused(wrong):
    from endpick_builtin.kubernetes.parameters import KubernetesDiscoveryParameters

    parameters = KubernetesDiscoveryParameters.model_validate({"poolName": "pool", **QUICK, **wrong})
    assert "two replicas could lead" in parameters.mistake()


async def health(picker: Picker, service: str) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{picker.health_port}") as channel:
        return int((await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))).status)


async def serves(picker: Picker, expected: int) -> None:
    async with asyncio.timeout(30):
        while await health(picker, "readiness") != expected:  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("gate", "answer"), [("", ("10.0.0.1:8000", 0)), ("featureGates: [haPopulateNonLeaderDatastore=false]\n", ("", 503))]
)
async def test_of_two_pickers_one_is_ready_and_the_other_takes_over(server, tmp_path, gate, answer):
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
