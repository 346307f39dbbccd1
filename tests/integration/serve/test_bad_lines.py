"""A line between gateway and picker that delays, stalls, breaks, and delivers byte by byte: on both transports."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from integration.plugins.serving import Picker, serving
from integration.serve.bad_line import BadLine, Weather

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: random-picker}
dataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}}
"""
REQUESTS = 40

pytestmark = [pytest.mark.long, pytest.mark.asyncio, pytest.mark.parametrize("transport", ["h2", "grpcio"])]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "endpoints.yaml").write_text('endpoints:\n- {name: a, address: 127.0.0.1, port: "1"}\n')
    return tmp_path


async def asked(picker: Picker, line: BadLine, number: int) -> str:
    """Where the request is sent, or why it is not; over a connection of its own, as its line may break."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{line.port}", options=options) as channel:
        over = Picker(picker.process, channel, picker.metrics_port, picker.events)
        try:
            return (await over.ask("x" * (20_000 if number % 4 == 0 else 10), f"r{number}"))[0]
        except grpc.aio.AioRpcError as error:
            return error.code().name


async def test_slow_line_of_single_bytes_serves_every_request(folder, transport):
    async with serving(folder, f"--transport={transport}") as picker:
        async with BadLine.opened(picker.port, Weather(longest_delay_seconds=0.02, single_bytes=0.3)) as line, asyncio.timeout(60):
            answers = await asyncio.gather(*(asked(picker, line, number) for number in range(REQUESTS)))
        assert set(answers) == {"127.0.0.1:1"}
        assert line.single > 1000
        assert (await picker.health())[0] == 200


async def test_broken_line_costs_only_its_own_requests(folder, transport):
    weather = Weather(longest_delay_seconds=0.005, single_bytes=0.2, stall_seconds=0.2, breaks_after_bytes=8000)
    async with serving(folder, f"--transport={transport}") as picker:
        async with BadLine.opened(picker.port, weather) as line, asyncio.timeout(60):
            answers = await asyncio.gather(*(asked(picker, line, number) for number in range(REQUESTS)))
            straight = await asyncio.gather(*(picker.ask(request_id=f"s{number}") for number in range(REQUESTS)))
        assert set(answers) <= {"127.0.0.1:1", "UNAVAILABLE"}
        assert line.broken > 0
        assert "127.0.0.1:1" in answers
        assert set(straight) == {("127.0.0.1:1", 0)}, "who comes another way notices nothing"
        async with asyncio.timeout(20):
            while any(await held(picker)):  # noqa: ASYNC110 - counted by another process
                await asyncio.sleep(0.05)
        assert (await picker.health())[0] == 200


async def held(picker: Picker) -> tuple[float, ...]:
    """Open streams, and bytes held for undecided requests."""
    events = {dict(labels)["event"]: value for labels, value in (await picker.samples("endpick_transport_events_total")).items()}
    memory = sum((await picker.samples("endpick_memory_held_bytes")).values())
    return events["streams_opened"] - events["streams_closed"], memory
