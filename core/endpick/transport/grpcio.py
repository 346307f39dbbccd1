"""The reference transport: the same sessions on grpc.aio."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from endpick.extproc.stream import ProtocolError, StreamSession
from endpick.requests.model import CloseCause
from endpick.transport.limits import TransportCounters
from endpick.transport.listener import PORTS, ListenError, ListenSettings, listening_socket
from endpick.transport.methods import Method, Methods
from endpick.transport.tls import CertificateFiles, CertificateWatch

__all__ = ["GrpcioServer"]

logger = logging.getLogger(__name__)

_STATUS_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}
_Context = grpc.aio.ServicerContext[bytes, bytes]
_CANCEL_SECONDS = 0.001
_CLOSE_SECONDS = 2.0
_LARGEST = 2**31 - 2  # grpcio aborts above it


class GrpcioServer(grpc.GenericRpcHandler):
    """Implements `Server` with grpc.aio, for the flag `--transport grpcio`."""

    def __init__(self, settings: ListenSettings, methods: Methods) -> None:
        self.counters = TransportCounters()
        self._settings = settings
        self._handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            path: grpc.stream_stream_rpc_method_handler(self._handler(method)) for path, method in methods.items()
        }
        self._server: grpc.aio.Server | None = None
        self._certificate: CertificateWatch | None = None
        self._streams: dict[asyncio.Task[object], Method] = {}
        self._draining = False
        self._drain_ends_at = math.inf

    @property
    def connections(self) -> int:
        """1 while the server runs, else 0: grpc.aio does not expose its connections."""
        return int(self._server is not None)

    async def start(self) -> int:
        server = grpc.aio.server(options=_options(self._settings))
        server.add_generic_rpc_handlers((self,))
        host = self._settings.host or "::"
        address = f"[{host}]:{self._settings.port}" if ":" in host else f"{host}:{self._settings.port}"
        try:
            port = self._bind(server, address)
        except RuntimeError as error:
            listening_socket(self._settings).close()  # raises with the reason
            raise ListenError(f"cannot listen on {address}: {error}") from error
        await server.start()
        PORTS.add(port)
        self._server = server
        return port

    async def drain(self, grace_seconds: float) -> None:
        self._draining = True
        self._drain_ends_at = time.monotonic() + grace_seconds
        for task, method in self._streams.items():
            if not method.holds_drain:
                task.cancel()
        await self._stop(grace_seconds)

    async def stop(self) -> None:
        await self._stop(None)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Return the handler of a method, or None if it is unknown; called by grpc.aio for each stream."""
        handler = self._handlers.get(handler_call_details.method)
        self.counters.unknown_methods += handler is None
        return handler

    def _bind(self, server: grpc.aio.Server, address: str) -> int:
        if self._settings.tls is None:
            return server.add_insecure_port(address)
        watch = self._certificate = CertificateWatch(self._settings.tls)
        mutual = self._settings.tls.client_ca_file is not None
        credentials = grpc.dynamic_ssl_server_credentials(_configuration(watch.files), self._changed_certificate, mutual)  # type: ignore[arg-type]
        return server.add_secure_port(address, credentials)

    def _changed_certificate(self) -> grpc.ServerCertificateConfiguration | None:
        """For each handshake; None keeps the certificate."""
        assert self._certificate is not None
        return _configuration(self._certificate.files) if self._certificate.refresh(self.counters) else None

    async def _stop(self, grace_seconds: float | None) -> None:
        if self._server is not None:
            await self._server.stop(grace_seconds)
            self._server = None
        if self._streams:  # grpc.aio does not wait for cancelled tasks
            await asyncio.wait(tuple(self._streams), timeout=_CLOSE_SECONDS)

    def _handler(self, method: Method) -> Callable[[object, _Context], Awaitable[None]]:
        async def handle(_requests: object, context: _Context) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._streams[task] = method
            task.add_done_callback(self._streams.pop)
            await self._serve_stream(method, context)

        return handle

    async def _serve_stream(self, method: Method, context: _Context) -> None:
        counters = self.counters
        counters.streams_opened += 1
        session = method.open_session()
        stream = _SessionStream(session, context, counters)
        cause = CloseCause.ERROR
        try:
            await stream.run()
            cause = CloseCause.DRAIN if time.monotonic() >= self._drain_ends_at else CloseCause.END
        except asyncio.CancelledError:
            cause = CloseCause.DRAIN if self._draining else CloseCause.RESET
            counters.streams_reset_by_peer += cause is CloseCause.RESET
            if cause is CloseCause.DRAIN and not method.holds_drain:
                await _abort(context, grpc.StatusCode.UNAVAILABLE, "the server is draining")  # otherwise drain waits for it
            raise
        except ProtocolError as error:
            counters.session_refusals += 1
            await _abort(context, _STATUS_BY_NUMBER.get(error.status, grpc.StatusCode.UNKNOWN), error.message)
        except Exception:
            counters.session_faults += 1
            logger.exception("a stream session failed; the stream ends with INTERNAL")
            await _abort(context, grpc.StatusCode.INTERNAL, "endpick failed on this stream; its log says why")
        finally:
            counters.streams_closed += 1
            session.close(cause)
            stream.drop_decision()


class _SessionStream:
    def __init__(self, session: StreamSession, context: _Context, counters: TransportCounters) -> None:
        self._session = session
        self._context = context
        self._counters = counters
        self._reading: asyncio.Future[Any] | None = None
        self._decision: asyncio.Future[object] | None = None
        self._interrupted: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        session = self._session
        connect = getattr(session, "connect", None)
        if connect is not None:
            connect(self._interrupt, None, _traceparent(self._context))
        self._read()
        while not session.finished:
            if self._decision is None and session.waiting is not None:
                self._decision = asyncio.ensure_future(session.waiting)
            if self._reading is None and self._decision is None:
                # grpcio reports cancellation as the end of input, and cancels this task a moment later.
                await asyncio.sleep(_CANCEL_SECONDS)
                return
            pending = [future for future in (self._interrupted, self._decision, self._reading) if future is not None]
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            await self._send(self._next_replies())

    def drop_decision(self) -> None:
        """Cancel the pending decision, or pass it to the closed session if it has been made."""
        decision = self._decision
        if decision is not None and not decision.cancel() and not decision.cancelled() and decision.exception() is None:
            self._session.resume(decision.result())

    def _next_replies(self) -> Sequence[bytes]:
        session, decision, reading = self._session, self._decision, self._reading
        if decision is not None and decision.done():
            self._decision = None
            error = asyncio.CancelledError() if decision.cancelled() else decision.exception()
            return session.resume(decision.result()) if error is None else session.fail(error)
        if self._interrupted.done():
            result = self._interrupted.result()
            self._interrupted = asyncio.get_running_loop().create_future()
            return () if session.waiting is not None else session.resume(result)
        if reading is not None and reading.done():
            message = reading.result()
            if isinstance(message, bytes):
                self._read()
                self._counters.messages_received += 1
                return session.receive(message)
            self._reading = None  # half-closed
        return ()

    def _read(self) -> None:
        # Never cancelled: grpcio frees an operation only when its awaiter sees it end.
        reading: asyncio.Future[Any] = asyncio.ensure_future(self._context.read())
        self._reading = reading
        reading.add_done_callback(lambda task: task.cancelled() or task.exception())

    def _interrupt(self, result: object) -> None:
        if not self._interrupted.done():
            self._interrupted.set_result(result)

    async def _send(self, replies: Sequence[bytes]) -> None:
        for reply in replies:
            self._counters.messages_sent += 1
            try:
                await self._context.write(reply)
            except grpc.aio.InternalError as failure:  # reset by the client
                raise asyncio.CancelledError from failure


def _traceparent(context: _Context) -> str:
    return next((str(value) for name, value in context.invocation_metadata() or () if name == "traceparent"), "")


async def _abort(context: _Context, status: grpc.StatusCode, message: str) -> None:
    with suppress(grpc.aio.InternalError):  # the client has gone
        await context.abort(status, message)


def _configuration(files: CertificateFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], files.client_ca)


def _options(settings: ListenSettings) -> list[tuple[str, int]]:
    limits = settings.limits
    age = limits.max_connection_age_seconds
    options: list[tuple[str, float]] = [
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # None: grpcio decompresses before it checks the length
        ("grpc.max_concurrent_streams", limits.max_concurrent_streams),
        ("grpc.absolute_max_metadata_size", limits.max_header_bytes),
        ("grpc.max_allowed_incoming_connections", limits.max_connections),
        ("grpc.server_handshake_timeout_ms", limits.handshake_seconds * 1000),
        ("grpc.keepalive_time_ms", limits.keepalive_idle_seconds * 1000),
        ("grpc.keepalive_timeout_ms", limits.keepalive_timeout_seconds * 1000),
        ("grpc.http2.ping_timeout_ms", limits.keepalive_timeout_seconds * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_connection_age_ms", _LARGEST if age is None else age * 1000),
        ("grpc.max_connection_age_grace_ms", limits.max_connection_age_grace_seconds * 1000),
        ("grpc.so_reuseport", settings.reuse_port),
    ]
    return [(name, min(round(value), _LARGEST)) for name, value in options]
