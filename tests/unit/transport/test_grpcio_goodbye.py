"""What a client of grpcio's server that has gone is told of the end of its stream: nothing, and nothing of that is logged."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc._cython import cygrpc

from endpick.transport.address import ListenSettings
from endpick.transport.grpcio import GrpcioServer
from endpick.transport.health import HealthBoard, health_methods


class Gone:
    """The context of a stream whose client says nothing, and has gone when the server ends it."""

    def __init__(self, ends_with: BaseException) -> None:
        self.ends_with = ends_with
        self.reads = asyncio.Event()
        self.told: list[grpc.StatusCode] = []

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self):
        return ()

    async def read(self) -> bytes:
        self.reads.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.told.append(code)
        raise self.ends_with


@pytest.mark.asyncio
async def test_a_watch_whose_client_has_gone_in_the_drain_ends_without_a_fault():
    method = health_methods(HealthBoard())["/grpc.health.v1.Health/Watch"]
    server = GrpcioServer(ListenSettings(host="127.0.0.1", port=0), {})
    gone, there = Gone(cygrpc.ExecuteBatchError("it has gone")), Gone(grpc.aio.AbortError("said"))
    streams = [asyncio.ensure_future(server.serve_stream(method, each)) for each in (gone, there)]
    for each in (gone, there):
        await each.reads.wait()

    await server.drain(0.0)

    assert gone.told == there.told == [grpc.StatusCode.UNAVAILABLE]
    answers = await asyncio.gather(*streams, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert isinstance(answers[1], grpc.aio.AbortError)
