"""Clients that mean harm, each over and over until the time is up; all on loopback, in a process of their own.

python -m benchmarks.siege.hostile EXT_PROC_PORT METRICS_PORT SECONDS [ATTACK ...]
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress

from benchmarks.extproc.phased import encoded_requests
from endpick._proto.ext_proc_pb2 import HeaderMap, HeaderValue, HttpBody, HttpHeaders, ProcessingRequest
from endpick.transport.h2 import frames
from endpick.transport.h2.errors import ErrorCode
from endpick.transport.h2.frames import FRAME_HEAD, FrameType

_MEBIBYTE = 1 << 20
_MAX_FRAME = 16_384
_HELLO = frames.PREFACE + frames.settings({4: 2**30}) + frames.window_update(0, 2**30)
_CONNECTIONS = 150


def bodies(rng: random.Random) -> Iterator[bytes]:
    """Request bodies that cost more than they look."""
    yield b'{"model":"m","messages":[{"role":"user","content":[' + b"{}," * 200_000 + b"{}]}]}"
    yield b'{"model":"m","prompt":[' + b"[1]," * 300_000 + b"[1]]}"
    yield b'{"model":"m","prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    yield b'{"model":"m","prompt":"' + b'\\"' * (2 * _MEBIBYTE) + b'"}'
    yield b'{"model":"m","prompt":"\\ud800 \xff\xfe"}'
    yield json.dumps({"model": "m" * 100_000, "prompt": "x" * 4 * _MEBIBYTE}).encode()
    yield json.dumps({"model": f"made-up-{rng.random()}", "prompt": "x"}).encode()
    yield rng.randbytes(100_000)
    # As long as a body may be that is parsed on the event loop.
    yield b'{"model":"m","messages":[{"role":"user","content":[' + b"{}," * 130_000 + b"{}]}]}"
    yield b'{"model":"m","prompt":[' + b"0," * 500_000 + b"0]}"
    yield b'{"model":"m","prompt":"p","x":[' + b'"",' * 300_000 + b'""]}'
    yield b'{"model":"m","prompt":"' + b"\xff" * (_MEBIBYTE - 100) + b'"}'


def request(body: bytes, headers: dict[str, str]) -> bytes:
    """The ext_proc messages of a request, each as a gRPC message."""
    names = {":path": "/v1/completions", ":method": "POST", "content-type": "application/json", **headers}
    first = HttpHeaders(headers=HeaderMap(headers=[HeaderValue(key=key, raw_value=value.encode()) for key, value in names.items()]))
    messages = [ProcessingRequest(request_headers=first)]
    pieces = [body[at : at + 60_000] for at in range(0, len(body), 60_000)] or [b""]
    messages += [ProcessingRequest(request_body=HttpBody(body=piece, end_of_stream=piece is pieces[-1])) for piece in pieces]
    return b"".join(struct.pack(">BI", 0, message.ByteSize()) + message.SerializeToString() for message in messages)


def stream(stream_id: int, data: bytes) -> bytes:
    """HEADERS and DATA of one stream, whatever the window says."""
    first, later = encoded_requests()
    out = [frames.headers(stream_id, first if stream_id == 1 else later, end_stream=False)]
    for at in range(0, len(data), _MAX_FRAME):
        piece = data[at : at + _MAX_FRAME]
        out.append(FRAME_HEAD.pack(len(piece) >> 8, len(piece) & 0xFF, FrameType.DATA, 0, stream_id) + piece)
    return b"".join(out)


class Attacker:
    """One kind of attack on one port."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self.port = port
        self.rng = rng

    async def noise(self) -> None:
        """Bytes that are no HTTP/2, and frames that make no sense."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(self.rng.choice([b"", _HELLO]) + self.rng.randbytes(self.rng.randrange(1, 5000)))
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(), 1)
        writer.close()

    async def idle(self) -> None:
        """Connections that say nothing, or nothing after the preface."""
        held = [await asyncio.open_connection("127.0.0.1", self.port) for _ in range(_CONNECTIONS)]
        for _, writer in held[::2]:
            writer.write(_HELLO)
        await asyncio.sleep(5)
        for _, writer in held:
            writer.close()

    async def bombs(self) -> None:
        """Bodies that cost more than they look, and names that no model has."""
        for body in bodies(self.rng):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            flow = {"x-gateway-inference-fairness-id": f"made-up-{self.rng.random()}"}
            writer.write(_HELLO + stream(1, request(body, flow)))
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(65_536), 2)
            writer.close()
            await asyncio.sleep(0.2)

    async def resets(self) -> None:
        """Streams that are opened and reset, as fast as may be."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = request(b'{"model":"m","prompt":"x"}', {})
        opened = (stream(at, data) + frames.rst_stream(at, ErrorCode.CANCEL) for at in range(1, 4001, 2))
        writer.write(_HELLO + b"".join(opened))
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(), 2)
        writer.close()

    async def unread(self) -> None:
        """Requests whose answers are never read."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        body = b'{"model":"m","prompt":"' + b"x" * 30_000 + b'"}'
        writer.write(_HELLO + b"".join(stream(at, request(body, {})) for at in range(1, 61, 2)))
        await asyncio.sleep(3)
        writer.close()
        del reader

    async def half_requests(self) -> None:
        """On the metrics port: requests that never end."""
        held = [await asyncio.open_connection("127.0.0.1", self.port) for _ in range(_CONNECTIONS)]
        for _, writer in held:
            writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\n")
        await asyncio.sleep(5)
        for _, writer in held:
            writer.close()


async def attack(ext_proc_port: int, metrics_port: int, seconds: float, names: Sequence[str]) -> Counter[str]:
    """These attacks, or all, beside each other, again and again; how often each was made, and what it ran into."""
    rng = random.Random(7)
    picker, admin = Attacker(ext_proc_port, rng), Attacker(metrics_port, rng)
    until, made = time.monotonic() + seconds, Counter[str]()

    async def keep_on(step: Callable[[], Awaitable[None]], name: str) -> None:
        while time.monotonic() < until:
            try:
                await step()
                made[name] += 1
            except OSError as refusal:  # the server defends itself
                made[f"{name}: {type(refusal).__name__}"] += 1
            await asyncio.sleep(0.2)

    attacks = [picker.noise, picker.idle, picker.bombs, picker.resets, picker.unread, admin.half_requests]
    await asyncio.gather(*(keep_on(step, step.__name__) for step in attacks if not names or step.__name__ in names))
    return made


def main() -> int:
    ext_proc_port, metrics_port, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    print(json.dumps(asyncio.run(attack(ext_proc_port, metrics_port, seconds, sys.argv[4:]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
