"""The ports on which `otlp-source` takes exports: OTLP over HTTP and over gRPC, both plain or with TLS."""

from __future__ import annotations

import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.web_exceptions import HTTPRequestEntityTooLarge

from endpick_builtin.collection.otlp_messages import Export, answer_of, read_json, read_protobuf
from endpick_builtin.collection.push_server import Closed, PushBounds, PushServer

if TYPE_CHECKING:
    import grpc
    import grpc.aio

HTTP_PATH = "/v1/metrics"
GRPC_METHOD = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
MOST_GRPC_CONNECTIONS = 256
"""Unless a parameter says otherwise; grpcio refuses one more by itself, and tells its client alone."""
_MOST_PEM_BYTES = 4 * 1024 * 1024
"""Of one file."""
_PROTOBUF, _JSON = "application/x-protobuf", "application/json"


class Outcome(StrEnum):
    """What became of an export."""

    READ = "read"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    TOO_MANY = "too_many"
    TOO_SLOW = "too_slow"
    BUSY = "busy"
    GONE = "gone"


class Refused(Exception):  # noqa: N818 - what the client is told
    """An export is not taken; the message says why."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


Take = Callable[[Callable[[], Awaitable[bytes]], Callable[[bytes, int], Export]], Awaitable[tuple[int, str]]]
"""Has a body read and delivered; how many of its points were left out, and why. Raises `Refused`."""

_HTTP_STATUS = {
    Outcome.MALFORMED: 400,
    Outcome.TOO_LARGE: 413,
    Outcome.TOO_MANY: 413,
    Outcome.TOO_SLOW: 408,
    Outcome.BUSY: 503,
    Outcome.GONE: 400,
}
_GRPC_STATUS = {
    Outcome.MALFORMED: "INVALID_ARGUMENT",
    Outcome.TOO_LARGE: "RESOURCE_EXHAUSTED",
    Outcome.TOO_MANY: "RESOURCE_EXHAUSTED",
    Outcome.TOO_SLOW: "DEADLINE_EXCEEDED",
    Outcome.BUSY: "UNAVAILABLE",
    Outcome.GONE: "CANCELLED",
}


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files by which a port shows who it is, and asks its clients who they are; new files are used from the next connections on."""

    cert_path: Path
    key_path: Path
    client_ca_path: Path | None

    def context(self) -> ssl.SSLContext:
        """For the port of HTTP.

        Raises:
            OSError: a file does not work.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.client_ca_path)
        if self.client_ca_path is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self.cert_path, self.key_path)
        known = self._contents()

        def renew(_socket: ssl.SSLObject, _name: str | None, used: ssl.SSLContext) -> None:
            nonlocal known
            try:
                if (now := self._contents()) != known:
                    used.load_cert_chain(self.cert_path, self.key_path)
                    known = now
            except OSError:
                return  # half written: what was there before serves on

        context.sni_callback = renew  # called at each handshake, with a name or without
        return context

    def credentials(self) -> grpc.ServerCredentials:
        """For the port of gRPC; `context` has shown that the files work."""
        import grpc  # noqa: PLC0415 - 0.1 s that only this port needs

        from endpick.api.grpc_server import renewable_credentials  # noqa: PLC0415

        known = self._contents()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal known
            try:
                now = self._contents()
                ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.cert_path, self.key_path)
            except OSError:
                return None
            is_new, known = now != known, now
            return configuration() if is_new else None

        def configuration() -> grpc.ServerCertificateConfiguration:
            cert, key, authority = known
            return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=authority or None)

        return renewable_credentials(configuration(), renewed, mutual=self.client_ca_path is not None)

    def _contents(self) -> tuple[bytes, bytes, bytes]:
        authority = _read(self.client_ca_path) if self.client_ca_path else b""
        return _read(self.cert_path), _read(self.key_path), authority


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MOST_PEM_BYTES)


class HttpPort:
    """`POST /v1/metrics`, protobuf or JSON, also gzipped."""

    def __init__(self, take: Take, max_body_bytes: int, bounds: PushBounds, closed: Callable[[Closed], None]) -> None:
        self._take = take
        self._max_body_bytes = max_body_bytes
        app = web.Application(client_max_size=max_body_bytes)
        app.router.add_post(HTTP_PATH, self._post)
        self._server = PushServer(app, closed, bounds)

    async def open(self, host: str, port: int, certificate: Certificate | None) -> int:
        """Listen; the port.

        Raises:
            OSError: the address cannot be had, or a certificate file does not work.
        """
        await self._server.start(host, port, certificate.context() if certificate is not None else None)
        return self._server.port

    async def close(self) -> None:
        """Listen no more."""
        await self._server.stop()

    async def _post(self, request: web.Request) -> web.Response:
        with self._server.serving(request):
            return await self._answer(request)

    async def _answer(self, request: web.Request) -> web.Response:
        as_json = request.content_type == _JSON
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        is_known = (as_json or request.content_type == _PROTOBUF) and encoding in _ENCODINGS
        read_one = read_json if as_json else read_protobuf

        def read(whole: bytes, most_points: int) -> Export:
            return read_one(_unpacked(whole, self._max_body_bytes) if encoding in _PACKED else whole, most_points)

        async def body() -> bytes:
            if not is_known:
                raise Refused(
                    Outcome.MALFORMED, f"send {_PROTOBUF} or {_JSON}, as it is or with gzip, not {request.content_type} {encoding}"
                )
            try:
                return await request.read()
            except HTTPRequestEntityTooLarge as problem:
                raise _too_large(self._max_body_bytes) from problem
            except ConnectionError as problem:  # aiohttp would log a traceback for each client that hangs up
                raise Refused(Outcome.GONE, "the connection ended before the body did") from problem
            except web.RequestPayloadError as problem:
                raise Refused(Outcome.MALFORMED, f"the body cannot be unpacked: {problem}") from problem

        try:
            rejected, why = await self._take(body, read)
        except Refused as refusal:
            return web.Response(status=_HTTP_STATUS[refusal.outcome] if is_known else 415, text=str(refusal))
        return web.Response(body=answer_of(rejected, why, as_json=as_json), content_type=_JSON if as_json else _PROTOBUF)


_PACKED = frozenset({"gzip", "x-gzip", "deflate"})
_ENCODINGS = _PACKED | {"", "identity"}
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
"""zlib's `wbits` for data that says itself which of the two it is."""


def _unpacked(packed: bytes, most: int) -> bytes:
    """In the thread that reads the export."""
    unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        whole = unpacker.decompress(packed, most + 1)
    except zlib.error as problem:
        raise Refused(Outcome.MALFORMED, f"the body cannot be unpacked: {problem}") from problem
    if len(whole) > most:
        raise _too_large(most)
    if not unpacker.eof or unpacker.unused_data:
        raise Refused(Outcome.MALFORMED, "the body cannot be unpacked: it is cut short, or something follows it")
    return whole


def _too_large(most: int) -> Refused:
    return Refused(Outcome.TOO_LARGE, f"more than maxBodyBytes, {most}; send smaller batches")


class GrpcPort:
    """The method `Export` of OpenTelemetry's `MetricsService`, on grpcio, which unpacks gzip and holds to `max_body_bytes` by itself."""

    def __init__(self, take: Take, max_body_bytes: int, max_connections: int, max_streams: int) -> None:
        """`max_streams`: of one connection; grpcio lets more wait."""
        self._take = take
        self._max_body_bytes, self._max_connections, self._max_streams = max_body_bytes, max_connections, max_streams
        self._server: grpc.aio.Server | None = None

    async def open(self, host: str, port: int, certificate: Certificate | None) -> int:
        """Listen; the port.

        Raises:
            OSError: the address cannot be had.
        """
        import grpc  # noqa: PLC0415 - 0.1 s that only this port needs

        from endpick.api.grpc_server import new_server  # noqa: PLC0415

        # A client that opens streams and sends nothing holds what one that sends would need: few streams, few connections.
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_unary_rpc_method_handler(self._export)
        server = new_server(
            (
                ("grpc.max_receive_message_length", self._max_body_bytes),
                ("grpc.max_concurrent_streams", self._max_streams),
                ("grpc.max_allowed_incoming_connections", self._max_connections),
                ("grpc.absolute_max_metadata_size", 64 * 1024),
                ("grpc.so_reuseport", 1),
            ),
            {GRPC_METHOD: method},
        )
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = server.add_secure_port(address, certificate.credentials()) if certificate else server.add_insecure_port(address)
        except RuntimeError as problem:
            raise OSError(str(problem)) from problem
        await server.start()
        self._server = server
        return bound

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            await self._server.stop(1.0)
            self._server = None

    async def _export(self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        """One export: declared as a stream, because of a single message grpcio does not say when it begins to wait for it."""
        import grpc  # noqa: PLC0415

        async def body() -> bytes:
            async for message in messages:
                return message
            # grpcio keeps a message that is too long to itself, and has said so to the client.
            raise Refused(Outcome.TOO_LARGE, f"the call has no message of at most maxBodyBytes, {self._max_body_bytes}")

        try:
            rejected, why = await self._take(body, read_protobuf)
        except Refused as refusal:
            await context.abort(getattr(grpc.StatusCode, _GRPC_STATUS[refusal.outcome]), str(refusal))
        return answer_of(rejected, why, as_json=False)
