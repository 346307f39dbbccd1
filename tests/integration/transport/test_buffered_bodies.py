"""A buffering gateway sends a body in one message, so the message limit must exceed the body limit."""

from __future__ import annotations

import grpc.aio
import pytest

from endpick.cli.serve import command
from endpick.extproc.session import SessionSettings, session_factory
from endpick.requests.model import BodyMode
from endpick.transport.limits import Limits
from endpick.transport.listener import ListenSettings
from endpick.transport.methods import EXT_PROC_PATH, ext_proc_methods
from endpick.transport.server import open_server
from unit.extproc.conversation import NotedDirector, read, request_body, request_headers

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(("size", "status"), [(32 * 2**20, 0), (40 * 2**20, 413)])
async def test_default_limits_accept_a_body_or_answer_413(transport, size, status):
    director = NotedDirector()
    server = open_server(transport, ListenSettings("127.0.0.1", 0, limits=Limits()), ext_proc_methods(session_factory(director)))
    port = await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_stream(EXT_PROC_PATH)(timeout=60)
            await call.write(request_headers(request_body=BodyMode.BUFFERED))
            assert read(await call.read()).kind == "request_headers"
            await call.write(request_body(bytes(size), end=True))
            assert read(await call.read()).status == status
            await call.done_writing()
        assert [len(asked.body or b"") for asked in director.asked] == ([] if status else [size])
    finally:
        await server.stop()


async def test_serve_has_the_same_limits():
    chosen = command.make_context("serve", ["config.yaml"]).params
    assert (chosen["grpc_max_recv_msg_size"], chosen["max_request_body"]) == (
        Limits().max_message_bytes,
        SessionSettings().max_request_body_bytes,
    )
