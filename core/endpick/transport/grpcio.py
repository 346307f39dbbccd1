"""The reference transport: the same sessions on grpcio's asyncio server, which is slower and maintained by the gRPC project."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Final

import grpc
import grpc.aio
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from endpick.api.grpc_server import new_server, renewable_credentials
from endpick.extproc.stream import GrpcStatus, ProtocolError, Reply, StreamSession
from endpick.host.apart import apart
from endpick.requests.memory import MemoryAccount, MemoryBudget, OverloadStage
from endpick.requests.model import CloseCause
from endpick.transport.address import PORTS, ListenError, ListenSettings, listening_socket
from endpick.transport.envelope import EnvelopeCheck, EnvelopeError
from endpick.transport.grpcio_door import Door
from endpick.transport.grpcio_guests import Guest, Guests
from endpick.transport.grpcio_options import options_of
from endpick.transport.limits import TransportCounters
from endpick.transport.methods import Method, Methods
from endpick.transport.tls import CertificateFiles, CertificateWatch

__all__ = ["GrpcioServer"]

logger = logging.getLogger(__name__)

_STATUS_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}
_Context = grpc.aio.ServicerContext[bytes, bytes]
_CANCEL_SECONDS = 0.001
_CLOSE_SECONDS = 2.0
_ENDED_AT_ONCE: Final = 64
"""Streams that never end by themselves and are ended in one turn of the event loop when the server goes."""
_LONG_REPLIES_BYTES: Final = 4096


class GrpcioServer:
    """A `Server` on grpc.aio; the caller makes it while the event loop runs."""

    def __init__(self, settings: ListenSettings, methods: Methods, account: MemoryAccount | None = None) -> None:
        self.counters = TransportCounters()
        self._settings = settings
        self._methods = methods
        self._account = MemoryAccount() if account is None else account
        self._guests = Guests(settings.limits, self.counters, self._account)
        self._door = Door(self._guests, self.counters)
        self._server: grpc.aio.Server | None = None
        self._channelz_id = 0
        """Under which grpcio counts its sockets."""
        self._draining = False
        self._drain_ends_at = math.inf
        self._certificate: CertificateWatch | None = None
        self._tasks: dict[asyncio.Task[object], Method] = {}
        """The task that runs each open stream, with the method of the stream."""

    @property
    def connections(self) -> int:
        """See `Server.connections`; never more than one page of what grpcio lists."""
        if self._server is None:
            return 0
        return len(json.loads(cygrpc.channelz_get_server_sockets(self._channelz_id, 0, 0))["socketRef"])

    async def start(self) -> int:
        """Bind and serve; see `Server.start`."""
        handlers = {path: self._handler(method) for path, method in self._methods.items()}
        options = options_of(self._settings, self._guests.seats, self._guests.memory.limit_bytes)
        server = new_server(options, handlers, self._count_unknown, self._door.came)
        self._channelz_id = _newest_server()
        host = self._settings.host or "::"
        address = f"[{host}]:{self._settings.port}" if ":" in host else f"{host}:{self._settings.port}"
        try:
            port = self._bind(server, address)
        except RuntimeError as error:
            await server.stop(None)
            listening_socket(self._settings).close()  # grpcio only says that it failed; this raises an error with the reason
            raise ListenError(f"cannot listen on {address}: {error}") from error
        await server.start()
        PORTS.add(port)
        self._server = server
        self._guests.start(port)
        return port

    def _handler(self, method: Method) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Handles the method as a stream of raw bytes: on the wire a unary call is a stream of one message."""

        async def handle(_requests: object, context: _Context) -> None:
            await self.serve_stream(method, context)

        return grpc.stream_stream_rpc_method_handler(handle)

    def _count_unknown(self) -> None:
        self.counters.unknown_methods += 1

    def _bind(self, server: grpc.aio.Server, address: str) -> int:
        if self._settings.tls is None:
            return server.add_insecure_port(address)
        self._certificate = CertificateWatch(self._settings.tls)
        mutual = self._settings.tls.client_ca_file is not None
        credentials = renewable_credentials(_configuration(self._certificate.files), self._changed_certificate, mutual=mutual)
        return server.add_secure_port(address, credentials)

    def _changed_certificate(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by grpcio for each handshake; None keeps what it has."""
        assert self._certificate is not None
        return _configuration(self._certificate.files) if self._certificate.refresh(self.counters) else None

    async def drain(self, grace_seconds: float) -> None:
        """See `Server.drain`."""
        self._draining = True
        self._drain_ends_at = time.monotonic() + grace_seconds
        endless = [task for task, method in self._tasks.items() if not method.holds_drain]
        for count, task in enumerate(endless, 1):
            task.cancel()
            if not count % _ENDED_AT_ONCE:
                await asyncio.sleep(0)  # each says goodbye to its client, and clients may have ten thousands of them
        await self._end(grace_seconds)

    async def stop(self) -> None:
        """See `Server.stop`."""
        self._door.close()
        await self._end(None)

    async def _end(self, grace_seconds: float | None) -> None:
        if self._server is not None:
            await self._server.stop(grace_seconds)
        self._door.close()
        self._guests.stop()
        if self._tasks:
            # grpcio has cancelled the tasks and does not wait for them; callers of `drain` and `stop` expect closed sessions.
            await asyncio.wait(tuple(self._tasks), timeout=_CLOSE_SECONDS)

    async def serve_stream(self, method: Method, context: _Context) -> None:
        """Run one stream from its first message to its end; called by grpcio, one task per stream."""
        task = asyncio.current_task()
        if task is not None:
            self._tasks[task] = method
            task.add_done_callback(self._tasks.pop)
        counters = self.counters
        if self._account.stage >= OverloadStage.CLOSING:
            self._account.streams_refused += 1
            counters.streams_refused += 1
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "short of memory")
        counters.streams_opened += 1
        session = method.open_session()
        cause = CloseCause.ERROR
        guest = self._guests.of(context.peer())
        guest.began(context.invocation_metadata())
        most = self._settings.limits.max_envelope_bytes
        conversation = _Conversation(session, context, counters, most, method.body_fields, guest, self._guests.replies)
        try:
            await conversation.run()
            cause = CloseCause.DRAIN if time.monotonic() >= self._drain_ends_at else CloseCause.END
        except asyncio.CancelledError:
            cause = CloseCause.DRAIN if self._draining else CloseCause.RESET
            counters.streams_reset_by_peer += cause is CloseCause.RESET
            if cause is CloseCause.DRAIN and not method.holds_drain:
                # grpcio counts the stream as open until it has a status; without one, drain would wait its whole grace for it.
                await _abort(context, grpc.StatusCode.UNAVAILABLE, "the server is draining")
            raise
        except EnvelopeError as error:
            counters.envelopes_too_large += 1
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except ProtocolError as error:
            counters.session_refusals += 1
            await _abort(context, _STATUS_BY_NUMBER.get(error.status, grpc.StatusCode.UNKNOWN), error.message)
        except GeneratorExit:
            raise
        except BaseException:
            counters.session_faults += 1
            logger.exception("a stream session failed; the stream ends with INTERNAL")
            await _abort(context, grpc.StatusCode.INTERNAL, "endpick failed on this stream; its log says why")
        finally:
            counters.streams_closed += 1
            guest.ended(was_silent=conversation.is_silent)
            if not conversation.has_answered and cause is not CloseCause.DRAIN:
                self._guests.unanswered(guest)
            with apart():
                session.close(cause)


async def _abort(context: _Context, status: grpc.StatusCode, message: str) -> None:
    """End a stream with a status; where its client has gone meanwhile no status is told, which grpcio would log as a fault with a stack."""
    with suppress(grpc.aio.InternalError):
        await context.abort(status, message)


class _Conversation:
    """Passes the messages of one stream to its session and the replies back, with at most one read outstanding."""

    def __init__(
        self,
        session: StreamSession,
        context: _Context,
        counters: TransportCounters,
        max_envelope_bytes: int,
        body_fields: frozenset[int],
        guest: Guest,
        replies: MemoryBudget,
    ) -> None:
        self.is_silent = True
        """Nothing but headers has come."""
        self.has_answered = False
        self._guest = guest
        self._replies = replies
        self._max_envelope_bytes = max_envelope_bytes
        self._body_fields = body_fields
        self._session = session
        self._context = context
        self._counters = counters
        self._half_closed = False
        self._reading: asyncio.Future[object] | None = None
        self._task: asyncio.Task[object] | None = None
        self._is_reading = False
        self._last_words: Sequence[Reply] = ()

    async def run(self) -> None:
        session = self._session
        self._task = asyncio.current_task()
        connect = getattr(session, "connect", None)
        if connect is not None:
            loop = asyncio.get_running_loop()
            connect(lambda result: loop.call_soon(self._interrupt, result))
        while not session.finished:
            waiting = session.waiting
            if waiting is not None:
                await self._await(waiting)
            elif self._half_closed:
                # grpcio shows a cancelled stream as the end of its input first and cancels this task a moment later.
                await asyncio.sleep(_CANCEL_SECONDS)
                return
            else:
                await self._take(await self._read())
        await self._send(self._last_words)

    def _begin_read(self) -> asyncio.Future[object]:
        """The outstanding read, or a new one.

        A task of its own, which is never cancelled: grpcio frees what it has allocated for an operation only when what awaits the
        operation sees it end. The read ends with the stream at the latest.
        """
        if self._reading is not None:
            return self._reading
        message: Awaitable[object] = self._context.read()
        self._reading = asyncio.ensure_future(message)
        self._reading.add_done_callback(_retrieve)
        return self._reading

    async def _read(self) -> object:
        """The next message; None at the end of the input, and when the session ends the stream meanwhile."""
        self._is_reading = True
        try:
            return await asyncio.shield(self._begin_read())
        except asyncio.CancelledError:
            if not self._last_words or self._task is None or self._task.uncancel():
                raise
            return None
        finally:
            self._is_reading = False

    def _interrupt(self, result: object) -> None:
        """Resume a session that waits for nothing; the task of the stream, which may be writing, sends its last replies."""
        session = self._session
        if session.finished or session.waiting is not None:
            return
        self._last_words = session.resume(result)
        if session.finished and self._is_reading and self._task is not None:
            self._task.cancel()

    async def _take(self, message: object) -> None:
        self._reading = None
        if isinstance(message, bytes):
            self._guest.took(len(message), is_first=self.is_silent)
            self.is_silent = False
            if len(message) > self._max_envelope_bytes:
                EnvelopeCheck(self._body_fields, self._max_envelope_bytes).add(message, 0, len(message))
            self._counters.messages_received += 1
            with apart():
                replies = self._session.receive(message)
            await self._send(replies)
        else:
            self._half_closed = True

    async def _send(self, replies: Sequence[Reply]) -> None:
        """Write the replies as the client takes them; long ones are accounted for meanwhile."""
        size = sum(map(len, replies))
        if size < _LONG_REPLIES_BYTES:
            await self._write(replies)
            return
        try:
            if not self._replies.hold(size):
                self._counters.buffer_exhaustions += 1
                raise ProtocolError(GrpcStatus.RESOURCE_EXHAUSTED, "connections hold too much")
            await self._write(replies)
        finally:
            self._replies.hold(-size)

    async def _write(self, replies: Sequence[Reply]) -> None:
        for reply in _each(replies):
            self.has_answered = True
            self._counters.messages_sent += 1
            try:
                await self._context.write(reply)
            except grpc.aio.InternalError as failure:
                # The client has reset the stream, and grpcio has not cancelled this task yet.
                raise asyncio.CancelledError from failure

    async def _await(self, waiting: Awaitable[object]) -> None:
        """Pass on the messages that arrive until `waiting` resolves, then what it resolved to."""
        decision = asyncio.ensure_future(_contained(waiting))
        if asyncio.iscoroutine(waiting):
            decision.add_done_callback(lambda _: waiting.close())
        try:
            while not decision.done():
                watched: set[asyncio.Future[object]] = {decision}
                if not self._half_closed:
                    watched.add(self._begin_read())
                await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                if self._reading is not None and self._reading.done():
                    await self._take(self._reading.result())
            exception = decision.exception()
            session = self._session
            with apart():
                replies = session.resume(decision.result()) if exception is None else session.fail(exception)
            await self._send(replies)
        finally:
            decision.cancel()


def _each(replies: Sequence[Reply]) -> Iterator[bytes]:
    """The replies as grpcio takes them."""
    for reply in replies:
        if isinstance(reply, bytes):
            yield reply
        else:
            yield from repeat(reply.whole(), reply.times)


def _retrieve(read: asyncio.Future[object]) -> None:
    """Keep asyncio from logging that the stream ended before a read that nothing awaits any more."""
    if not read.cancelled():
        read.exception()


async def _contained(waiting: Awaitable[object]) -> object:
    """The result of what a session waits for; a task that ended with `SystemExit` would end the event loop."""
    try:
        return await waiting
    except (SystemExit, KeyboardInterrupt) as problem:
        raise RuntimeError(f"{type(problem).__name__} while a session waited") from problem


def _configuration(files: CertificateFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], files.client_ca)


def _newest_server() -> int:
    """The number of the server that was made last. grpc.aio does not tell it, and has no other way to ask who is connected."""
    newest, more = 0, True
    while more:
        page = json.loads(cygrpc.channelz_get_servers(newest + 1))
        newest = max((int(server["ref"]["serverId"]) for server in page.get("server", ())), default=newest)
        more = not page.get("end", False)
    return newest
