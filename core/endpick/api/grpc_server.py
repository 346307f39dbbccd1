"""A server of grpcio's that answers clients whatever method they name: what they name may be no text, and ends grpcio's own server.

grpc.aio reads the name of every method that it was not told of before it looks for a handler, in the task that takes all requests: bytes
that are no UTF-8 ended that task, and the server with it, for all clients. So it is told of all methods, and the others are refused
without a look at their name. It also takes streams one at a time, in a task that looks at all methods for each; with a door they are taken
as they come, many at once. For whatever listens with grpcio, the host and plugins alike; importing this module takes a tenth of a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import grpc
import grpc.aio
from grpc._cython import cygrpc  # type: ignore[attr-defined]

__all__ = ["RefusesUnknown", "new_server", "renewable_credentials"]

Handlers: TypeAlias = "Mapping[str, grpc.RpcMethodHandler[bytes, bytes]]"
Door: TypeAlias = "Callable[[str, Callable[[], None]], None]"
"""Called for each stream with the name of its client and with what begins it, now or later; a stream whose beginning nothing keeps ends."""
RefusesUnknown: bool = all(hasattr(cygrpc.AioServer, name) for name in ("_make_request_call_future", "add_registered_method_handlers"))
"""Earlier grpcio reads a name where only its stream can fail by it, and takes no methods in advance: nothing is changed there."""
RENEWAL_SECONDS: Final = 0.1
"""How long handshakes wait for a new certificate; to begin one takes microseconds."""
_LANES: Final = 64
"""So many streams of a method are asked for at once, so that the event loop need not look at what grpcio says for each of them."""


class _NoLineForEach(logging.Filter):
    """Keeps grpcio from logging a stack for each header that is no text, and that it reads as Latin-1 then: a client sends any number."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        return not str(record.msg).startswith("Invalid encoding on")


logging.getLogger("grpc._cython.cygrpc").addFilter(_NoLineForEach())


def new_server(
    options: Sequence[tuple[str, object]], handlers: Handlers, on_unknown: Callable[[], None] = lambda: None, door: Door | None = None
) -> grpc.aio.Server:
    """A server with these methods, by path, not started; `on_unknown` is called for each stream of another one.

    With a door, each stream is handed to it; where `RefusesUnknown` is not so, each begins at once.
    """
    usual = cygrpc.AioServer
    if RefusesUnknown:
        own = {"on_unknown": staticmethod(on_unknown), "door": None if door is None else staticmethod(door), "handlers": handlers}
        cygrpc.AioServer = type("_Server", (_Refusing,), own)
    try:
        server = grpc.aio.server(options=options)
    finally:
        cygrpc.AioServer = usual
    for path, handler in handlers.items():
        _, service, method = path.split("/")
        server.add_registered_method_handlers(service, {method: handler})
    server.add_generic_rpc_handlers((_ByPath(handlers, on_unknown),))
    return server


def renewable_credentials(
    first: grpc.ServerCertificateConfiguration, renewed: Callable[[], grpc.ServerCertificateConfiguration | None], *, mutual: bool
) -> grpc.ServerCredentials:
    """Credentials of a port whose certificate changes while it listens.

    grpcio frees the old certificate while another of its threads may begin a handshake with it: that ended the process once in two minutes
    of four renewals a second beside many handshakes. So those that have begun get time before a new one is handed over; others wait.

    Args:
        first: The certificate to begin with.
        renewed: Called for each handshake, one at a time, in a thread of grpcio's; None keeps what is.
        mutual: Whether clients have to show a certificate.
    """

    def handed_over() -> grpc.ServerCertificateConfiguration | None:
        configuration = renewed()
        if configuration is not None:
            time.sleep(RENEWAL_SECONDS)
        return configuration

    return grpc.dynamic_ssl_server_credentials(first, handed_over, mutual)  # type: ignore[arg-type]


class _ByPath(grpc.GenericRpcHandler):
    """Finds handlers for a grpcio that asks for them stream by stream."""

    def __init__(self, handlers: Handlers, on_unknown: Callable[[], None]) -> None:
        self._handlers = handlers
        self._on_unknown = on_unknown

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        handler = self._handlers.get(handler_call_details.method)
        if handler is None:
            self._on_unknown()
        return handler


class _Refusing(cygrpc.AioServer if RefusesUnknown else object):  # type: ignore[misc]
    """Hands none of the streams of unknown methods over to grpcio's own loop."""

    on_unknown: Callable[[], None]
    door: Door | None
    handlers: Handlers

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[object]:
        """What grpcio's own loop waits for: with a door never a stream, only the end of the server."""
        if self.door is None:
            return super()._make_request_call_future(method)  # type: ignore[no-any-return]
        ended: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        lanes: set[asyncio.Task[None]] = set()
        for _ in range(_LANES):
            lane = asyncio.ensure_future(self._take(method, self.door))
            lanes.add(lane)
            lane.add_done_callback(partial(_leave, lanes, ended))
        return ended

    async def _take(self, method: bytes | None, door: Door) -> None:
        """Take streams of a method, or of unknown ones, to the door, one after another; ends with the error that ends the server."""
        loop = asyncio.get_running_loop()
        name = "" if method is None else method.decode()
        resolver = cygrpc._MethodResolver([], {} if method is None else dict(self.handlers))
        running: set[asyncio.Task[None]] = set()

        def begin(state: object) -> None:
            if method is None:
                self.on_unknown()
            answer = cygrpc._handle_rpc(name, resolver, (), state, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(answer, state, loop, name))
            running.add(task)
            task.add_done_callback(running.discard)

        while True:
            state = await (super()._request_call() if method is None else self._request_registered_call(method))
            door(cygrpc._ServicerContext(state, None, None, loop).peer(), partial(begin, state))
            del state  # so that the stream ends here where the door does not keep it

    async def _request_call(self) -> None:
        """Refuse them, one after another, until the server ends: grpcio raises an error of its own then."""
        refusing: set[asyncio.Task[None]] = set()
        nothing = cygrpc._MethodResolver([], {})
        loop = asyncio.get_running_loop()
        while True:
            state = await super()._request_call()
            self.on_unknown()
            answer = cygrpc._handle_rpc("", nothing, (), state, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(answer, state, loop, ""))
            refusing.add(task)
            task.add_done_callback(refusing.discard)


def _leave(lanes: set[asyncio.Task[None]], ended: asyncio.Future[object], lane: asyncio.Task[None]) -> None:
    """Take the error of a lane; the last one ends what grpcio's own loop waits for."""
    lanes.discard(lane)
    error = None if lane.cancelled() else lane.exception()
    if not lanes and not ended.done():
        ended.set_exception(error or asyncio.CancelledError())
        ended.exception()  # grpcio may not look at it any more, and asyncio would log that
