"""What a gateway sends: requests in every dialect of ext_proc, good ones and bad ones, and the questions of health probes and grpcurl."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Sequence
from contextlib import suppress

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from endpick.requests.model import BodyMode
from endpick.transport.h2 import frames
from endpick.transport.h2.hpack import encode
from endpick.transport.methods import EXT_PROC_PATH, EXT_PROC_SERVICE
from integration.transport.raw_client import HEADERS, RawClient
from unit.extproc.conversation import (
    read,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
)

MESSAGES = [{"role": "user", "content": "tell me a long story " * 40}]
CHAT = json.dumps({"model": "m", "messages": MESSAGES, "max_tokens": 5}).encode()
STREAMED = json.dumps({"model": "m", "messages": MESSAGES, "stream": True}).encode()
ANSWER = json.dumps({"model": "other", "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}).encode()
USAGE = b'"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}'
EVENTS = (b'data: {"model":"other"}\n\ndata: {"mod', b'el":"other",' + USAGE + b"}\n\n", b"data: [DONE]\n\n")
DECIDED = ("request_headers", "request_body", "immediate_response")
SECONDS = 10
EACH_MODE = (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, BodyMode.STREAMED, BodyMode.NONE)


async def ask(channel: grpc.aio.Channel, request: Sequence[bytes], response: Sequence[bytes] = (), *, hang_up: bool = False) -> list[str]:
    """One request and its response; returns the kinds of the replies. A stream that the server ends is a result, too."""
    call = channel.stream_stream(EXT_PROC_PATH)(timeout=SECONDS)
    kinds: list[str] = []
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        for message in request:
            await call.write(message)
        while not set(kinds) & set(DECIDED) and (reply := await call.read()) is not grpc.aio.EOF:
            kinds.append(read(reply).kind)
        if hang_up:
            call.cancel()
            return kinds
        for message in response:
            await call.write(message)
        await call.done_writing()
        while (reply := await call.read()) is not grpc.aio.EOF:
            kinds.append(read(reply).kind)
    return kinds


def answered(*, mode: BodyMode, head: dict[str, str] | None = None, pieces: Sequence[bytes] = (ANSWER,)) -> list[bytes]:
    """The messages of a response in one dialect."""
    if mode is BodyMode.NONE:
        return [response_headers(head)]
    if mode in (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL):
        return [response_headers({"content-length": "9", **(head or {})}), response_body(b"".join(pieces), end=True)]
    return [response_headers(head), *(response_body(piece) for piece in pieces), response_body(b"", end=True)]


async def every_dialect(channel: grpc.aio.Channel) -> None:
    """A good request and its response in each mode of sending bodies."""
    rewritten = {"x-gateway-model-name-rewrite": "other", "x-llm-d-model-name-rewrite": "other", "content-length": str(len(CHAT))}
    for mode in EACH_MODE:
        for headers in ({}, rewritten):
            opening = request_headers(headers, request_body=mode, response_body=mode, early=True)
            bodies = [] if mode is BodyMode.NONE else [request_body(CHAT, end=True)]
            assert "immediate_response" not in await ask(channel, [opening, *bodies], answered(mode=mode)), mode
    events = answered(mode=EACH_MODE[0], head={"content-type": "text/event-stream"}, pieces=EVENTS)
    await ask(channel, [request_headers(rewritten), request_body(STREAMED[:100]), request_body(STREAMED[100:], end=True)], events)
    await ask(
        channel, [request_headers({"x-bare": "yes"}), request_body(CHAT, end=True)], answered(mode=EACH_MODE[0], pieces=(bytes(200_000),))
    )
    for headers in ({}, rewritten):
        large = json.dumps({"model": "m", "prompt": "tell me a long story " * 600}).encode()
        await ask(channel, [request_headers(headers), request_body(large, end=True)], answered(mode=EACH_MODE[0]))
    served = {"envoy.lb": {"x-gateway-destination-endpoint-served": "127.0.0.1:9"}}
    by_trailers = [response_headers(metadata=served), response_body(ANSWER), response_trailers()]
    await ask(channel, [request_headers(), request_body(CHAT), request_trailers()], by_trailers)
    await ask(
        channel, [request_headers({":method": "GET", ":path": "/v1/models", "x-request-id": "1"}, end=True)], answered(mode=EACH_MODE[0])
    )
    for path, body in (
        ("/v1/completions", {"model": "m", "prompt": "hello"}),
        ("/v1/responses", {"model": "m", "input": "hello"}),
        ("/v1/embeddings", {"model": "m", "input": ["hello"]}),
        ("/somewhere/else", {}),
    ):
        await ask(
            channel, [request_headers({":path": path}), request_body(json.dumps(body).encode(), end=True)], answered(mode=EACH_MODE[0])
        )


async def faults(channel: grpc.aio.Channel) -> None:
    """Requests on which a plugin fails or blocks, close together."""
    for headers in ({"x-block": "0.2"}, {"x-fault": "yes"}, {"x-fault": "yes"}, {}):
        await ask(channel, [request_headers(headers), request_body(CHAT, end=True)], answered(mode=EACH_MODE[0]))


async def long_bodies(channel: grpc.aio.Channel) -> None:
    """Requests and answers of megabytes, in one message and in pieces, as they are and rewritten, with a picture and without."""
    rewritten = {"x-gateway-model-name-rewrite": "other"}
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 2_000_000}}]
    text = [{"role": "user", "content": "tell me a long story " * 100_000}]
    for mode in (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.BUFFERED):
        for headers in ({}, rewritten):
            for messages in (text, [{"role": "user", "content": picture}]):
                body = json.dumps({"model": "m", "messages": messages}).encode()
                opening = request_headers(headers, request_body=mode, response_body=mode)
                pieces = [ANSWER[:-1], b" " * 2_000_000, ANSWER[-1:]]
                whole = [response_headers(), response_body(b"".join(pieces), end=True)]
                await ask(channel, [opening, request_body(body, end=True)], whole)
    cut = [request_body(body[:1_000_000]), request_body(body[1_000_000:], end=True)]
    await ask(channel, [request_headers(), *cut], answered(mode=EACH_MODE[0]))
    mode = BodyMode.BUFFERED
    for kind in ("application/json", "text/event-stream", "application/grpc"):
        opening = request_headers(rewritten, request_body=mode, response_body=mode)
        answer = [response_headers({"content-type": kind}), response_body(b" " * 6_000_000, end=True)]
        await ask(channel, [opening, request_body(CHAT, end=True)], answer)
    await ask(channel, [request_headers({":method": "GET"}, end=True, response_body=mode)], answer)


async def much_structure(channel: grpc.aio.Channel) -> None:
    """Bodies that are short and yet long to parse."""
    for prompt in (r"\"," * 100_000, "\\ud800" + "x" * 300_000, "é" * 200_000):
        body = b'{"model": "m", "prompt": "' + prompt.encode() + b'"}'
        await ask(channel, [request_headers({":path": "/v1/completions"}), request_body(body, end=True)], answered(mode=EACH_MODE[0]))


async def every_way_of_waiting(channel: grpc.aio.Channel) -> None:
    """Two requests of which each fills an endpoint, and others that come meanwhile; needs flow control with room for two."""
    load = {"endpoint-load-metrics": 'JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}}'}
    good, idle = request_body(CHAT, end=True), {"x-llm-d-inference-objective": "idle"}
    done = answered(mode=EACH_MODE[0], head=load)
    await ask(channel, [request_headers(), good], done)
    held = [await _decided(channel, idle) for _ in range(2)]
    await ask(channel, [request_headers({"x-llm-d-inference-objective": "urgent"}), good], done)  # takes the place of one of them
    held += [await _decided(channel, {}) for _ in range(2)]  # the second in place of the other
    late = asyncio.ensure_future(ask(channel, [request_headers(), good], done))  # in vain
    large = json.dumps({"model": "m", "prompt": "tell me a long story " * 600}).encode()
    long = asyncio.ensure_future(ask(channel, [request_headers({":path": "/v1/completions"}), request_body(large, end=True)], done))
    leaving = channel.stream_stream(EXT_PROC_PATH)(timeout=SECONDS)
    await leaving.write(request_headers())
    await leaving.write(good)
    await asyncio.sleep(0.1)  # until it waits, which the server does not tell
    leaving.cancel()
    await asyncio.gather(late, long)
    waiting = asyncio.ensure_future(ask(channel, [request_headers(), good], done))
    await asyncio.sleep(0.1)
    for call in held:
        call.cancel()
    await waiting


async def _decided(channel: grpc.aio.Channel, headers: dict[str, str]) -> grpc.aio.StreamStreamCall:
    """A request on its way to a model server, whose response does not come."""
    call = channel.stream_stream(EXT_PROC_PATH)()
    await call.write(request_headers(headers))
    await call.write(request_body(CHAT, end=True))
    await call.read()
    return call


async def every_refusal(channel: grpc.aio.Channel) -> None:
    """Requests that endpick answers itself or routes in spite of a fault, and streams that break the protocol."""
    for headers in (
        {"x-screen": "all"},
        {"x-reject": "yes"},
        {"x-filter": "all"},
        {"x-filter": "fault"},
        {"prefer": "if-available"},
        {"x-shape": "wrong"},
        {"x-twice": "yes"},
        {"x-late-reject": "yes"},
        {"x-fault": "yes"},
        {"x-wait": "0.01"},
        {"x-wait": "5"},
        {"x-llm-d-inference-objective": "idle"},
        {"x-llm-d-inference-objective": "urgent"},
    ):
        await ask(channel, [request_headers(headers), request_body(CHAT, end=True)], answered(mode=EACH_MODE[0]))
    for hint in ("127.0.0.1:8001, [::1]", "10.9.9.9:1"):
        subset = {"envoy.lb.subset_hint": {"x-gateway-destination-endpoint-subset": hint}}
        await ask(channel, [request_headers(metadata=subset), request_body(CHAT, end=True)], answered(mode=EACH_MODE[0]))
    for body in (b"{", b'{"messages": []}', b"x" * 40_000):
        await ask(channel, [request_headers(), request_body(body, end=True)])
    good = [request_headers(), request_body(CHAT, end=True)]
    for wrong in ([request_body(CHAT)], [b"\xff\xff"], [*good, good[1]], [request_headers(), request_headers()]):
        await ask(channel, wrong)
    await ask(channel, good, hang_up=True)
    await ask(channel, good, [response_headers(), response_body(ANSWER[:5])])
    await ask(channel, [request_headers({"x-wait": "0.1"}), request_body(CHAT, end=True), response_headers()])
    await ask(channel, [request_headers({"x-wait": "0.1"}), request_body(CHAT, end=True)], hang_up=True)
    silent = channel.stream_stream(EXT_PROC_PATH)(timeout=0.2)
    with suppress(grpc.aio.AioRpcError):
        await silent.write(request_headers())
        await silent.read()
    with suppress(grpc.aio.AioRpcError):
        _ = [reply async for reply in channel.stream_stream("/no.such.Service/Method")(iter([b""]), timeout=SECONDS)]


async def health_and_reflection(channel: grpc.aio.Channel) -> None:
    """What Kubernetes and grpcurl ask."""
    health = health_pb2_grpc.HealthStub(channel)
    await health.Check(health_pb2.HealthCheckRequest(service=EXT_PROC_SERVICE))
    await health.List(health_pb2.HealthListRequest())
    with suppress(grpc.aio.AioRpcError):
        await health.Check(health_pb2.HealthCheckRequest(service="nobody"))
    watch = watch_readiness(channel)
    await watch.read()
    watch.cancel()
    questions = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
    for question in (
        {"list_services": ""},
        {"file_containing_symbol": EXT_PROC_SERVICE},
        {"file_by_filename": "no.proto"},
        {"all_extension_numbers_of_type": EXT_PROC_SERVICE},
    ):
        await questions.write(reflection_pb2.ServerReflectionRequest(**question))
        await questions.read()
    await questions.done_writing()


def watch_readiness(channel: grpc.aio.Channel) -> grpc.aio.UnaryStreamCall:
    """A stream that only the caller or the end of the server ends."""
    return health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="readiness"))


async def bad_http2(port: int) -> None:
    """Frames that no gateway sends, and some that few do; each connection is the server's to end."""

    async def said(data: bytes, *, greet: bool = True, settings: dict[int, int] | None = None) -> None:
        client = await RawClient.connect(port, greet=greet, settings=settings)
        client.open(1)
        client.message(1, request_headers({"x-wait": "0.05"}))
        client.open(3)
        client.message(3, request_headers(end=True))
        client.send(data)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.read_to_end()
        await client.close()

    small_window = {4: 10}
    raw = frames.FRAME_HEAD.pack
    piece = request_body(b"x")
    hundred = (b"\0\0\0\0" + bytes([len(piece)]) + piece) * 100
    await asyncio.gather(
        said(b"GET / HTTP/1.1\r\n\r\n", greet=False),
        said(frames.ping(b"12345678", ack=False) + frames.ping(b"12345678", ack=True)),
        said(raw(*divmod(len(hundred), 256), 0, 0, 1) + hundred),
        said(frames.rst_stream(1, 8)),
        said(frames.goaway(0, 0)),
        said(frames.settings({4: 1, 1: 0}) + frames.window_update(0, 100) + frames.window_update(1, 100)),
        said(raw(0, 5, 2, 0, 1) + b"\0\0\0\0\1"),
        said(raw(0, 4, 5, 4, 1) + b"\0\0\0\2"),
        said(raw(0, 1, 0, 0, 99) + b"x"),
        said(raw(0, 5, 0, 0, 1) + b"\1\0\0\0\0"),
        said(raw(0, 2, 1, 4, 5) + b"\x80\x80"),
        said(raw(0, 5, 1, 0x24, 5) + b"\0\0\0\0\x10"),
        said(_long_header_block(5)),
        said(b"", settings=small_window),
        said(frames.window_update(3, 1000), settings=small_window),
        said(frames.headers(1, encode(((b"x-end", b"1"),)), end_stream=True)),
        said(frames.headers(5, encode((*HEADERS, (b"content-length", b"10"))), end_stream=True)),
        said(frames.headers(5, encode((*HEADERS[:4], (b"content-type", b"text/html"))), end_stream=True)),
        said(frames.headers(5, encode((*HEADERS, (b"Upper", b"1"))), end_stream=False)),
        said(frames.headers(5, encode((*HEADERS, (b"x-long", b"v" * 300))), end_stream=False)),
        said(frames.window_update(1, 0)),
        said(raw(0, 0, 0, 0, 1) * 3),
        said(raw(0, 3, 0, 8, 1) + b"\1\0\0"),
    )


def _long_header_block(stream_id: int) -> bytes:
    """HEADERS and CONTINUATION that are longer together than a header block may be."""
    begun, went_on = bytes(16_000), bytes(1_000)
    head, more = len(begun), len(went_on)
    return (
        frames.FRAME_HEAD.pack(head >> 8, head & 0xFF, 1, 0, stream_id)
        + begun
        + frames.FRAME_HEAD.pack(more >> 8, more & 0xFF, 9, 4, stream_id)
        + went_on
    )


async def plain_text_at_tls(port: int) -> None:
    """A client that does not speak TLS, and one that does but asks for nothing."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(frames.PREFACE)
    await writer.drain()
    writer.close()
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    trusting.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
    writer.close()


async def bad_http1(port: int) -> None:
    """What is no request, and what never ends."""
    for said in (b"nonsense\r\n\r\n", b"GET /nowhere HTTP/1.1\r\n\r\n" * 3, b"GET /metrics HTTP/1.1\r\nx: " + b"x" * 2000):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        await reader.read(10)
        writer.close()
