"""Hostile clients on loopback, each attack again and again: `python -m benchmarks.soak.hostile EXT_PROC METRICS SECONDS [NAME ...]`."""

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
from itertools import count

from jh2._hazmat import Encoder

from endpick._proto.ext_proc_pb2 import HeaderMap, HeaderValue, HttpBody, HttpHeaders, ProcessingRequest
from endpick.transport.methods import EXT_PROC_PATH

MEBIBYTE = 1 << 20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_STREAM, END_HEADERS = 1, 4
_FIELDS = [
    (b":method", b"POST", False),
    (b":path", EXT_PROC_PATH.encode(), False),
    (b":scheme", b"http", False),
    (b":authority", b"picker", False),
    (b"te", b"trailers", False),
    (b"content-type", b"application/grpc", False),
]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">BHBBI", len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


HELLO = PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**30)) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30))


def stream(number: int, data: bytes) -> bytes:
    """HEADERS and DATA of one request."""
    pieces = [data[at : at + 16_384] for at in range(0, len(data), 16_384)]
    return frame(HEADERS, END_HEADERS, number, Encoder().encode(_FIELDS)) + b"".join(frame(DATA, 0, number, piece) for piece in pieces)


def request(body: bytes, headers: dict[str, str] | None = None, *, complete: bool = True) -> bytes:
    """The ext_proc messages of a request, framed as gRPC."""
    names = {":path": "/v1/completions", ":method": "POST", "content-type": "application/json", **(headers or {})}
    first = HttpHeaders(headers=HeaderMap(headers=[HeaderValue(key=key, raw_value=value.encode()) for key, value in names.items()]))
    pieces = [body[at : at + 60_000] for at in range(0, len(body), 60_000)]
    messages = [ProcessingRequest(request_headers=first)]
    messages += [ProcessingRequest(request_body=HttpBody(body=piece, end_of_stream=complete and piece is pieces[-1])) for piece in pieces]
    return b"".join(struct.pack(">BI", 0, message.ByteSize()) + message.SerializeToString() for message in messages)


def bombs() -> Iterator[bytes]:
    """Bodies that cost more than they look."""
    yield b'{"model":"m","messages":[{"role":"user","content":[' + b"{}," * 1_000_000 + b"{}]}]}"
    yield b'{"model":"m","prompt":[' + b"[1]," * 4_000_000 + b"[1]]}"
    yield b'{"model":"m","messages":[' + b"{}," * 5_000_000 + b"{}]}"
    yield b'{"model":"m","tools":[' + b"{}," * 5_000_000 + b"{}]}"
    yield b'{"model":"m",' + b",".join(b'"k%d":0' % number for number in range(1_500_000)) + b"}"
    yield b'{"model":"m","prompt":' + b"[" * 500_000 + b"]" * 500_000 + b"}"
    yield b'{"model":"m","prompt":"' + b'\\"' * (2 * MEBIBYTE) + b'"}'
    yield b'{"model":"m","prompt":"\\ud800 \xff\xfe"}'


class Attacks:
    """Each method is one attack."""

    def __init__(self, ext_proc: int, metrics: int) -> None:
        self._ext_proc = ext_proc
        self._metrics = metrics
        self._random = random.Random(7)
        self._bombs = list(bombs())
        self._names = count()

    async def noise(self) -> None:
        """Random bytes."""
        await self._send(self._random.choice([b"", HELLO]) + self._random.randbytes(self._random.randrange(1, 5000)), seconds=1)

    async def structure_bomb(self) -> None:
        """Bodies with millions of JSON values."""
        await self._send(HELLO + stream(1, request(self._random.choice(self._bombs))), seconds=3)

    async def label_flood(self) -> None:
        """Model and tenant names nobody else uses."""
        body = json.dumps({"model": f"made-up-{next(self._names)}", "prompt": "x"}).encode()
        flow = {"x-llm-d-inference-fairness-id": f"tenant-{next(self._names)}"}
        await self._send(HELLO + b"".join(stream(number, request(body, flow)) for number in range(1, 41, 2)), seconds=1)

    async def stream_flood(self) -> None:
        """Thousands of streams that stay open."""
        first = request(b"", complete=False)
        await self._send(HELLO + b"".join(stream(number, first) for number in range(1, 8001, 2)), seconds=3)

    async def rapid_reset(self) -> None:
        """Streams that are reset at once."""
        data, reset = request(b'{"model":"m","prompt":"x"}'), struct.pack(">I", 8)
        await self._send(HELLO + b"".join(stream(at, data) + frame(RST_STREAM, 0, at, reset) for at in range(1, 4001, 2)), seconds=2)

    async def ping_flood(self) -> None:
        """PING and SETTINGS frames by the thousand."""
        await self._send(HELLO + (frame(PING, 0, 0, b"12345678") + frame(SETTINGS, 0, 0)) * 20_000, seconds=2)

    async def half_bodies(self) -> None:
        """Bodies that never end."""
        body = request(b'{"model":"m","prompt":"' + b"x" * MEBIBYTE, complete=False)
        await self._send(HELLO + b"".join(stream(number, body) for number in range(1, 21, 2)), seconds=5)

    async def slow_reader(self) -> None:
        """A client that reads none of its replies."""
        body = b'{"model":"m","prompt":"' + b"x" * 30_000 + b'"}'
        reader, writer = await asyncio.open_connection("127.0.0.1", self._ext_proc, limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(HELLO + b"".join(stream(number, request(body)) for number in range(1, 201, 2)))
        await asyncio.sleep(3)
        writer.close()
        del reader

    async def half_scrapes(self) -> None:
        """Requests to the metrics port that never end."""
        held = [await asyncio.open_connection("127.0.0.1", self._metrics) for _ in range(20)]
        for _, writer in held:
            writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\n")
        await asyncio.sleep(2)
        for _, writer in held:
            writer.close()

    async def _send(self, data: bytes, seconds: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._ext_proc)
        writer.write(data)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while await reader.read(65_536):
                    pass
        writer.close()


ATTACKS: tuple[Callable[[Attacks], Awaitable[None]], ...] = (
    Attacks.noise,
    Attacks.structure_bomb,
    Attacks.label_flood,
    Attacks.stream_flood,
    Attacks.rapid_reset,
    Attacks.ping_flood,
    Attacks.half_bodies,
    Attacks.slow_reader,
    Attacks.half_scrapes,
)


async def main(ext_proc: int, metrics: int, seconds: float, names: Sequence[str]) -> Counter[str]:
    attacks, until, made = Attacks(ext_proc, metrics), time.monotonic() + seconds, Counter[str]()

    async def repeat(attack: Callable[[Attacks], Awaitable[None]]) -> None:
        while time.monotonic() < until:
            try:
                await attack(attacks)
                made[attack.__name__] += 1
            except OSError as refusal:
                made[f"{attack.__name__}: {type(refusal).__name__}"] += 1
            await asyncio.sleep(0.3)

    await asyncio.gather(*(repeat(attack) for attack in ATTACKS if not names or attack.__name__ in names))
    return made


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))))
