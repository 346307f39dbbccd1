"""The gRPC health service on both transports."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from endpick.transport.methods import EXT_PROC_SERVICE
from endpick.transport.services import LIVENESS, READINESS, HealthStatus

pytestmark = pytest.mark.asyncio

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def request(service: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


async def test_check_follows_readiness(open_transport):
    async with open_transport() as serving:
        stub = health_pb2_grpc.HealthStub(serving.channel())
        for ready, status in ((False, NOT_SERVING), (True, SERVING)):
            serving.board.set_ready(ready)
            for service in ("", READINESS, EXT_PROC_SERVICE, "any other"):
                assert (await stub.Check(request(service))).status == status


async def test_liveness_does_not_follow_readiness(open_transport):
    async with open_transport() as serving:
        stub = health_pb2_grpc.HealthStub(serving.channel())
        assert (await stub.Check(request(LIVENESS))).status == SERVING
        serving.board.set(LIVENESS, HealthStatus.NOT_SERVING)
        assert (await stub.Check(request(LIVENESS))).status == NOT_SERVING


async def test_malformed_request_is_an_invalid_argument(open_transport):
    async with open_transport() as serving:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await serving.channel().unary_unary("/grpc.health.v1.Health/Check")(b"\xff\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_list_returns_every_name(open_transport):
    async with open_transport() as serving:
        listed = await health_pb2_grpc.HealthStub(serving.channel()).List(health_pb2.HealthListRequest())
        assert {name: status.status for name, status in listed.statuses.items()} == {
            "": NOT_SERVING,
            LIVENESS: SERVING,
            READINESS: NOT_SERVING,
            EXT_PROC_SERVICE: NOT_SERVING,
        }


async def test_watch_sends_each_change_once(open_transport):
    async with open_transport() as serving:
        watch = health_pb2_grpc.HealthStub(serving.channel()).Watch(request("any other"))
        assert (await watch.read()).status == NOT_SERVING
        serving.board.set(LIVENESS, HealthStatus.NOT_SERVING)
        serving.board.set_ready(True)
        assert (await watch.read()).status == SERVING
        serving.board.set_ready(True)
        serving.board.set(READINESS, HealthStatus.NOT_SERVING)
        assert (await watch.read()).status == NOT_SERVING


async def test_watchers_end_with_their_client_or_a_drain(open_transport):
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
