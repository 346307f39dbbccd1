"""The asyncio protocol of one connection: moves bytes, time and awaited results into a `Connection`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, cast

from endpick.transport.h2.connection import Connection
from endpick.transport.h2.errors import ErrorCode, H2ConnectionError
from endpick.transport.h2.stream import Stream
from endpick.transport.limits import Limits, TransportCounters
from endpick.transport.methods import Methods

_WRITE_BUFFER_BYTES: Final = 256 * 1024
"""Bytes in asyncio's write buffer before replies wait at their streams."""
_WRITE_STALL_SECONDS: Final = 30.0
_LINGER_SECONDS: Final = 1.0
_now: Final = time.monotonic


class ConnectionOwner(Protocol):
    """The server of a connection."""

    methods: Methods
    limits: Limits
    counters: TransportCounters

    def opened(self, connection: SocketConnection) -> None: ...  # noqa: D102

    def closed(self, connection: SocketConnection) -> None: ...  # noqa: D102


class SocketConnection:
    """An asyncio protocol.

    It does not inherit from `asyncio.Protocol`, because mypyc accesses the attributes of a class with an interpreted base slowly.
    """

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._connection: Connection | None = None
        self._closed = False
        self._flush_scheduled = False
        self._stalled_since: float | None = None
        self._linger: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports are not instances of it
        owner = self._owner
        owner.opened(self)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self._connection = Connection(owner.methods, owner.limits, owner.counters, self._spawn, _now())
        self._flush()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`; all replies leave in one write."""
        connection = self._connection
        if connection is not None and not self._closed:
            connection.receive(data, _now())
            self._flush()

    def eof_received(self) -> None:
        """See `asyncio.Protocol`; the transport then closes itself."""

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._stalled_since = _now()
        if self._connection is not None:
            self._connection.set_writable(False)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._stalled_since = None
        if self._connection is not None:
            self._connection.set_writable(True)
            self._flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._closed = True
        if self._linger is not None:
            self._linger.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.lost()
            self._owner.closed(self)

    def tick(self, now: float) -> None:
        """Apply timeouts; called about once a second."""
        connection = self._connection
        if connection is None or self._closed:
            return
        if self._stalled_since is not None and now - self._stalled_since > _WRITE_STALL_SECONDS:
            connection.end_with(H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "the client reads nothing", "slow_readers"))
            self.abort()
            return
        connection.tick(now)
        self._flush()

    def drain(self, grace_seconds: float) -> None:
        """Close when all streams have ended, or after the grace period."""
        if self._connection is not None and not self._closed:
            self._connection.drain(_now(), grace_seconds)
            self._flush()

    def end_now(self) -> None:
        """End all streams, and close once that is written."""
        if self._connection is not None and not self._closed:
            self._connection.end_now()
            self._flush()

    def abort(self) -> None:
        """Close without writing the rest."""
        self._closed = True
        self._transport.abort()

    def _flush(self) -> None:
        connection = self._connection
        if connection is None or self._closed:
            return
        connection.outbox.write_to(self._transport)
        if connection.lifetime.closing:
            self._hang_up()

    def _flush_soon(self) -> None:
        """Flush once for everything that happens in this iteration of the event loop."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _hang_up(self) -> None:
        # Close after the client: with unread input, the kernel would discard the GOAWAY that was written last.
        self._closed = True
        self._linger = self._loop.call_later(_LINGER_SECONDS, self._transport.abort)
        if self._transport.can_write_eof():
            with suppress(OSError):
                self._transport.write_eof()
        else:
            self._transport.close()

    def _spawn(self, stream: Stream, waiting: Awaitable[object]) -> None:
        stream.task = asyncio.ensure_future(waiting, loop=self._loop)
        stream.task.add_done_callback(partial(self._settle, stream))

    def _settle(self, stream: Stream, task: asyncio.Future[Any]) -> None:
        error: BaseException | None = asyncio.CancelledError() if task.cancelled() else task.exception()
        connection = self._connection
        if connection is None or stream.task is not task:  # the stream is closed
            return
        if error is None:
            connection.streams.resume(stream, task.result())
        else:
            connection.streams.fail(stream, error)
        self._flush_soon()
