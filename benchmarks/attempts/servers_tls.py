"""Model servers that are asked over TLS, and make much work of it."""

from __future__ import annotations

import _ssl
import asyncio
import ctypes
import datetime as dt
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.gateway import MEBIBYTE
from benchmarks.attempts.posing import beside, certificate, page, server_tls

_HTTPS = CONFIG.replace(
    "plugins:\n", "plugins:\n- {type: metrics-data-source, parameters: {scheme: https}}\n- type: core-metrics-extractor\n", 1
).replace(
    "dataLayer: {discovery: {pluginRef: endpoints}}",
    "dataLayer: {discovery: {pluginRef: endpoints}, sources: "
    "[{pluginRef: metrics-data-source, collectors: [{pluginRef: core-metrics-extractor}]}]}",
)
_PAGE = page(b"vllm:num_requests_waiting 1\nvllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.5\n")
_BEGUN = b"HTTP/1.1 200 OK\r\nContent-Length: 8000000\r\n\r\n"
_PIECE = 256 * 1024


@dataclass
class Records:
    """TLS that is made in memory, so that any records can be sent at one moment."""

    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO

    def taken(self) -> bytes:
        return self.outgoing.read()

    def of_one_byte(self, content: bytes) -> bytes:
        """Each byte in a record of its own."""
        for at in range(len(content)):
            self.tls.write(content[at : at + 1])
        return self.taken()

    def key_updates(self, count: int, *, requested: bool = False) -> bytes:
        """So many, which Python's `ssl` has no call for."""
        library = ctypes.CDLL(_ssl.__file__)  # and what it is linked with
        pointer = ctypes.c_void_p.from_address(id(self.tls._sslobj) + 24)  # type: ignore[attr-defined]  # past the head and `Socket`
        for _ in range(count):
            library.SSL_key_update(pointer, int(requested))
            library.SSL_do_handshake(pointer)
        return self.taken()


Speak = Callable[[Records, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def shaken(context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[Records]:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    records = Records(context.wrap_bio(incoming, outgoing, server_side=True), incoming, outgoing)
    while True:
        try:
            records.tls.do_handshake()
        except ssl.SSLWantReadError:
            writer.write(records.taken())
            if not (data := await reader.read(65_536)):
                raise EOFError from None
            incoming.write(data)
        else:
            writer.write(records.taken())
            yield records
            return


async def _asked(records: Records, reader: asyncio.StreamReader) -> None:
    """Wait for a request."""
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        try:
            received += records.tls.read(65_536)
        except ssl.SSLWantReadError:
            if not (data := await reader.read(65_536)):
                raise EOFError from None
            records.incoming.write(data)


async def _beside(target: Target, context: ssl.SSLContext, speak: Speak, count: int = 20) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with shaken(context, reader, writer) as records:
            while True:
                await _asked(records, reader)
                await speak(records, reader, writer)

    await beside(target, serve, count)


async def changes_of_the_key(target: Target) -> None:
    """20 servers answer with 10,000 changes of the key of TLS at one moment, half of which ask for one in return, again and again."""

    async def speak(records: Records, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        records.tls.write(_BEGUN)
        begun = records.taken()
        while True:
            writer.write(begun + records.key_updates(10_000, requested=target.rng.random() < 0.5))
            begun = b""
            await writer.drain()
            await asyncio.sleep(0.05)

    await _beside(target, server_tls(certificate()), speak)


async def records_of_one_byte(target: Target) -> None:
    """20 servers send pages of 8 MB in records of one byte, 11,000 of them at one moment."""

    async def speak(records: Records, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        records.tls.write(_BEGUN)
        while True:
            writer.write(records.of_one_byte(b"#" * 11_000))
            await writer.drain()
            await asyncio.sleep(0.02)

    await _beside(target, server_tls(certificate()), speak)


async def tickets_without_end(target: Target) -> None:
    """20 servers send 2000 tickets for new sessions with each handshake, and hang up after an answer."""
    context = server_tls(certificate())
    context.num_tickets = 2000

    async def speak(records: Records, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        records.tls.write(_PAGE)
        writer.write(records.taken())
        await writer.drain()
        raise EOFError

    await _beside(target, context, speak)


@cache
def small_chain(count: int) -> bytes:
    """A certificate, its key, and others that are as short as can be."""
    key = ed25519.Ed25519PrivateKey.generate()
    begin = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    made = []
    for number in range(count):
        names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, str(one))]) for one in (number, number + 1)]
        builder = x509.CertificateBuilder(names[1], names[0], key.public_key(), number + 1, begin, begin.replace(year=2060))
        made.append(builder.sign(key, None).public_bytes(serialization.Encoding.PEM))
    own, private = certificate().split(b"-----BEGIN PRIVATE KEY-----")
    return own + b"".join(made) + b"-----BEGIN PRIVATE KEY-----" + private


async def chains_of_hundreds(target: Target) -> None:
    """20 servers show 400 certificates at each handshake, and hang up after an answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_PAGE)
        await writer.drain()

    await beside(target, serve, tls=server_tls(small_chain(400)))


async def _first_flight(context: ssl.SSLContext, reader: asyncio.StreamReader) -> bytes:
    """What a server answers to this client's greeting; nothing where it is none."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    incoming.write(await reader.read(65_536))
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


async def handshakes_at_one_moment(target: Target) -> None:
    """300 servers hold their part of the handshake back, send it at one moment, and hang up after an answer."""
    context = server_tls(certificate())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if flight := await _first_flight(context, reader):
            loop = asyncio.get_running_loop()
            await asyncio.sleep(0.8 - loop.time() % 0.8)
            writer.write(flight)
            await reader.read(65_536)

    await beside(target, serve, 300)


async def handshakes_that_come_to_nothing(target: Target) -> None:
    """100 servers answer a greeting with alerts, noise, HTTP, halves, a record without end, what was not asked for, or silence."""
    context = server_tls(certificate())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if hello := await _first_flight(context, reader):
            cut = target.rng.randrange(1, len(hello))
            writer.write(
                target.rng.choice(
                    (
                        b"\x15\x03\x03\x00\x02\x01\x00" * 30_000,
                        b"\x15\x03\x03\x00\x02\x02\x28",
                        b"\x14\x03\x03\x00\x01\x01" * 40_000,
                        target.rng.randbytes(100_000),
                        _PAGE * 100,
                        hello[:cut],
                        hello[:cut] + bytes([hello[cut] ^ 255]) + hello[cut + 1 :],
                        hello * 20,
                        b"\x16\x03\x03\x40\x00" + b"\x0b\xff\xff\xff" + bytes(16_380),
                        (b"\x16\x03\x03\x40\x00" + bytes(16_384)) * 30,
                        b"\x16\x03\x03\x00\x04\x00\x00\x00\x00" * 25_000,
                        b"",
                    )
                )
            )
            await writer.drain()
            await asyncio.sleep(target.rng.choice((0, 0.1, 60)))

    await beside(target, serve, 100)


async def old_certificates_and_renegotiation(target: Target) -> None:
    """40 servers of TLS 1.2 ask for a new handshake hundreds of times a connection, or for a certificate that there is none of."""
    context = server_tls(certificate())
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    context.options &= ~ssl.OP_NO_RENEGOTIATION
    library = ctypes.CDLL(_ssl.__file__)

    async def speak(records: Records, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pointer = ctypes.c_void_p.from_address(id(records.tls._sslobj) + 24)  # type: ignore[attr-defined]
        records.tls.write(_BEGUN)
        for _ in range(300):
            library.SSL_renegotiate(pointer)
            library.SSL_do_handshake(pointer)
            writer.write(records.taken())
            await writer.drain()
            for _ in range(2):
                records.incoming.write(await asyncio.wait_for(reader.read(65_536), 1))
                library.SSL_do_handshake(pointer)
                writer.write(records.taken())

    await _beside(target, context, speak, 40)


async def pages_over_tls_that_are_none(target: Target) -> None:
    """20 servers send over TLS pages of 8 MB, trailers and extensions of chunks without end, and ends without a goodbye."""
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        begin, part = target.rng.choice(
            (
                (_BEGUN, b"#" * MEBIBYTE),
                (chunked + b"5;", b"a" * MEBIBYTE),
                (chunked + b"1\r\na\r\n0\r\nX-Trailer: ", b"a" * MEBIBYTE),
                (chunked, b"0001\r\n#\r\n" * 30_000),
            )
        )
        writer.write(begin)
        for _ in range(target.rng.randrange(1, 100)):
            writer.write(part)
            await writer.drain()

    await beside(target, serve, tls=server_tls(certificate()))


ATTEMPTS = tuple(
    Attempt(run, config=_HTTPS)
    for run in (
        changes_of_the_key,
        records_of_one_byte,
        tickets_without_end,
        chains_of_hundreds,
        handshakes_at_one_moment,
        handshakes_that_come_to_nothing,
        old_certificates_and_renegotiation,
        pages_over_tls_that_are_none,
    )
)
