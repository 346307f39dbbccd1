"""TLS that means harm, on a second picker that asks its clients for certificates: certificates, renewals, records, halves."""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.connections import source_of
from benchmarks.attempts.gateway import HELLO, answered, connected, data, frame, opened
from benchmarks.attempts.second import PLAIN, Second, asked, refused, second
from endpick.transport.h2 import frames
from endpick.transport.h2.frames import FrameType

_SECURE = (
    "--secure-serving=true",
    "--cert-path=certs",
    "--client-ca-file=certs/ca.crt",
    "--metrics-cert-dir=certs",
    "--metrics-client-ca-file=certs/ca.crt",
)
_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Pair:
    """A certificate, those that follow it, and the key."""

    certificate: x509.Certificate
    key: _Key
    behind: tuple[x509.Certificate, ...] = ()

    @property
    def chain_pem(self) -> str:
        return "".join(each.public_bytes(Encoding.PEM).decode() for each in (self.certificate, *self.behind))

    @property
    def key_pem(self) -> str:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def certified(name: str, by: Pair | None = None, *, begins: int = -1, ends: int = 9, key: _Key | None = None, names: int = 1) -> Pair:
    """A pair for a name, by itself or by another, valid from and to so many days from now; with further names if it is to be long."""
    key, now = key or ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(
        subject if by is None else by.certificate.subject, subject, key.public_key(), x509.random_serial_number()
    )
    builder = builder.not_valid_before(now + timedelta(days=begins)).not_valid_after(now + timedelta(days=ends))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    alternatives = [x509.DNSName("localhost"), *(x509.DNSName(f"a{at}.example") for at in range(1, names))]
    builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return Pair(builder.sign(key if by is None else by.key, hashes.SHA256()), key, () if by is None else (by.certificate, *by.behind))


@cache
def authority() -> Pair:
    return certified("the authority")


@cache
def clients() -> Mapping[str, ssl.SSLContext]:
    """A context for each kind of client; the first is right."""
    chained = certified("the first of many", authority())
    for at in range(60):
        chained = certified(f"one of many {at}", chained)
    pairs = {
        "right": certified("a gateway", authority()),
        "of itself": certified("a gateway"),
        "of another": certified("a gateway", certified("the authority")),
        "early": certified("a gateway", authority(), begins=3),
        "expired": certified("a gateway", authority(), begins=-5, ends=-1),
        "long": certified("a gateway", authority(), names=600),
        "of many": chained,
        "slow": certified("a gateway", authority(), key=rsa.generate_private_key(65_537, 4096)),
    }
    return {"none": client(None), **{name: client(pair) for name, pair in pairs.items()}}


def client(pair: Pair | None) -> ssl.SSLContext:
    """What speaks TLS with this certificate, and believes any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if pair is not None:
        with tempfile.TemporaryDirectory() as place:
            Path(place, "crt").write_text(pair.chain_pem)
            Path(place, "key").write_text(pair.key_pem)
            context.load_cert_chain(Path(place, "crt"), Path(place, "key"))
    return context


@asynccontextmanager
async def secure(target: Target) -> AsyncIterator[Second]:
    """A second picker with mutual TLS on the ports of ext_proc and metrics."""
    await asyncio.to_thread(clients)
    server = certified("endpick", authority())
    files = {"certs/tls.crt": server.chain_pem, "certs/tls.key": server.key_pem, "certs/ca.crt": authority().chain_pem}
    async with second(target, *_SECURE, files=files) as made:
        yield made


async def believed(made: Second, seconds: float) -> None:
    """Ask and probe with the right certificate until the time is up, and tell what was not answered."""
    until, answers = time.monotonic() + seconds, list[bool]()
    while time.monotonic() < until or not answers:
        answers.append(await asked(made.picker.ext_proc_port, clients()["right"]))
        answers.append(await _is_well(made.picker.metrics_port))
        await asyncio.sleep(0.1)
    made.told += refused(answers, "on mutual TLS, with a right certificate")


async def _is_well(port: int) -> bool:
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=_for_pages(), server_hostname="localhost")
            try:
                writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                return b" 200 " in await answered(reader, 5)
            finally:
                writer.transport.abort()
    return False


@cache
def _for_pages() -> ssl.SSLContext:
    context = client(certified("a scraper", authority()))
    context.set_alpn_protocols(["http/1.1"])
    return context


async def _greet(target: Target, port: int, context: ssl.SSLContext, saying: bytes) -> None:
    """Make a handshake, say something, and hear what comes of it."""
    with suppress(OSError, EOFError, TimeoutError):
        async with asyncio.timeout(3):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname="localhost", local_addr=(source_of(target), 0)
            )
            writer.write(saying)
            await answered(reader, 0.5)
            writer.transport.abort()


async def certificates_of_all_kinds(target: Target) -> Iterable[str]:
    """Mutual TLS: handshakes with wrong, early, expired, long, slow, chained or no certificates, 30 at once on each port."""
    async with secure(target) as made:
        kinds = [context for name, context in clients().items() if name != "right"]
        asking = asyncio.create_task(believed(made, 3))
        while not asking.done():
            ports = (made.picker.ext_proc_port, made.picker.metrics_port) * 30
            await asyncio.gather(*(_greet(target, port, target.rng.choice(kinds), HELLO + opened(1) + data(1, PLAIN)) for port in ports))
        await asking
    return made.told


async def certificates_renewed_and_spoilt_in_a_flood(target: Target) -> Iterable[str]:
    """Certificate, key and authority are renewed, halved, emptied, exchanged, made a FIFO or a directory every 50 ms, in a flood."""
    async with secure(target) as made:
        folder, fresh = made.picker.folder / "certs", certified("endpick", authority())
        right = {"tls.crt": fresh.chain_pem, "tls.key": fresh.key_pem, "ca.crt": authority().chain_pem}
        asking = asyncio.create_task(believed(made, 3))
        while not asking.done():
            name = target.rng.choice(("tls.crt", "tls.key"))
            spoil = target.rng.choice(_SPOILS)
            spoil(folder / name, right)
            greeting = (_greet(target, made.picker.ext_proc_port, target.rng.choice([*clients().values()]), HELLO) for _ in range(8))
            await asyncio.gather(asyncio.sleep(0.05), *greeting)
            for each, text in right.items():
                _replace(folder / each, text)
            await asyncio.sleep(0.02)
        await asking
    return made.told


def _replace(path: Path, text: str) -> None:
    if path.is_dir():
        path.rmdir()
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def _with_fifo(path: Path, _right: Mapping[str, str]) -> None:
    path.unlink()
    os.mkfifo(path)


def _with_folder(path: Path, _right: Mapping[str, str]) -> None:
    path.unlink()
    path.mkdir()


_SPOILS: tuple[Callable[[Path, Mapping[str, str]], object], ...] = (
    lambda path, right: _replace(path, right[path.name][: len(right[path.name]) // 2]),
    lambda path, _right: _replace(path, ""),
    lambda path, right: _replace(path, right["tls.key" if path.name == "tls.crt" else "tls.crt"]),
    lambda path, right: _replace(path, right[path.name] * 300),
    lambda path, _right: _replace(path, certified("endpick", authority(), ends=0).chain_pem),
    lambda path, _right: path.write_bytes(os.urandom(5000)),
    lambda path, _right: path.unlink(),
    _with_fifo,
    _with_folder,
)


async def records_that_are_no_handshake(target: Target) -> Iterable[str]:
    """Words, halves and floods on the ports of TLS: empty records, alerts, ChangeCipherSpec, old and huge greetings, plain HTTP/2."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    speaker = clients()["right"].wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        speaker.do_handshake()
    greeting = outgoing.read()
    words = (
        greeting,
        greeting * 40,
        greeting[:100],
        b"".join(b"\x16\x03\x01\x00\x01" + bytes([each]) for each in greeting[5:]),
        b"\x16\x03\x01\x00\x00" * 5000,
        greeting + b"\x14\x03\x03\x00\x01\x01" * 5000,
        greeting + b"\x15\x03\x03\x00\x02\x01\x5a" * 2000,
        greeting + b"\x17\x03\x03\x00\x00" * 5000,
        greeting + b"\x17\x03\x03\x40\x00" + target.rng.randbytes(16_384),
        b"\x16\x03\x01\x40\x00\x01\x00\xff\xfc\x03\x03" + bytes(16_000) + (b"\x16\x03\x01\x40\x00" + bytes(16_384)) * 8,
        b"\x16\x02\x00" + greeting[3:],
        b"\x80\x2e\x01\x03\x01" + bytes(43),
        HELLO + opened(1),
        b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n",
        b"",
        target.rng.randbytes(3000),
    )

    async def say(port: int, word: bytes) -> None:
        with suppress(OSError):
            async with connected(port, source=source_of(target)) as (reader, writer):
                writer.write(word)
                await answered(reader, 1.0)

    async with secure(target) as made:
        asking = asyncio.create_task(believed(made, 3))
        while not asking.done():
            ports = (made.picker.ext_proc_port, made.picker.metrics_port) * 40
            await asyncio.gather(*(say(port, target.rng.choice(words)) for port in ports))
        await asking
    return made.told


async def floods_within_tls(target: Target) -> Iterable[str]:
    """After a right handshake: records of a byte, PINGs and SETTINGS by the thousand, resets, streams, answers that are not read."""
    harms = (
        frames.ping(b"whogoes!", ack=False) * 900,
        frames.settings({4: 0}) * 90,
        frame(FrameType.DATA, b"", 1) * 5000,
        b"".join(opened(at, first=False) + data(at, PLAIN) + frames.rst_stream(at, 8) for at in range(3, 800, 2)),
        b"".join(opened(at, first=False) for at in range(3, 800, 2)),
        data(1, bytes(1 << 20)),
        os.urandom(100_000),
    )

    async def harm() -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(3):
                right = clients()["right"]
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", made.picker.ext_proc_port, ssl=right, server_hostname="localhost", local_addr=(source_of(target), 0)
                )
                saying, piece = HELLO + opened(1) + target.rng.choice(harms), target.rng.choice((1, 100, 1 << 20))
                for at in range(0, min(len(saying), piece * 3000), piece):
                    writer.write(saying[at : at + piece])
                    await asyncio.sleep(0)
                if target.rng.randrange(2):
                    await answered(reader, 0.5)
                writer.transport.abort()

    async with secure(target) as made:
        asking = asyncio.create_task(believed(made, 3))
        while not asking.done():
            await asyncio.gather(*(harm() for _ in range(15)))
        await asking
    return made.told


async def updates_of_keys_without_rest(target: Target) -> Iterable[str]:
    """`openssl s_client` on 8 connections that asks for new keys (TLS 1.3) or renegotiates (TLS 1.2) as often as it can."""
    async with secure(target) as made:
        pair, folder = certified("a gateway", authority()), made.picker.folder
        (folder / "client.pem").write_text(pair.chain_pem + pair.key_pem)
        asking = asyncio.create_task(believed(made, 3))
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{made.picker.ext_proc_port}", "-alpn", "h2", "-cert", "client.pem"]
        command += ["-key", "client.pem"]
        started = []
        for at in range(8):
            version = ("-tls1_3", "-tls1_2")[at % 2]
            started.append(
                await asyncio.create_subprocess_exec(
                    *command,
                    version,
                    cwd=folder,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                )
            )
        try:
            while not asking.done():
                for at, process in enumerate(started):
                    assert process.stdin is not None
                    with suppress(ConnectionError):
                        process.stdin.write((b"K\n", b"R\n")[at % 2])
                        await process.stdin.drain()
                await asyncio.sleep(0.001)
        finally:
            for process in started:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        await asking
    return made.told


ATTEMPTS = (
    Attempt(certificates_of_all_kinds),
    Attempt(certificates_renewed_and_spoilt_in_a_flood),
    Attempt(records_that_are_no_handshake),
    Attempt(floods_within_tls),
    Attempt(updates_of_keys_without_rest),
)
