"""What `endpick serve` shows of the gateway it talks to: which bodies it sends, and every guard of the port."""

from __future__ import annotations

import grpc.aio
import pytest

from endpick.extproc.stream import SessionCounters
from endpick.requests.model import BodyMode
from endpick.transport.limits import TransportCounters
from endpick.transport.methods import EXT_PROC_PATH
from integration.serve.gateway import Gateway, running_gateway, samples
from integration.serve.test_bad_neighbours import log_of
from unit.extproc.conversation import read, request_body, request_headers, response_headers

pytestmark = pytest.mark.asyncio

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
COMPLAINT = "the gateway does not send all bodies"


async def exchange(gateway: Gateway, first: bytes, *more: bytes) -> None:
    """One request as a gateway would send it, up to its response headers."""
    (serving,) = (event for event in log_of(gateway) if event["event"] == "serving")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{serving['ext_proc_port']}") as channel:
        call = channel.stream_stream(EXT_PROC_PATH)(timeout=20)
        for message in (first, *more, response_headers()):
            await call.write(message)
        while read(await call.read()).kind != "response_headers":
            pass
        await call.done_writing()


async def shown(gateway: Gateway) -> tuple[float, float]:
    """What the gauge says of request and response bodies."""
    request, response = [await gateway.sample("endpick_gateway_sends_bodies", {"direction": side}) for side in ("request", "response")]
    return request, response


async def test_bodies_that_the_gateway_keeps_are_told_once_with_who_loses_what(tmp_path):
    kept = request_headers(response_body=BodyMode.NONE)
    async with running_gateway(tmp_path, servers=1) as gateway:
        await exchange(gateway, request_headers(), request_body(BODY, end=True))
        assert await shown(gateway) == (1, 1)
        assert not [event for event in log_of(gateway) if COMPLAINT in event["event"]]
        for _ in range(3):
            await exchange(gateway, kept, request_body(BODY, end=True))
        assert await shown(gateway) == (1, 0)
        (told,) = (event for event in log_of(gateway) if COMPLAINT in event["event"])
        assert (told["level"], told["request_bodies"], told["response_bodies"]) == ("warning", True, False)
        assert "openai-parser reads no usage" in told["event"]

        await exchange(gateway, request_headers(request_body=BodyMode.NONE, response_body=BodyMode.NONE))
        assert await shown(gateway) == (0, 0)
        _, also = (event for event in log_of(gateway) if COMPLAINT in event["event"])
        assert "openai-parser reads no model, prompt or limits" in also["event"]

        await exchange(gateway, request_headers(), request_body(BODY, end=True))
        assert await shown(gateway) == (0, 0)  # who keeps bodies may be back with the next request
        assert len([event for event in log_of(gateway) if COMPLAINT in event["event"]]) == 2


async def test_every_guard_of_the_port_has_its_count_in_the_metrics(tmp_path):
    async with running_gateway(tmp_path, servers=1) as gateway:
        counted = {(sample.name, sample.labels.get("event")) for sample in await samples(gateway.stack.metrics)}
    assert {("endpick_transport_events_total", name) for name in TransportCounters().snapshot()} <= counted
    assert {("endpick_session_events_total", name) for name in SessionCounters().snapshot()} <= counted
