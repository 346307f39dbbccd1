"""Lines that gateways, and other clients of a port, would like to have in the log, and secrets of clients that may not be there."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jh2._hazmat import Encoder

from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.gateway import (
    HELLO,
    answer_messages,
    answered,
    body_messages,
    connected,
    data,
    grpc,
    headers_message,
    request,
    send_flow_controlled,
)
from benchmarks.attempts.log_reading import FORGED, Further, both_formats, further, hostile_texts, judged, say, sent, wrong_lines
from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.transport.h2 import frames


def _head(pairs: Mapping[str, str], number: int = 1) -> bytes:
    return frames.headers(number, Encoder().encode([(sent(name), sent(value), False) for name, value in pairs.items()]), end_stream=False)


_USUAL = {
    ":method": "POST",
    ":scheme": "http",
    ":path": "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
    ":authority": "picker",
    "content-type": "application/grpc",
    "te": "trailers",
}


async def gateways_whose_frames_are_lines(target: Target) -> list[str]:
    """Methods, authorities, agents, timeouts and encodings of gRPC, debug data of GOAWAY, other protocols, with odd characters."""
    for port in (target.ext_proc_port, target.health_port, target.metrics_port):
        for text in target.rng.sample(hostile_texts(), 6):
            for name in (
                ":path",
                ":authority",
                "user-agent",
                "grpc-timeout",
                "grpc-encoding",
                "grpc-message",
                "content-type",
                ":method",
                text.lower(),
            ):
                with contextlib.suppress(OSError):
                    async with connected(port) as (reader, writer):
                        writer.write(HELLO + _head({**_USUAL, name: text}) + data(1, b"\0\0\0\0\5" + sent(text)))
                        writer.write(frames.goaway(1, 2, text.encode("utf-8", "replace").decode()))
                        await answered(reader, 0.05)
            with contextlib.suppress(OSError):
                async with connected(port) as (reader, writer):
                    writer.write(sent(f"{text} / HTTP/1.1\r\nHost: {text}\r\nUser-Agent: {text}\r\n{text}: x\r\n\r\n"))
                    await answered(reader, 0.05)
    return [*wrong_lines((target.folder / "log").read_bytes(), "json")][:10]


async def messages_that_break_the_protocol(target: Target) -> list[str]:
    """Streams that endpick ends with an error, metadata, subset hints and answers, all of which hold lines."""
    for text in target.rng.sample(hostile_texts(), 10):
        odd = ProcessingRequest(request_headers=headers_message({"x": text.encode(errors="replace").decode()}).request_headers)
        spaces = odd.metadata_context.filter_metadata
        clean = text.encode("utf-8", "replace").decode()
        spaces["envoy.lb.subset_hint"].update({"x-gateway-destination-endpoint-subset": [clean, clean], clean: clean})
        spaces[clean].update({clean: clean})
        body = b'{"model":"m","prompt":"p"}'
        served = answer_messages(sent(text), {"content-type": clean, "x-acme": clean})
        await say(
            target.ext_proc_port,
            [
                grpc([odd, *body_messages(body)]),
                grpc([*body_messages(body), odd]),
                grpc([headers_message(), odd]),
                grpc([headers_message(), *body_messages(body), *served, *served]),
                b"\0\0\0\1\0" + sent(text) * 3,
                b"\7" + sent(text),
            ],
        )
    return [*wrong_lines((target.folder / "log").read_bytes(), "json")][:10]


def _certificate(folder: Path, name: str) -> None:
    """A pair whose subject is so."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:60]), x509.NameAttribute(x509.NameOID.LOCALITY_NAME, name)])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key()).serial_number(7)
    built = builder.not_valid_before(now - timedelta(days=2)).not_valid_after(now - timedelta(days=1)).sign(key, hashes.SHA256())
    (folder / "tls.crt").write_bytes(built.public_bytes(serialization.Encoding.PEM))
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "tls.key").write_bytes(key.private_bytes(*pem))


async def names_in_tls(target: Target) -> list[str]:
    """Server names, protocols and subjects of client certificates with line ends, handshakes of junk, on a picker with mutual TLS."""
    texts = [text.encode("utf-8", "replace").decode() for text in target.rng.sample(hostile_texts(), 5)]
    _certificate(target.folder, "authority")
    authority = (target.folder / "tls.crt").read_bytes()
    async with both_formats(target, ("--secure-serving=true", "--client-ca-file=ca.crt"), files={"ca.crt": authority}) as pickers:
        for picker in pickers:
            for text in texts:
                _certificate(target.folder, text)
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                context.load_cert_chain(target.folder / "tls.crt", target.folder / "tls.key")
                context.set_alpn_protocols([ascii(text)[:99], "h2"])
                with contextlib.suppress(OSError, ValueError, UnicodeError):
                    _, writer = await asyncio.open_connection(
                        "127.0.0.1", picker.ports["ext_proc"], ssl=context, server_hostname=f"{FORGED}.example"
                    )
                    writer.write(HELLO)
                    await asyncio.sleep(0.05)
                    writer.transport.abort()
                with contextlib.suppress(OSError):
                    async with connected(picker.ports["ext_proc"]) as (reader, writer):
                        writer.write(b"\x16\x03\x01\x00\x10" + sent(text))
                        await answered(reader, 0.05)
        return judged(pickers, "serving")


SECRET = "s3cr3t-of-a-client"


async def secrets_of_clients(target: Target) -> list[str]:
    """Keys and cookies in headers, queries, paths, bodies and wrong JSON, at the most talkative level: in no line and on no page."""
    headers = {
        "authorization": f"Bearer {SECRET}",
        "cookie": f"session={SECRET}",
        "x-api-key": SECRET,
        "proxy-authorization": f"Basic {SECRET}",
        ":path": f"/v1/completions?api_key={SECRET}",
    }
    bodies = (
        f'{{"model":"m","prompt":"{SECRET}","api_key":"{SECRET}"}}',
        f'{{"model":"m","prompt":"{SECRET}"',
        f'{{"model":"m","prompt":{{"{SECRET}":[]}}}}',
        f'{{"model":{{"{SECRET}":1}},"prompt":"{SECRET}"}}',
        f'{{"prompt":"{SECRET}"}}',
        f'["{SECRET}"]',
        SECRET,
        f'{{"model":"m","messages":"{SECRET}"}}',
        f'{{"model":"m","messages":[{{"role":"{SECRET}","content":{{"{SECRET}":"{SECRET}"}}}}]}}',
        f'{{"model":"m","prompt":"{SECRET}","max_tokens":"{SECRET}","stream":"{SECRET}"}}',
    )
    async with further(target, "json", ("--large-body=1000",)) as picker:
        for path in (headers[":path"], f"/v1/chat/completions?token={SECRET}", f"/v1/{SECRET}", f"/v1/messages#{SECRET}"):
            for body in bodies:
                for padding in (0, 3000):
                    await _say_once(picker, request(body.encode() + b" " * padding, {**headers, ":path": path}))
        pages = await _pages(picker)
        return [f"a client's secret is {place}" for place, text in {**pages, "in the log": picker.log()}.items() if SECRET.encode() in text]


async def _say_once(picker: Further, payload: bytes) -> None:
    async with connected(picker.ports["ext_proc"]) as (reader, writer):
        await send_flow_controlled(reader, writer, 1, payload)
        await answered(reader, 0.03)


async def _pages(picker: Further) -> dict[str, bytes]:
    pages = {}
    async with aiohttp.ClientSession() as session:
        for path in ("/metrics", "/healthz", "/", "/debug", "/decisions", "/metrics?" + SECRET):
            async with session.get(f"http://127.0.0.1:{picker.ports['metrics']}{path}") as answer:
                pages[f"at {path.partition('?')[0]}"] = await answer.read()
    return pages


ATTEMPTS = (
    Attempt(gateways_whose_frames_are_lines, flags=("--v=4",)),
    Attempt(messages_that_break_the_protocol, flags=("--v=4",)),
    Attempt(names_in_tls),
    Attempt(secrets_of_clients),
)
