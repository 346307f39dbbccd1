"""A connection on its socket: the asyncio side of `Connection`."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, cast

from endpick.api.turns import LARGE_READ_BYTES, Turns
from endpick.requests.memory import MemoryBudget
from endpick.transport.h2.await_bridge import begin_to_await
from endpick.transport.h2.connection import Connection
from endpick.transport.h2.errors import ErrorCode, H2ConnectionError
from endpick.transport.h2.stream import Stream
from endpick.transport.limits import Limits, TransportCounters
from endpick.transport.methods import Methods

__all__ = ["ConnectionOwner", "SocketConnection"]

_WRITE_BUFFER_BYTES = 256 * 1024
"""Bytes that asyncio may hold for the socket before replies wait at their streams, where the memory budget counts them."""
_LINGER_SECONDS = 1.0
_now: Final = time.monotonic


class ConnectionOwner(Protocol):
    """What a connection needs of its server."""

    methods: Methods
    limits: Limits
    counters: TransportCounters
    memory: MemoryBudget
    turns: Turns

    def admit(self, protocol: SocketConnection) -> None:
        """Take the connection in."""

    def release(self, protocol: SocketConnection) -> None:
        """The connection is gone."""


class SocketConnection:
    """Moves bytes between a transport and a `Connection`, and time and awaited results into it.

    It has the methods of `asyncio.Protocol` without inheriting from it, which would keep mypyc from knowing where its attributes are: each
    read looks at a dozen of them.
    """

    def __init__(self, owner: ConnectionOwner, peer: str = "") -> None:
        """`peer` is the address in whose name it takes its turns."""
        self._owner = owner
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._connection: Connection | None = None
        self._limits = owner.limits
        self._counters = owner.counters
        self._turns = owner.turns
        self._may_read = owner.limits.read_bytes_per_turn
        """Before others have their turn."""
        self._unread: deque[bytes] = deque()
        """Arrived before its turn; reading is paused while there is any."""
        self._account = owner.memory.account
        self._accounted_bytes = 0
        self._untaken_bytes = 0
        """Written, and not taken by the client, as accounted for."""
        """Of what has arrived and was not acted upon: up to a quarter of a megabyte for each of a thousand connections."""
        self._turn_scheduled = False
        self._flush_scheduled = False
        self._ends_scheduled = False
        self._closed = False
        self._closed_at = 0.0
        self._stalled_since: float | None = None
        self._deadline: asyncio.Handle | None = None
        self._deadline_at = 0.0
        """When it is due, by `time.monotonic`. Not read off the handle: uvloop's has no `when` if it was due at once."""
        self._linger: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the server's preface."""
        # uvloop's transports have the methods of asyncio.Transport without being its instances.
        self._transport = cast("asyncio.Transport", transport)
        owner = self._owner
        owner.admit(self)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self._connection = Connection(owner.methods, owner.limits, owner.counters, owner.memory, self._spawn, _now())
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client; all replies to them leave in one write."""
        connection = self._connection
        if connection is None or self._closed:
            return
        if self._turn_scheduled:
            self._unread.append(data)
            self._account_for(self._accounted_bytes + len(data))
        elif self._turns.exhausted or (self._turns.scheduled and len(data) > LARGE_READ_BYTES):
            self._unread.append(data)
            self._account_for(len(data))
            self._defer()
        else:
            now = _now()
            left = connection.receive(data, now, _now, self._may_read)
            self._may_read -= len(data)
            self._flush()
            if self._turns.crowded:
                self._turns.took(_now() - now)
            if (left or self._may_read < 0) and not self._closed:
                if left:
                    self._account_for(len(data))
                self._defer()

    def eof_received(self) -> None:
        """The client has closed its side; without an answer, asyncio closes ours."""

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        self._stalled_since = _now()
        self._account_for_untaken(self._transport.get_write_buffer_size())
        if self._connection is not None:
            self._connection.set_writable(False)

    def resume_writing(self) -> None:
        """The client takes what it is sent again."""
        self._stalled_since = None
        self._account_for_untaken(0)
        if self._connection is not None:
            self._connection.set_writable(True)
            self._flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed, by the client or by us."""
        self._closed = True
        for timer in (self._deadline, self._linger):
            if timer is not None:
                timer.cancel()
        self._account_for(0)
        self._account_for_untaken(0)
        # The connection refers to this object. Without the reference back, both are freed at once rather than by the garbage collector.
        connection, self._connection = self._connection, None
        if connection is None:
            return
        turns = self._turns
        if turns.exhausted:  # five hundred may end at one moment, and leave memory to give back
            turns.join(partial(self._end_streams, connection), self._peer)
            return
        began = _now()
        self._end_streams(connection)
        if turns.crowded:
            turns.took(_now() - began)

    def _end_streams(self, connection: Connection) -> None:
        """End what a lost connection leaves, some streams in each turn, and then be forgotten."""
        if connection.end_some():
            self._turns.join(partial(self._end_streams, connection), self._peer)
        else:
            connection.lost()
            self._owner.release(self)

    def _end_some(self) -> None:
        """End the streams of a connection that waits only for its client to close, some in each turn."""
        if self._connection is not None and self._connection.end_some():
            self._turns.join(self._end_some, self._peer)

    def _end_in_turns(self) -> None:
        """Go on to end streams that are to end, some in each turn."""
        if not self._ends_scheduled and self._connection is not None and self._connection.streams.ending:
            self._ends_scheduled = True
            self._turns.join(self._end_next, self._peer)

    def _end_next(self) -> None:
        self._ends_scheduled = False
        if self._connection is not None and not self._closed:
            self._connection.streams.end_some()
            self._flush()
            self._end_in_turns()

    def tick(self, now: float) -> None:
        """About once a second."""
        if self._connection is None or self._closed:
            return
        if self._stalled_since is not None and now - self._stalled_since > self._limits.write_stall_seconds:
            self._abandon("the client takes nothing")
            return
        self._connection.tick(now)
        if not self._turn_scheduled:
            self._account_for(self._connection.cut_bytes)
        self._flush()
        self._end_in_turns()

    def drain(self, grace_seconds: float) -> None:
        """Ask the client to go elsewhere; the connection ends when its streams have ended, or after the grace period."""
        if self._connection is not None and not self._closed:
            self._connection.drain(_now(), grace_seconds)
            self._flush()
            self._end_in_turns()

    def end_now(self) -> None:
        """End all streams and close once that is written."""
        if self._connection is not None and not self._closed:
            self._connection.end_now()
            self._flush()

    def idle_since(self) -> float | None:
        """See `Guest.idle_since`; one that is closing and waits for its client to do so as well has nothing more to do."""
        if self._connection is None:
            return None
        return self._closed_at if self._closed else self._connection.idle_since()

    def served(self) -> bool:
        """See `Guest.served`."""
        connection = self._connection
        return connection is not None and connection.streams.last_id > 0 and not connection.is_silent()

    def evict(self) -> None:
        """See `Guest.evict`."""
        if self._connection is not None and not self._closed:
            self._connection.end_with(H2ConnectionError(ErrorCode.NO_ERROR, "idle, and others need the room"))
            self._transport.write(self._connection.outbox.take())
        self._closed = True
        self._transport.abort()

    def abort(self) -> None:
        """Close without writing what is left."""
        self._transport.abort()

    def _defer(self) -> None:
        """Read on when others have had their turn.

        What may be read is filled up then, not at each read: nearly all connections need no more than a comparison for it.
        """
        self._counters.reads_deferred += 1
        self._transport.pause_reading()
        self._schedule_turn()

    def _schedule_turn(self) -> None:
        self._turn_scheduled = True
        self._turns.join(self._next_turn, self._peer)

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        connection = self._connection
        if connection is None or self._closed:
            self._unread.clear()
            self._account_for(0)
            if not self._transport.is_closing():
                self._transport.resume_reading()
            return
        self._may_read = self._limits.read_bytes_per_turn
        data = self._unread.popleft() if self._unread else b""
        left = connection.receive(data, _now(), _now, self._may_read)
        self._flush()
        if (left or self._unread) and not self._closed:
            self._schedule_turn()
            return
        self._account_for(0)
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _account_for(self, size: int) -> None:
        """So many bytes have arrived and wait to be acted upon, where it was another number."""
        grown, self._accounted_bytes = size - self._accounted_bytes, size
        self._hold(grown)

    def _account_for_untaken(self, size: int) -> None:
        """So many bytes were written that the client does not take: what waits here waits at no stream any more."""
        grown, self._untaken_bytes = size - self._untaken_bytes, size
        self._hold(grown)

    def _hold(self, grown: int) -> None:
        account = self._account
        account.held_bytes += grown
        if account.held_bytes > account.alarm_bytes:
            account.reconsider()

    def _flush(self) -> None:
        connection = self._connection
        if connection is None or self._closed:
            return
        connection.outbox.write_to(self._transport)
        if connection.lifetime.closing:
            self._hang_up()
        elif self._stalled_since is not None and self._transport.get_write_buffer_size() > self._limits.max_connection_output_bytes:
            self._abandon("the client sends, and takes nothing")
        elif connection.streams.deadlines.next is not None:
            self._watch_deadline(connection.streams.deadlines.next)

    def _flush_soon(self) -> None:
        """Flush once for everything that happens in this turn of the event loop."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_scheduled_output)

    def _flush_scheduled_output(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _hang_up(self) -> None:
        """Close, giving the client time to read why: if input is unread on close, the kernel discards what was written last."""
        self._closed = True
        self._closed_at = _now()
        self._linger = self._loop.call_later(_LINGER_SECONDS, self._transport.abort)
        self._end_some()
        if self._transport.can_write_eof():
            with suppress(OSError):  # the client has closed first; connection_lost will be called
                self._transport.write_eof()
        else:
            self._transport.close()

    def _abandon(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.end_with(H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, reason, "slow_readers"))
        self._closed = True
        self._transport.abort()

    def _watch_deadline(self, when: float) -> None:
        if self._deadline is not None:
            if self._deadline_at <= when:
                return
            self._deadline.cancel()
        self._deadline_at = when
        self._deadline = self._loop.call_later(max(0.0, when - _now()), self._deadline_passed)

    def _deadline_passed(self) -> None:
        self._deadline = None
        self.tick(_now())

    def _spawn(self, stream: Stream, waiting: Awaitable[object]) -> None:
        if self._connection is not None:
            begin_to_await(waiting, stream, self._connection.streams, self._flush_soon)
