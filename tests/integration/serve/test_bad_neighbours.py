"""What others do wrong while traffic flows: it is counted, logged with its reason, and no request notices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import grpc.aio
import pytest
from aiohttp import web

from endpick.transport.methods import EXT_PROC_PATH
from integration.serve.gateway import Gateway, running_gateway, until
from integration.serve.load import Load
from unit.extproc.conversation import request_body, request_headers, response_headers

pytestmark = pytest.mark.long


@asynccontextmanager
async def listening(handler: Callable) -> AsyncIterator[int]:
    """The port of a model server whose every answer is the handler's."""
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def garbage(_request):
    return web.Response(body=b"<html>\x00\xff vllm:num_requests_waiting</html>")


async def huge(request):
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"noise 1\n" * 65536)


async def slow(_request):
    await asyncio.sleep(60)


def log_of(gateway: Gateway) -> list[dict[str, object]]:
    lines = gateway.children.named("endpick").output().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


@asynccontextmanager
async def traffic(gateway: Gateway, clients: int = 4) -> AsyncIterator[Load]:
    """Clients that go on asking; afterwards every one of their requests must have been served."""
    load = Load()
    async with asyncio.TaskGroup() as asking:
        for number in range(clients):
            asking.create_task(load.client(gateway, number))
        try:
            yield load
        finally:
            load.stopping = True
    assert load.failed == []


@pytest.mark.asyncio
async def test_bad_metrics_pages_cost_no_request(tmp_path):
    async with AsyncExitStack() as stack:
        ports = {handler.__name__: await stack.enter_async_context(listening(handler)) for handler in (garbage, huge, slow)}
        async with listening(slow) as free:
            ports["refused"] = free
        gateway = await stack.enter_async_context(running_gateway(tmp_path, servers=2))
        async with traffic(gateway) as load:
            await load.beyond(10)
            listed = "".join(f'- {{name: {name}, address: "127.0.0.1", port: "{port}"}}\n' for name, port in ports.items())
            gateway.endpoints_file.write_text(gateway.endpoints_file.read_text() + listed)

            async def every_one_was_complained_of() -> bool:
                return {f"default/{name}" for name in ports} <= {event.get("endpoint") for event in log_of(gateway)}

            await until(every_one_was_complained_of, "a log line about each bad page")
            await load.beyond(40)

        assert set(load.served) <= {"sim-0", "sim-1"}
        reasons = {event["endpoint"]: event["reason"] for event in log_of(gateway) if str(event.get("endpoint")).startswith("default/")}
        assert "vllm:num_requests_waiting" in reasons["default/garbage"]
        assert "longer than 8 MiB" in reasons["default/huge"] or "took longer than" in reasons["default/huge"]
        assert "took longer than" in reasons["default/slow"]
        assert reasons["default/refused"].endswith("connection refused")
        assert await gateway.sample("llm_d_epp_datalayer_poll_errors_total", {"source_type": "metrics-data-source"}) >= 3
        assert await gateway.sample("llm_d_epp_datalayer_extract_errors_total", {"extractor_type": "core-metrics-extractor"}) >= 1
        assert await gateway.sample("endpick_plugin_faults_total") == 0


OUT_OF_ORDER = {
    "a request body came before the request headers": [request_body(b"{}")],
    "response headers came twice": [request_headers(end=True), response_headers(), response_headers()],
    "not an ext_proc message": [b"\xff\xff\xff"],
}


@pytest.mark.asyncio
@pytest.mark.parametrize("transport", ["h2", "grpcio"])
async def test_messages_out_of_order_end_only_their_stream(tmp_path, transport):
    async with running_gateway(tmp_path, servers=1, options=("--transport", transport)) as gateway, traffic(gateway) as load:
        await load.beyond(5)
        (serving,) = (event for event in log_of(gateway) if event["event"] == "serving")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{serving['ext_proc_port']}") as channel:
            for complaint, messages in OUT_OF_ORDER.items():
                for _ in range(3):
                    with pytest.raises(grpc.aio.AioRpcError, match=complaint) as ended:
                        _ = [reply async for reply in channel.stream_stream(EXT_PROC_PATH)(iter(messages))]
                    assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await load.beyond(20)

        assert await gateway.sample("endpick_session_events_total", {"event": "protocol_error_invalid_argument"}) == 9
        for complaint in OUT_OF_ORDER:
            complained = [event for event in log_of(gateway) if complaint in event["event"]]
            assert [event["level"] for event in complained] == ["warning"]
