"""Services beside the model servers: renderers, predictors, publishers of KV events, and who pushes over OTLP."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
from contextlib import suppress

from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.gateway import MEBIBYTE, answered, connected
from benchmarks.attempts.posing import PLAIN, Serve, answering, beside, page, serving

_RENDERER, _PREDICTOR, _EVENTS, _OTLP, _OTLP_GRPC = 20_600, 20_601, 20_557, 20_318, 20_317
_RENDERING = CONFIG.replace(
    "plugins:\n",
    f"plugins:\n- type: token-producer\n  parameters: {{modelName: m, vllm: {{url: 'http://127.0.0.1:{_RENDERER}', timeout: 200ms}}}}\n",
    1,
)
_PREDICTING = CONFIG.replace("plugins:\n", "plugins:\n- type: predicted-latency-producer\n- type: latency-scorer\n", 1).replace(
    "  - pluginRef: max-score-picker", "  - pluginRef: latency-scorer\n  - pluginRef: max-score-picker"
)
_HEARING = CONFIG.replace(
    "- type: prefix-cache-scorer",
    "- type: token-producer\n- type: precise-prefix-cache-producer\n  parameters: {kvEventsConfig: "
    f"{{podDiscoveryConfig: {{socketPort: {_EVENTS}, replaySocketPort: {_EVENTS + 1}}}}}}}\n"
    "- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}}",
)
_PUSHED = CONFIG.replace(
    "plugins:\n",
    f"plugins:\n- {{type: otlp-source, parameters: {{port: {_OTLP}, grpcPort: {_OTLP_GRPC}}}}}\n- type: core-metrics-extractor\n",
    1,
).replace(
    "dataLayer: {discovery: {pluginRef: endpoints}}",
    "dataLayer: {injectDefaults: false, discovery: {pluginRef: endpoints}, "
    "sources: [{pluginRef: otlp-source, collectors: [{pluginRef: core-metrics-extractor}]}]}",
)


def _json(body: bytes) -> bytes:
    return page(body, b"X-Type: application/json\r\n")


async def _asked(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
    return await reader.readexactly(int(length.partition(b":")[2]))


def _service(target: Target, bodies: tuple[bytes, ...], others: tuple[bytes, ...]) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await _asked(reader)
            match target.rng.randrange(4):
                case 0:
                    writer.write(target.rng.choice(others))
                case 1:
                    writer.write(_json(target.rng.choice(bodies))[: target.rng.randrange(10_000)])
                    return
                case _:
                    writer.write(_json(target.rng.choice(bodies)))
            await writer.drain()

    return serve


_OTHERS = (
    PLAIN + b"Content-Length: 8000000\r\n\r\n#",
    PLAIN + b"Transfer-Encoding: chunked\r\n\r\n5;" + b"a" * (8 * MEBIBYTE),
    b"HTTP/1.1 307 Temporary\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
    page(gzip.compress(b" " * 300_000_000), b"Content-Encoding: gzip\r\n"),
    b"\0" * 1000,
)


async def renderers_that_are_none(target: Target) -> None:
    """A renderer answers with half a million tokens, tokens that are none, 4096 prompts, media without end, 8 MB, halves, bombs, drips."""
    place = json.dumps({"offset": 0, "length": 1}).encode()
    bodies = (
        b'{"token_ids":[' + b"4294967295," * 500_000 + b"1]}",
        b'{"token_ids":[' + b"1," * 500_000 + b'"a"]}',
        b'{"token_ids":[-1]}',
        b'{"token_ids":[1e308]}',
        b"[" + b'{"token_ids":[1]},' * 50_000 + b"{}]",
        b"[" * 100_000,
        b'{"token_ids":[1],"features":{"mm_hashes":{"image":['
        + b'"h",' * 50_000
        + b'""]},"mm_placeholders":{"image":['
        + place
        + (b"," + place) * 50_000
        + b"]}}}",
        b'{"token_ids":"' + b"a" * 8_000_000 + b'"}',
        b'{"token_ids":{' + b",".join(b'"%d":1' % number for number in range(200_000)) + b"}}",
        b"null",
        b"",
    )
    async with serving(_service(target, bodies, _OTHERS), port=_RENDERER):
        await asyncio.sleep(max(1, target.seconds_left()))


async def predictors_that_are_none(target: Target) -> None:
    """A predictor answers with lists for numbers, NaN, 1e308, too many and too few rows, texts of megabytes, depth, halves, bombs."""
    numbers = b"[" + b"0.123456789123," * 500_000 + b"1]"
    rows = [b'{"ttft_ms":%s,"tpot_ms":%s}' % (one, one) for one in (numbers, b"1e308", b"-1", b'"1"', b"true", b"null", b"{}", b"9" * 400)]
    bodies = (
        *(b'{"predictions":[' + b",".join([row] * 12) + b"]}" for row in rows[1:]),
        b'{"predictions":[' + rows[0] + b',{"ttft_ms":1}' * 11 + b"]}",
        b'{"predictions":[' + b"{}," * 120_000 + b"{}]}",
        b'{"predictions":' + b"[" * 100_000,
        b'{"predictions":"' + b"a" * 8_000_000 + b'"}',
        b'{"predictions":[NaN]}',
        b"[]",
    )
    async with serving(_service(target, bodies, _OTHERS), port=_PREDICTOR):
        await asyncio.sleep(max(1, target.seconds_left()))


_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"


def _frame(body: bytes, flags: int = 0) -> bytes:
    return bytes((flags | 2,)) + len(body).to_bytes(8, "big") + body


def _published(events: bytes, number: int = 0, topic: bytes = b"kv@") -> bytes:
    return _frame(topic, 1) + _frame(number.to_bytes(8, "big"), 1) + _frame(events)


def _batch(count: int, event: bytes) -> bytes:
    """As MessagePack: a time, and so many events."""
    return b"\x92\xcb" + struct.pack(">d", 1.0) + b"\xdd" + struct.pack(">I", count) + event * count


def _stored(blocks: int) -> bytes:
    hashes = b"\xdd" + struct.pack(">I", blocks) + b"".join(b"\xcf" + struct.pack(">Q", number * 7) for number in range(blocks))
    tokens = b"\xdd" + struct.pack(">I", blocks) + b"\x01" * blocks
    return b"\x97\xabBlockStored" + hashes + b"\xc0" + tokens + b"\x01\xc0\xa3gpu"


async def publishers_that_are_none(target: Target) -> None:
    """Publishers send floods: 90,000 events, blocks of one token, groups, depth, names of megabytes, wrong numbers, edges."""
    removed = b"\x92\xacBlockRemoved\x91\x01"
    messages = (
        _published(_batch(90_000, removed)),
        _published(_batch(1, _stored(100_000))),
        _published(_batch(500, _stored(100))),
        _published(b"\x92\xcb" + struct.pack(">d", 1.0) + b"\x91" * 1_000_000),
        _published(_batch(1, b"\x92\xdb" + struct.pack(">I", 2_000_000 - 99) + b"n" * (2_000_000 - 99) + b"\xc0")),
        _published(b"\x92\xcb" + bytes(8) + b"\xdd\xff\xff\xff\xff" + removed),
        _published(_batch(1, b"\x91\xb0AllBlocksCleared"), 2**64 - 1),
        _published(b"", 5),
        _frame(b"", 1) * 900 + _frame(b""),
        _frame(b"x" * 2_000_000),
        b"\x02" + b"\xff" * 8,
        b"\x04\x20\x04PING\x00\x00" + b"c" * 25,
        b"\x04\x00" * 50_000,
        b"\x06" + (4000).to_bytes(8, "big") + b"\x04PING" + bytes(3995),
        target.rng.randbytes(100_000),
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_GREETING + _READY)
        await reader.readexactly(64)
        for _ in range(target.rng.randrange(1, 60)):
            writer.write(target.rng.choice(messages))
            await writer.drain()
            if target.rng.random() < 0.2:
                await asyncio.sleep(0.05)

    async with serving(serve, port=_EVENTS), serving(serve, port=_EVENTS + 1):
        await beside(target, answering(page(b"vllm:num_requests_waiting 1\n")), 40)


def _pushed(body: bytes, headers: bytes = b"Content-Type: application/x-protobuf\r\n") -> bytes:
    return b"POST /v1/metrics HTTP/1.1\r\nHost: a\r\n" + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _field(number: int, body: bytes) -> bytes:
    length, out = len(body), bytearray()
    while True:
        out.append(length & 127 | (128 if length > 127 else 0))
        length >>= 7
        if not length:
            return bytes((number << 3 | 2,)) + bytes(out) + body


async def exports_that_are_none(target: Target) -> None:
    """Over OTLP: packed, nested and empty messages by the hundred thousand, JSON of brackets, bombs, halves, wrong lengths, noise."""
    point = _field(1, _field(2, _field(2, _field(1, b"vllm:num_requests_waiting") + _field(5, _field(1, b"\x21" + bytes(8))))))
    nested = b""
    for _ in range(2000):
        nested = _field(1, nested)
    bodies = (
        point * 50_000,
        b"\x0a\x00" * 1_900_000,
        _field(1, b"\x12\x00" * 1_900_000),
        nested,
        _field(1, _field(1, _field(1, b"\x0a\xff\xff\xff\xff\x0f"))),
        b"\xff" * 3_900_000,
    )
    jsons = (
        b"[" * 3_900_000,
        b'{"resourceMetrics":[' + b"{}," * 1_000_000 + b"{}]}",
        b'{"resourceMetrics":[' + b"1," * 1_900_000 + b"1]}",
        b"{}",
    )
    pushes = (
        *map(_pushed, bodies),
        *(_pushed(body, b"Content-Type: application/json\r\n") for body in jsons),
        _pushed(gzip.compress(b"\n\0" * 100_000_000), b"Content-Type: application/x-protobuf\r\nContent-Encoding: gzip\r\n"),
        _pushed(b"no", b"Content-Type: application/x-protobuf\r\nContent-Encoding: gzip\r\n"),
        b"POST /v1/metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\nContent-Type: application/x-protobuf\r\n\r\n" + b"\n\0" * 1000,
        b"POST /v1/metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n\n\r\n" * 300_000,
        b"POST /v1/metrics HTTP/1.1\r\n" + b"A: b\r\n" * 20_000,
        target.rng.randbytes(200_000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)) * 20_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 8, 6, 0, 0, 0, 0, 0)) * 10 + bytes(80_000),
    )

    async def push() -> None:
        with suppress(OSError, EOFError):
            async with connected(target.rng.choice((_OTLP, _OTLP, _OTLP_GRPC))) as (reader, writer):
                writer.write(target.rng.choice(pushes))
                async with asyncio.timeout(3):
                    await writer.drain()
                await answered(reader, target.rng.choice((0, 1)))

    await asyncio.gather(*(push() for _ in range(30)), return_exceptions=True)


ATTEMPTS = (
    Attempt(renderers_that_are_none, config=_RENDERING),
    Attempt(
        predictors_that_are_none,
        config=_PREDICTING,
        environment={"PREDICTION_SERVER_URL": f"http://127.0.0.1:{_PREDICTOR}", "TRAINING_SERVER_URL": f"http://127.0.0.1:{_PREDICTOR}"},
    ),
    Attempt(publishers_that_are_none, config=_HEARING),
    Attempt(exports_that_are_none, flags=("--allow-experimental-plugins",), config=_PUSHED),
)
