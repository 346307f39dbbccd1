"""ZeroMQ sockets on the event loop: messages of publishers as they come, and those that a publisher still keeps.

Sockets are read in the turns of `Turns`, so that a flood of messages leaves room for requests.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from endpick_builtin.collection.connection_room import descriptors_for_feeds
from endpick_builtin.producers.precise.kv_turns import TURN_SECONDS, Turns

if TYPE_CHECKING:
    import zmq

Frames = list[bytes]

MOST_FRAMES = 8
"""Of one message that are looked at; it has three, and a replay sends two more around them."""
MAX_SOCKETS = 16_384
"""Three for each publisher that is dialled; ZeroMQ's own limit is 1023."""
_DESCRIPTORS_PER_SOCKET = 4 / 3
"""One for each of a publisher's three sockets, and one for the connection."""
MAX_MESSAGE_BYTES = 2 * 1024 * 1024
"""A publisher that sends more at once is cut off; a step of an engine with half a million new tokens fits."""
CUT_OFF_SECONDS = 5.0
"""After which one that was cut off is dialled again: ZeroMQ itself dials only those that were lost."""
_RECEIVE_QUEUE = 32
"""Messages of one publisher that ZeroMQ keeps, in memory that no account knows of. Beyond them it reads no further, and the publisher
keeps what it sends: it has a queue of its own for that."""
_FRAMES_PER_STEP = 64
_RECONNECT_MILLISECONDS = 200
_RECONNECT_MAX_MILLISECONDS = 5_000
_HEARTBEAT_MILLISECONDS = 5_000
END_OF_REPLAY = -1


@contextmanager
def _told_as_os_errors() -> Iterator[None]:
    """ZeroMQ's errors are the system's, of a type of their own."""
    import zmq  # noqa: PLC0415

    try:
        yield
    except zmq.ZMQError as problem:
        raise OSError(problem.errno or 0, problem.strerror or str(problem)) from problem


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    """A context for `MAX_SOCKETS`, or for as many as leave descriptors for everything else."""
    import zmq  # noqa: PLC0415 - an extra that only configurations with KV events need

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, max(1, min(MAX_SOCKETS, int(descriptors_for_feeds() / _DESCRIPTORS_PER_SOCKET))))
    return context


class Subscriber:
    """One subscription, to publishers that it dials or that dial it."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        topic: str,
        turns: Turns,
        deliver: Callable[[Frames], Iterator[None]],
        dialled_again: Callable[[], None],
        cut_off: Callable[[], None],
    ) -> None:
        """For topics that begin with `topic`.

        Args:
            context: Of all sockets.
            topic: Empty for all.
            turns: In which the socket is read.
            deliver: Called with the frames of each message; the next one is read when all steps of what it gives have been taken.
            dialled_again: Called for each new attempt to reach a publisher.
            cut_off: Called when a publisher that was dialled had sent what ZeroMQ refuses: more than `MAX_MESSAGE_BYTES`, or no ZMTP.

        Raises:
            OSError: there are no sockets left, with `errno.EMFILE`.
        """
        import zmq  # noqa: PLC0415

        self._again, self._noblock = zmq.Again, zmq.NOBLOCK
        self._turns, self._deliver = turns, deliver
        self._is_reading = False
        self._loop = asyncio.get_running_loop()
        with _told_as_os_errors():
            self._socket = socket = context.socket(zmq.SUB)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.RCVHWM, _RECEIVE_QUEUE),
            (zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES),
            (zmq.RECONNECT_IVL, _RECONNECT_MILLISECONDS),
            (zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MILLISECONDS),
            (zmq.HEARTBEAT_IVL, _HEARTBEAT_MILLISECONDS),
            (zmq.IPV6, 1),
        ):
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.SUBSCRIBE, topic.encode())
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._wake)
        self._loop.call_soon(self._wake)
        self._dialled_again, self._cut_off = dialled_again, cut_off
        self._lost, self._retried = int(zmq.EVENT_DISCONNECTED), int(zmq.EVENT_CONNECT_RETRIED)
        self._address = ""
        self._cutting: asyncio.TimerHandle | None = None
        """Runs from the loss of a connection to ZeroMQ's next attempt, which follows at once unless it has cut the connection itself."""
        try:
            with _told_as_os_errors():
                self._monitor = socket.get_monitor_socket(self._lost | self._retried)
        except OSError:
            self._loop.remove_reader(self._descriptor)
            socket.close(0)
            raise
        self._monitor_descriptor = int(self._monitor.getsockopt(zmq.FD))
        self._loop.add_reader(self._monitor_descriptor, self._count)
        self._loop.call_soon(self._count)

    def connect(self, address: str) -> None:
        """Dial a publisher, again and again until it answers, and whenever it is lost.

        Raises:
            OSError: the address is none.
        """
        with _told_as_os_errors():
            self._socket.connect(address)
        self._address = address

    def bind(self, address: str) -> str:
        """Listen for publishers that dial; where, as ZeroMQ says it.

        Raises:
            OSError: the address is taken, or none.
        """
        import zmq  # noqa: PLC0415

        with _told_as_os_errors():
            self._socket.bind(address)
        return self._socket.get_string(zmq.LAST_ENDPOINT)

    def close(self) -> None:
        """Deliver no more."""
        if not self._socket.closed:
            self._stop_cutting()
            self._loop.remove_reader(self._monitor_descriptor)
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._loop.remove_reader(self._descriptor)
            self._socket.close(0)

    def _count(self) -> None:
        """Each attempt; they come every 200 ms at most."""
        while not self._socket.closed:
            try:
                event = int.from_bytes(self._monitor.recv_multipart(self._noblock)[0][:2], sys.byteorder)
            except self._again:
                return
            self._stop_cutting()
            if event == self._retried:
                self._dialled_again()
            elif self._address:
                self._cutting = self._loop.call_later(CUT_OFF_SECONDS, self._dial_again)

    def _stop_cutting(self) -> None:
        if self._cutting is not None:
            self._cutting.cancel()
            self._cutting = None

    def _dial_again(self) -> None:
        self._cutting = None
        self._cut_off()
        self._socket.disconnect(self._address)
        self._socket.connect(self._address)

    def _wake(self) -> None:
        """There may be messages; ZeroMQ says so once, and again only after all have been read."""
        if not self._is_reading and not self._socket.closed:
            self._is_reading = True
            self._turns.join(self._read())

    def _read(self) -> Iterator[None]:
        while not self._socket.closed:
            try:
                frames = yield from _message(self._socket)
            except self._again:
                break
            yield from self._deliver(frames)
            yield
        self._is_reading = False


def _message(socket: zmq.Socket[bytes]) -> Generator[None, None, Frames]:
    """The frames of a message that is there as a whole, but for those beyond `MOST_FRAMES`: there may be millions.

    Raises:
        zmq.Again: none is there.
    """
    import zmq  # noqa: PLC0415

    frames, count = [socket.recv(zmq.NOBLOCK)], 1
    while not socket.closed and socket.getsockopt(zmq.RCVMORE):
        frame = socket.recv(zmq.NOBLOCK)
        count += 1
        if len(frames) < MOST_FRAMES:
            frames.append(frame)
        if not count % _FRAMES_PER_STEP:
            yield
    return frames


async def fetch(context: zmq.Context[zmq.Socket[bytes]], address: str, number: int, idle_seconds: float) -> AsyncIterator[Frames]:
    """The messages that a publisher keeps, from this number on, as `[topic, number, payload]`; ends with the last one.

    Raises:
        TimeoutError: nothing came for that long.
        OSError: the address is none, or there are no sockets left.
    """
    import zmq  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    with _told_as_os_errors():
        socket = context.socket(zmq.DEALER)
    descriptor = int(socket.getsockopt(zmq.FD))
    try:
        for option, value in ((zmq.LINGER, 0), (zmq.RCVHWM, _RECEIVE_QUEUE), (zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES), (zmq.IPV6, 1)):
            socket.setsockopt(option, value)
        with _told_as_os_errors():
            socket.connect(address)
        socket.send_multipart([b"", number.to_bytes(8, "big")])
        until = loop.time() + TURN_SECONDS
        while True:
            try:
                frames = await _whole(socket)
            except zmq.Again:
                await asyncio.wait_for(_readable(loop, descriptor), idle_seconds)
                until = loop.time() + TURN_SECONDS
                continue
            frames = frames[1:] if frames and not frames[0] and len(frames) > 3 else frames
            if len(frames) == 3 and int.from_bytes(frames[1], "big", signed=True) == END_OF_REPLAY:
                return
            yield frames
            if loop.time() > until:
                await asyncio.sleep(TURN_SECONDS)
                until = loop.time() + TURN_SECONDS
    finally:
        socket.close(0)


async def _whole(socket: zmq.Socket[bytes]) -> Frames:
    reading = _message(socket)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return cast("Frames", end.value)
        await asyncio.sleep(0)


async def _readable(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
