"""A server of grpcio's that answers clients whatever method they name: what they name may be no text, and ends grpcio's own server.

grpc.aio reads the name of every method that it was not told of before it looks for a handler, in the task that takes all requests: bytes
that are no UTF-8 ended that task, and the server with it, for all clients. So it is told of all methods, and the others are refused
without a look at their name. For whatever listens with grpcio, the host and plugins alike; importing this module takes a tenth of a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import grpc
import grpc.aio
from grpc._cython import cygrpc  # type: ignore[attr-defined]

__all__ = ["RefusesUnknown", "new_server"]

Handlers: TypeAlias = "Mapping[str, grpc.RpcMethodHandler[bytes, bytes]]"
RefusesUnknown: bool = all(hasattr(cygrpc.AioServer, name) for name in ("_make_request_call_future", "add_registered_method_handlers"))
"""Earlier grpcio reads a name where only its stream can fail by it, and takes no methods in advance: nothing is changed there."""


class _NoLineForEach(logging.Filter):
    """Keeps grpcio from logging a stack for each header that is no text, and that it reads as Latin-1 then: a client sends any number."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        return not str(record.msg).startswith("Invalid encoding on")


logging.getLogger("grpc._cython.cygrpc").addFilter(_NoLineForEach())


def new_server(options: Sequence[tuple[str, object]], handlers: Handlers, on_unknown: Callable[[], None] = lambda: None) -> grpc.aio.Server:
    """A server with these methods, by path, not started; `on_unknown` is called for each stream of another one."""
    usual = cygrpc.AioServer
    if RefusesUnknown:
        cygrpc.AioServer = type("_Server", (_Refusing,), {"on_unknown": staticmethod(on_unknown)})
    try:
        server = grpc.aio.server(options=options)
    finally:
        cygrpc.AioServer = usual
    for path, handler in handlers.items():
        _, service, method = path.split("/")
        server.add_registered_method_handlers(service, {method: handler})
    server.add_generic_rpc_handlers((_ByPath(handlers, on_unknown),))
    return server


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
