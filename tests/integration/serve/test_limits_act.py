"""Each limit in a real `endpick serve`: its metric stands on the metrics page, and a real excess is counted and told with its flag."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import aiohttp
import grpc
import pytest
from endpick.serve.limit_log import ADMIN, FLOW_CONTROL, LARGE_BODIES, LIMITS, SESSION, TRANSPORT

from endpick.transport.h2 import frames
from endpick_builtin.discovery.file_discovery import LONG_FILE
from integration.plugins.serving import Picker, serving
from integration.transport.raw_client import RawClient
from unit.extproc.conversation import request_body, request_headers, response_body, response_headers
from unit.transport.peer import frame

pytestmark = pytest.mark.asyncio

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: random-picker}
dataLayer: {discovery: {pluginRef: file-discovery}}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "endpoints.yaml").write_text('endpoints:\n- {name: a, address: 127.0.0.1, port: "1"}\n')
    return tmp_path


async def test_the_metric_of_each_limit_is_on_the_page(folder):
    async with serving(folder) as picker, aiohttp.ClientSession() as client:  # noqa: SIM117
        async with client.get(f"http://127.0.0.1:{picker.metrics_port}/metrics") as response:
            page = await response.text()
    lines = page.splitlines()
    for limit in (one for one in LIMITS if one.metric != FLOW_CONTROL):  # its metrics begin with it
        name = limit.metric.removesuffix("_total")
        assert any(line.startswith((f"# TYPE {name} ", f"# TYPE {name}_total ")) for line in lines), limit.metric
        assert not limit.event or limit.metric == LARGE_BODIES or f'{limit.metric}{{event="{limit.event}"}}' in page, limit


async def ask_long(picker: Picker) -> None:
    with suppress(grpc.aio.AioRpcError):
        await picker.ask("x" * 100_000)


async def ask_for_a_long_model(picker: Picker) -> None:
    assert await picker.ask(model="m" * 101) == ("", 400)


async def ask_with_a_long_header(picker: Picker) -> None:
    with suppress(grpc.aio.AioRpcError):
        await picker.ask(request_id="x" * 10_000)


async def raw(picker: Picker, data: bytes, port: int | None = None) -> None:
    """Say something, and wait until the other side hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", picker.port if port is None else port)
    writer.write(data)
    with suppress(ConnectionError):
        await reader.read()
    writer.close()


async def two_streams(picker: Picker) -> None:
    client = await RawClient.connect(picker.port)
    client.open(1)
    client.open(3)
    await client.read_until(frames.FrameType.RST_STREAM, 3)
    await client.close()


async def speak_too_early(picker: Picker) -> None:
    """Send an answer before the request was routed."""
    client = await RawClient.connect(picker.port)
    client.open(1)
    body = b'{"model":"m","prompt":"which another process parses, because it is longer than allowed here"}'
    for message in (request_headers(), request_body(body, end=True), response_headers(), *[response_body(b"x")] * 3):
        client.message(1, message)
    await client.read_until(frames.FrameType.HEADERS, 1)
    await client.close()


async def bodies_that_do_not_end(picker: Picker) -> None:
    client = await RawClient.connect(picker.port)
    for stream in (1, 3):
        client.open(stream)
        client.message(stream, request_headers())
        for _ in range(3):
            client.message(stream, request_body(b"x" * 30_000))
    await client.read_until(frames.FrameType.DATA, 3)
    await client.close()


async def half_a_message(picker: Picker) -> None:
    client = await RawClient.connect(picker.port)
    client.open(1)
    client.send(frame(frames.FrameType.DATA, 0, 1, b"\0" + (200_000).to_bytes(4, "big")))
    client.send(frame(frames.FrameType.DATA, 0, 1, bytes(16_000)) * 10)
    await client.read_until(frames.FrameType.RST_STREAM, 1)
    await client.close()


async def take_no_answers(picker: Picker) -> None:
    """Ask with PINGs, and read nothing, until the other side hangs up."""
    _, writer = await asyncio.open_connection("127.0.0.1", picker.port, limit=1)
    writer.write(HELLO)
    with suppress(ConnectionError):
        while True:
            writer.write(frames.ping(b"12345678", ack=False) * 5000)
            await writer.drain()


HELLO = frames.PREFACE + frames.settings({})
LONG_HANDSHAKE = b"\x16\x03\x01\x40\x00" + b"\x01\x01\x00\x00".ljust(16384, b"x")
"""The first quarter of a ClientHello of 64 KiB, which is waited for by default."""
EXCESSES = {
    "messages_too_large": (("--grpc-max-recv-msg-size=64Ki",), ask_long),
    "envelopes_too_large": (("--grpc-max-envelope-size=4Ki",), ask_with_a_long_header),
    "streams_refused": (("--grpc-max-concurrent-streams=1",), two_streams),
    "handshake_timeouts": (("--grpc-handshake-timeout=100ms",), lambda picker: raw(picker, frames.PREFACE)),
    "keepalive_timeouts": (("--grpc-keepalive-time=100ms", "--grpc-keepalive-timeout=100ms"), lambda picker: raw(picker, HELLO)),
    "tls_handshakes_too_long": (("--secure-serving=true", "--tls-max-handshake-size=12Ki"), lambda picker: raw(picker, LONG_HANDSHAKE)),
    "ping_floods": (("--grpc-flood-tolerance=0.1",), lambda picker: raw(picker, HELLO + frames.ping(b"12345678", ack=False) * 300)),
    "settings_floods": ((), lambda picker: raw(picker, HELLO + frames.settings({}) * 300)),
    "header_floods": (
        ("--grpc-max-header-size=1Ki",),
        lambda picker: raw(picker, HELLO + frames.headers(1, bytes(1025), end_stream=False)),
    ),
    f"{TRANSPORT}:header_timeouts": (
        ("--grpc-header-timeout=100ms",),
        lambda picker: raw(picker, HELLO + b"\0\0\x01" + bytes((frames.FrameType.HEADERS, 0)) + b"\0\0\0\x01" + b"\x82"),
    ),
    "slow_readers": (("--grpc-write-timeout=100ms", "--grpc-flood-tolerance=1000"), take_no_answers),
    f"{TRANSPORT}:buffer_exhaustions": (("--max-held=64Ki",), half_a_message),
    f"{SESSION}:buffer_exhaustions": (("--max-held=100Ki",), bodies_that_do_not_end),
    "names_too_long": (("--max-name-length=100",), ask_for_a_long_model),
    "messages_too_early": (("--large-body=64", "--grpc-max-early-messages=3"), speak_too_early),
    "bodies_too_large": (("--max-request-body=1Ki",), ask_long),
    f"{ADMIN}:header_timeouts": (
        ("--metrics-header-timeout=100ms",),
        lambda picker: raw(picker, b"GET / HTTP/1.1\r\n", picker.metrics_port),
    ),
    "requests_too_large": (
        ("--metrics-max-request=4Ki",),
        lambda picker: raw(picker, b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 1000, picker.metrics_port),
    ),
}


@pytest.mark.parametrize("excess", EXCESSES)
async def test_a_real_excess_is_counted_and_told_with_what_to_change(folder, excess):
    options, act = EXCESSES[excess]
    *metric, event = excess.split(":")
    (limit,) = (limit for limit in LIMITS if limit.here and limit.event == event and limit.metric in (metric or (limit.metric,)))
    async with serving(folder, *options) as picker:
        await asyncio.wait_for(act(picker), 30)
        (line, *_) = await picker.logged(limit.told)
        assert (line["level"], line["metric"], line["count_of"]) == ("warning", limit.metric, event)
        samples = {dict(labels)["event"]: value for labels, value in (await picker.samples(limit.metric)).items()}
        assert samples[event] >= 1
        assert (await picker.health())[0] == 200


FULL = """\
featureGates: [flowControl]
flowControl: {maxRequests: 1, defaultRequestTTL: 200ms}
"""


async def test_what_flow_control_refuses_is_told_with_the_field_that_says_so(folder):
    (folder / "config.yaml").write_text(CONFIG + FULL)  # an endpoint that reports nothing counts as full
    async with serving(folder) as picker:
        await asyncio.gather(*(picker.ask(request_id=f"r{number}") for number in range(4)), return_exceptions=True)
        for event in ("RejectedCapacity", "EvictedTTL"):
            limit = next(limit for limit in LIMITS if limit.event == event)
            (line, *_) = await picker.logged(limit.told)
            assert not limit.here or (line["metric"], line["count_of"]) == (FLOW_CONTROL, event)
            samples = await picker.samples(FLOW_CONTROL)
            assert sum(value for labels, value in samples.items() if dict(labels)["outcome"] == event) >= 1


async def test_a_limit_of_a_plugin_is_counted_with_its_instance_and_told(folder):
    (folder / "config.yaml").write_text(CONFIG.replace("path: endpoints.yaml", "path: endpoints.yaml, watchFile: true"))
    async with serving(folder) as picker:
        (folder / "endpoints.yaml").write_text("#" * 2_000_000)
        (line, *_) = await picker.logged(LONG_FILE.told)
        assert (line["level"], line["limit"], line["about"]) == ("warning", "maxFileBytes", "endpoints.yaml")
        samples = await picker.samples("endpick_plugin_limits_total")
        acted = [dict(labels) for labels, value in samples.items() if value]
        assert acted == [{"limit": "maxFileBytes", "plugin_name": "file-discovery", "plugin_type": "file-discovery"}]
