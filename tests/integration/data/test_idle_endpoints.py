"""A whole process and an endpoint with nothing to do: asked less and less often, until a request is sent there."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from integration.plugins.serving import Picker, serving

pytestmark = pytest.mark.long

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: endpoint-health, parameters: {tolerance: 1h}}
- type: queue-scorer
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
"""
PAGE = b"vllm:num_requests_waiting 3\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(PAGE), PAGE)


class Metrics(asyncio.Protocol):
    """A metrics page that never changes."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(ANSWER * data.count(b"\r\n\r\n"))


@asynccontextmanager
async def idle_endpoint():
    server = await asyncio.get_running_loop().create_server(Metrics, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def polls(picker: Picker) -> tuple[float, float]:
    """How many were made, and how many were left out."""
    samples = await picker.samples("endpick_polls_total")
    return samples[(("event", "made"),)], samples[(("event", "skipped"),)]


async def until_made(picker: Picker, wanted: float) -> tuple[float, float]:
    async with asyncio.timeout(30):
        while (counts := await polls(picker))[0] < wanted:  # noqa: ASYNC110 - counted by another process
            await asyncio.sleep(0.02)
    return counts


@pytest.mark.asyncio
async def test_idle_endpoint_is_polled_less_until_a_request(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    async with idle_endpoint() as port:
        (tmp_path / "endpoints.yaml").write_text(f'endpoints: [{{name: a, address: 127.0.0.1, port: "{port}"}}]\n')
        async with serving(tmp_path, "--idle-metrics-interval=1h") as picker:
            made, skipped = await until_made(picker, 10)  # the fifth repetition doubled the interval, and each one since
            destination, _ = await picker.ask()
            _, skipped_later = await until_made(picker, made + 4)

    assert skipped >= 1 + 3 + 7
    assert destination == f"127.0.0.1:{port}"
    assert skipped_later - skipped < 31, "four more polls without the request would have left out more than 200"


@pytest.mark.asyncio
async def test_the_flag_says_how_often_an_idle_endpoint_is_asked(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    async with idle_endpoint() as port:
        (tmp_path / "endpoints.yaml").write_text(f'endpoints: [{{name: a, address: 127.0.0.1, port: "{port}"}}]\n')
        async with serving(tmp_path, "--idle-metrics-interval=50ms") as picker:
            _, skipped = await until_made(picker, 12)

    assert skipped == 0
