"""The health service as Kubernetes' gRPC probes and gRPC clients see it."""

from __future__ import annotations

import asyncio
import tracemalloc

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from endpick.transport.health import LIVENESS, READINESS, HealthStatus
from endpick.transport.methods import EXT_PROC_SERVICE

pytestmark = pytest.mark.asyncio

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def request(service: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


@pytest.mark.parametrize("service", ["", READINESS, EXT_PROC_SERVICE])
async def test_a_check_follows_readiness(open_transport, service):
    async with open_transport() as serving:
        stub = health_pb2_grpc.HealthStub(serving.channel())
        assert (await stub.Check(request(service))).status == NOT_SERVING
        serving.board.set_ready(True)
        assert (await stub.Check(request(service))).status == SERVING


async def test_liveness_does_not_follow_readiness(open_transport):
    async with open_transport() as serving:
        stub = health_pb2_grpc.HealthStub(serving.channel())
        assert (await stub.Check(request(LIVENESS))).status == SERVING
        serving.board.set(LIVENESS, HealthStatus.NOT_SERVING)
        assert (await stub.Check(request(LIVENESS))).status == NOT_SERVING


async def test_a_name_of_a_probes_own_is_answered_as_readiness(open_transport):
    async with open_transport() as serving:
        stub = health_pb2_grpc.HealthStub(serving.channel())
        assert (await stub.Check(request("inference-extension"))).status == NOT_SERVING
        serving.board.set_ready(True)
        assert (await stub.Check(request("inference-extension"))).status == SERVING


async def test_bytes_that_are_no_request_are_an_invalid_argument(open_transport):
    async with open_transport() as serving:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await serving.channel().unary_unary("/grpc.health.v1.Health/Check")(b"\xff\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_list_gives_every_name(open_transport):
    async with open_transport() as serving:
        listed = await health_pb2_grpc.HealthStub(serving.channel()).List(health_pb2.HealthListRequest())
        assert {name: status.status for name, status in listed.statuses.items()} == {
            "": NOT_SERVING,
            LIVENESS: SERVING,
            READINESS: NOT_SERVING,
            EXT_PROC_SERVICE: NOT_SERVING,
        }


async def test_a_watch_tells_each_change_and_nothing_else(open_transport):
    async with open_transport() as serving:
        watch = health_pb2_grpc.HealthStub(serving.channel()).Watch(request(READINESS))
        assert (await watch.read()).status == NOT_SERVING
        serving.board.set(LIVENESS, HealthStatus.NOT_SERVING)
        serving.board.set_ready(True)
        assert (await watch.read()).status == SERVING
        serving.board.set_ready(True)
        serving.board.set(READINESS, HealthStatus.NOT_SERVING)
        assert (await watch.read()).status == NOT_SERVING


async def test_a_watch_of_a_name_of_its_own_follows_readiness(open_transport):
    async with open_transport() as serving:
        watch = health_pb2_grpc.HealthStub(serving.channel()).Watch(request("later"))
        assert (await watch.read()).status == NOT_SERVING
        serving.board.set_ready(True)
        assert (await watch.read()).status == SERVING


async def test_a_watch_keeps_no_name_that_a_client_made_up(open_transport):
    async with open_transport() as serving:
        stub = health_pb2_grpc.HealthStub(serving.channel())
        watches = [stub.Watch(request(f"{number}" + 200_000 * "x")) for number in range(50)]
        tracemalloc.start()
        try:
            for watch in watches:
                assert (await watch.read()).status == NOT_SERVING
            kept = [block.size for block in tracemalloc.take_snapshot().traces if block.size >= 200_000]
        finally:
            tracemalloc.stop()
        assert len(kept) < 10


async def test_watchers_are_forgotten_when_they_leave_and_do_not_hold_a_drain(open_transport):
    async with open_transport() as serving:
        stub = health_pb2_grpc.HealthStub(serving.channel())
        staying, leaving = stub.Watch(request("")), stub.Watch(request(""))
        for watch in (staying, leaving):
            await watch.read()
        leaving.cancel()
        serving.board.set_ready(True)
        assert (await staying.read()).status == SERVING
        async with asyncio.timeout(10):
            await serving.server.drain(60)
        assert await staying.code() is grpc.StatusCode.UNAVAILABLE
        assert not serving.board.watched
