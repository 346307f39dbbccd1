"""Subscriptions to publishers that speak ZeroMQ, on the event loop.

Connections are read in the turns of `Turns`, so that a flood of messages leaves room for requests.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from endpick_builtin.collection.connection_room import descriptors_for_feeds
from endpick_builtin.producers.precise.kv_addresses import connected_to, listening_at, parts_of
from endpick_builtin.producers.precise.kv_turns import Seats, Turns
from endpick_builtin.producers.precise.kv_zmtp import MAX_MESSAGE_BYTES, Connection, CutOffError, Frames, Need, message

MAX_SOCKETS = 16_384
"""Of all publishers, and of the replays that are under way."""
CUT_OFF_SECONDS = 5.0
"""After which one that was cut off is dialled again."""
BEAT_SECONDS = 5.0
"""Between two looks whether a publisher is there; one that is silent from one to the next, though it was asked, is dialled anew."""
_DIAL_SECONDS = 0.002
"""Between two attempts to reach any publisher: an attempt takes a tenth of a millisecond, and thousands may be away."""
_RECONNECT_SECONDS = 0.2
_RECONNECT_MAX_SECONDS = 5.0
_ACCEPTS_AT_ONCE = 16


class Sockets:
    """Those of one index."""

    def __init__(self, most: int = MAX_SOCKETS, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        """For `most`, or for as many as leave descriptors for everything else; `max_message_bytes` of each message that comes on one."""
        self.seats = Seats()
        self.max_message_bytes = max_message_bytes
        self._left = min(most, descriptors_for_feeds())
        self._dial_at = 0.0

    def enter(self) -> None:
        """Take the place of one.

        Raises:
            OSError: there are no places left, with `errno.EMFILE`.
        """
        if self._left < 1:
            raise OSError(errno.EMFILE, "Too many sockets for KV events")
        self._left -= 1

    def leave(self) -> None:
        """Give a place back."""
        self._left += 1

    async def may_dial(self) -> None:
        """Wait for the turn to dial."""
        now = asyncio.get_running_loop().time()
        self._dial_at = max(now, self._dial_at + _DIAL_SECONDS)
        if self._dial_at > now:
            await asyncio.sleep(self._dial_at - now)


class _Reader:
    """Reads one connection in the turns of all."""

    def __init__(self, connection: Connection, turns: Turns, ended: Callable[[bool], None]) -> None:
        """`ended` is called once, with whether the peer was cut off, unless `close` is."""
        self._connection, self._turns, self._ended = connection, turns, ended
        self._loop = asyncio.get_running_loop()
        self._descriptor = connection.socket.fileno()
        connection.on_seated = self._go_on
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)
        self._go_on()

    def close(self) -> None:
        """Deliver no more."""
        if not self._connection.is_closed:
            self._timer.cancel()
            self._loop.remove_reader(self._descriptor)
            self._connection.close()

    def _go_on(self) -> None:
        self._turns.join(self._read())

    def _wake(self) -> None:
        self._loop.remove_reader(self._descriptor)
        self._connection.is_waiting = False
        self._go_on()

    def _read(self) -> Iterator[None]:
        connection = self._connection
        try:
            while not connection.is_closed:
                need = next(connection.steps)
                if need is Need.TURN:
                    yield
                    continue
                if need is Need.BYTES and not connection.is_closed:
                    connection.is_waiting = True
                    self._loop.add_reader(self._descriptor, self._wake)
                return
        except (OSError, CutOffError) as problem:
            self._end(problem)

    def _beat(self) -> None:
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)
        try:
            self._connection.beat()
        except (OSError, CutOffError) as problem:
            self._end(problem)

    def _end(self, problem: Exception) -> None:
        if not self._connection.is_closed:
            self.close()
            self._ended(isinstance(problem, CutOffError))  # not the exception: its traceback holds what came of a message


class Subscriber:
    """One subscription, to a publisher that it dials, or to those that dial it."""

    def __init__(
        self,
        sockets: Sockets,
        topic: str,
        turns: Turns,
        deliver: Callable[[Frames], Iterator[None]],
        dialled_again: Callable[[], None],
        cut_off: Callable[[], None],
    ) -> None:
        """For topics that begin with `topic`.

        Args:
            sockets: Of all subscribers.
            topic: Empty for all.
            turns: In which connections are read.
            deliver: Called with the frames of each message; the next one is read when all steps of what it gives have been taken.
            dialled_again: Called for each new attempt to reach a publisher.
            cut_off: Called when a publisher had sent what no publisher should: see `CutOffError`.

        Raises:
            OSError: there are no sockets left, with `errno.EMFILE`.
        """
        sockets.enter()
        self._sockets, self._turns, self._deliver = sockets, turns, deliver
        self._hello = message(b"\x01" + topic.encode())
        self._dialled_again, self._cut_off = dialled_again, cut_off
        self._loop = asyncio.get_running_loop()
        self._readers: set[_Reader] = set()
        self._dialling: asyncio.Task[None] | None = None
        self._listening: socket.socket | None = None
        self._path: Path | None = None
        self._is_closed = False

    def connect(self, address: str) -> None:
        """Dial a publisher, again and again until it answers, and whenever it is lost.

        Raises:
            OSError: the address is none.
        """
        parts_of(address)
        self._dialling = self._loop.create_task(self._dial(address))

    def bind(self, address: str) -> str:
        """Listen for publishers that dial; where, as ZeroMQ says it.

        Raises:
            OSError: the address is taken, or none.
        """
        self._listening, self._path = listening_at(address)
        self._loop.add_reader(self._listening.fileno(), self._accept)
        if self._path is not None:
            return address
        host, port = self._listening.getsockname()[:2]
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    def close(self) -> None:
        """Deliver no more."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._dialling is not None:
            self._dialling.cancel()
        if self._listening is not None:
            self._loop.remove_reader(self._listening.fileno())
            self._listening.close()
            if self._path is not None:
                self._path.unlink(missing_ok=True)
        for reader in tuple(self._readers):
            self._stop(reader)
        self._sockets.leave()

    async def _dial(self, address: str) -> None:
        pause = _RECONNECT_SECONDS
        while True:
            await self._sockets.may_dial()
            with suppress(OSError):
                was_ready, is_cut_off = await self._until_ended(self._made(await connected_to(address)))
                if was_ready:
                    pause = _RECONNECT_SECONDS
                if is_cut_off:
                    self._cut_off()
                    await asyncio.sleep(CUT_OFF_SECONDS)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _RECONNECT_MAX_SECONDS)
            self._dialled_again()

    async def _until_ended(self, connection: Connection) -> tuple[bool, bool]:
        """Whether the peer had introduced itself, and whether it was cut off."""
        ended: asyncio.Future[bool] = self._loop.create_future()
        reader = _Reader(connection, self._turns, ended.set_result)
        self._readers.add(reader)
        try:
            is_cut_off = await ended
            return connection.is_ready, is_cut_off
        finally:
            self._readers.discard(reader)
            reader.close()

    def _accept(self) -> None:
        """Some at a time; the loop comes again for others."""
        assert self._listening is not None, "it listens"
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                connected, _ = self._listening.accept()
            except OSError:  # there is none, or it is gone again
                return
            try:
                self._sockets.enter()
            except OSError:
                connected.close()
                continue
            connected.setblocking(False)
            self._follow(self._made(connected))

    def _follow(self, connection: Connection) -> None:
        reader: _Reader

        def ended(is_cut_off: bool) -> None:
            if is_cut_off:
                self._cut_off()
            self._stop(reader)

        reader = _Reader(connection, self._turns, ended)
        self._readers.add(reader)

    def _stop(self, reader: _Reader) -> None:
        reader.close()
        if reader in self._readers:
            self._readers.discard(reader)
            if self._listening is not None:
                self._sockets.leave()

    def _made(self, connected: socket.socket) -> Connection:
        sockets, now = self._sockets, self._loop.time()
        return Connection(connected, b"SUB", self._hello, sockets.seats, self._deliver, now, sockets.max_message_bytes)
