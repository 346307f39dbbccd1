"""Messages with too much outside their body are refused while they arrive."""

from __future__ import annotations

import grpc
import pytest

from endpick._proto import ext_proc_pb2 as pb
from endpick.transport.h2.frames import FRAME_HEAD, FrameType
from endpick.transport.h2.grpc import MESSAGE_HEAD
from integration.transport.raw_client import RawClient

pytestmark = pytest.mark.asyncio
MANY = 60_000_000


async def test_message_full_of_empty_headers_is_refused(open_h2):
    entries = pb.HeaderMap(headers=[pb.HeaderValue()] * 500_000)
    message = pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=entries)).SerializeToString()
    async with open_h2() as serving:
        call = serving.call()
        await call.write(message)
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "more than 262144 bytes beside its body" in await call.details()
        assert serving.log.received == []
        assert serving.server.counters.envelopes_too_large == 1


async def test_long_body_is_accepted(open_transport):
    message = pb.ProcessingRequest(request_body=pb.HttpBody(body=b"x" * 1_000_000)).SerializeToString()
    async with open_transport() as serving:
        call = serving.call()
        await call.write(message)
        assert await call.read() == message
        call.cancel()


async def test_first_bytes_are_enough_to_refuse_it(open_h2):
    async with open_h2() as serving:
        client = await RawClient.connect(serving.port)
        client.open(1)
        start = MESSAGE_HEAD.pack(0, MANY) + b"\x12\xfa\x86\xce\x1c\x0a\xf5\x86\xce\x1c"
        client.send(FRAME_HEAD.pack(0, len(start), FrameType.DATA, 0, 1) + start)
        await client.read_until(FrameType.RST_STREAM, 1)
        assert serving.server.counters.envelopes_too_large == 1
        await client.close()
