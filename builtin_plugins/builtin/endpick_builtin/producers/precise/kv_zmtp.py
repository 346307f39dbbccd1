"""ZMTP 3, the protocol of ZeroMQ, as far as a subscriber and a client of a replay port speak it.

ZeroMQ's own library keeps a message until it is complete, in memory that no account of endpick shows, and bounds no more than each of its
frames: one without an end fills the memory. Here a message is refused as soon as it says that it is too long, few connections have a long
one under way at a time, and one that does not come to its end is given up.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from enum import Enum, auto
from typing import TypeAlias

from endpick_builtin.producers.precise.kv_turns import Seats

Frames = list[bytes]
Steps: TypeAlias = Generator["Need", None, None]

MAX_MESSAGE_BYTES = 2 * 1024 * 1024
"""A publisher that sends more at once is cut off; a step of an engine with half a million new tokens fits."""
MESSAGE_SECONDS = 10.0
"""For the end of what a peer has begun: a message, or its greeting."""
MOST_FRAMES = 8
"""Of one message that are looked at; it has three, and a replay sends two more around them."""
_SHORT_BYTES = 16 * 1024
"""A message of more needs a seat."""
_READ_BYTES = 16 * 1024
_LONG_READ_BYTES = 64 * 1024
_ENVELOPE_BYTES = 4096
"""Of a message beside its longest frame."""
_MOST_COMMAND_BYTES = 4096
_FRAMES_PER_STEP = 64
_ENDLESS_FRAMES = 1024
"""A message of more is taken for one without an end."""
_GREETING_BYTES = 64
_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
"""Of version 3.0, in which a subscription is a message; later versions speak it with us, too."""
_MORE, _LONG, _COMMAND = 1, 2, 4
_SIGNED, _VERSION, _MECHANISM = 9, 10, slice(12, 32)


class Need(Enum):
    """What has to be before the next step."""

    TURN = auto()
    """Nothing: others may have a turn."""
    BYTES = auto()
    """The peer has to send something."""
    SEAT = auto()
    """A long message of another connection has to end."""


class CutOffError(Exception):
    """The peer speaks no ZMTP, or more of it than it may."""


def frame(body: bytes, flags: int = 0) -> bytes:
    """As it is sent."""
    if len(body) > 255:
        return bytes((flags | _LONG,)) + len(body).to_bytes(8, "big") + body
    return bytes((flags, len(body))) + body


def message(*frames: bytes) -> bytes:
    """As it is sent."""
    return b"".join([frame(body, _MORE) for body in frames[:-1]]) + frame(frames[-1])


def _command(name: bytes, data: bytes) -> bytes:
    return frame(bytes((len(name),)) + name + data, _COMMAND)


class Connection:
    """What comes on one connection, step by step. `steps` ends with an `OSError` or a `CutOffError`, which says why."""

    def __init__(
        self,
        connected: socket.socket,
        kind: bytes,
        hello: bytes,
        seats: Seats,
        deliver: Callable[[Frames], Iterator[None]],
        now: float,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """Begin with a greeting.

        Args:
            connected: Non-blocking; `close` closes it.
            kind: Of socket, as ZeroMQ calls it.
            hello: Sent as soon as the peer is ready.
            seats: Of all connections.
            deliver: Called with the frames of each message; the next one is read when all steps of what it gives have been taken.
            now: The time of the event loop.
            max_message_bytes: A peer that sends a longer message is cut off.
        """
        self.socket = connected
        self.on_seated: Callable[[], None] = lambda: None
        """Called when the seat is there that a step asked for."""
        self.is_ready = self.is_waiting = self.is_closed = False
        """Whether the peer has introduced itself; whether it has to send something."""
        self.steps = self._follow()
        self._max_message_bytes = max_message_bytes
        self._kind, self._hello, self._seats, self._deliver = kind, hello, seats, deliver
        self._owes_since: float | None = now
        """When the peer began what has not ended; None where all has."""
        self._now = asyncio.get_running_loop().time
        self._heard = True
        self._has_seat = False
        self._have, self._at = b"", 0
        """What was received, and how much of it was read."""

    def close(self) -> None:
        """Read no more."""
        if not self.is_closed:
            self.is_closed = True
            self.socket.close()
            self._seats.forget(self._seated)
            self._leave_seat()
            with suppress(ValueError):  # it is this very step that closes it
                self.steps.close()  # it holds what came of a message

    def _seated(self) -> None:
        self._has_seat = True
        self.on_seated()

    def beat(self) -> None:
        """Ask now and then whether the peer is there.

        Raises:
            OSError: it is not.
            CutOffError: it does not come to the end of what it has begun.
        """
        if self.is_waiting:
            if self._owes_since is not None and self._now() - self._owes_since > MESSAGE_SECONDS:
                raise CutOffError(f"what it began did not end within {MESSAGE_SECONDS:g} s")
            if not self._heard:
                raise TimeoutError("the peer does not answer")
        self._heard = False
        if self.is_ready:
            self._send(_command(b"PING", bytes(2)))

    def _follow(self) -> Steps:
        self._send(_GREETING)
        greeting = yield from self._exactly(_GREETING_BYTES)
        is_zmtp = greeting[0] == 0xFF and greeting[_SIGNED] & 1 and greeting[_VERSION] >= 3
        if not is_zmtp or greeting[_MECHANISM].rstrip(b"\0") != b"NULL":
            raise CutOffError("it does not speak ZMTP 3 without a password")
        name = b"Socket-Type"
        self._send(_command(b"READY", bytes((len(name),)) + name + len(self._kind).to_bytes(4, "big") + self._kind))
        while True:
            frames = yield from self._message()
            for _ in self._deliver(frames):
                yield Need.TURN
            del frames
            self._leave_seat()
            yield Need.TURN

    def _message(self) -> Generator[Need, None, Frames]:
        """The next message, but for frames beyond `MOST_FRAMES`."""
        frames: Frames = []
        size = count = 0
        while True:
            flags, length = yield from self._exactly(2)
            if self._owes_since is None:
                self._owes_since = self._now()
            if flags & _LONG:
                length = int.from_bytes(bytes((length,)) + (yield from self._exactly(7)), "big")
            if flags & _COMMAND:
                yield from self._obey(flags, length)
                if self.is_ready and not count:
                    self._owes_since = None
                continue
            size += length + 2
            count += 1
            if flags & ~(_MORE | _LONG) or not self.is_ready:
                raise CutOffError("it does not speak ZMTP")
            if length > self._max_message_bytes or size > self._max_message_bytes + _ENVELOPE_BYTES or count > _ENDLESS_FRAMES:
                raise CutOffError(f"a message is longer than {self._max_message_bytes} bytes")
            if size > _SHORT_BYTES and not self._has_seat:
                yield from self._sit_down()
            body = yield from self._exactly(length)
            if count <= MOST_FRAMES:
                frames.append(body)
            if not flags & _MORE:
                self._owes_since = None
                return frames
            if not count % _FRAMES_PER_STEP:
                yield Need.TURN

    def _obey(self, flags: int, length: int) -> Steps:
        if flags & ~(_COMMAND | _LONG) or length > _MOST_COMMAND_BYTES:
            raise CutOffError("it does not speak ZMTP")
        body = yield from self._exactly(length)
        name, data = (body[1 : 1 + body[0]], body[1 + body[0] :]) if body else (b"", b"")
        if name == b"READY" and not self.is_ready:
            self.is_ready = True
            self._send(self._hello)
        elif name == b"PING":
            self._send(_command(b"PONG", data[2:18]))
        elif name == b"ERROR":
            raise CutOffError("it refuses us")
        yield Need.TURN

    def _exactly(self, size: int) -> Generator[Need, None, bytes]:
        """So many bytes."""
        at = self._at
        if len(self._have) >= at + size:
            self._at = at + size
            return self._have[at : at + size]
        got = bytearray(self._have[at:])
        self._have, self._at = b"", 0
        while len(got) < size:
            try:
                some = self.socket.recv(max(_READ_BYTES, min(size - len(got), _LONG_READ_BYTES)))
            except BlockingIOError:
                yield Need.BYTES
                continue
            if not some:
                raise ConnectionResetError("the peer has closed the connection")
            self._heard = True
            got += some
            if len(got) < size:
                yield Need.TURN
        self._have = bytes(memoryview(got)[size:])
        return bytes(memoryview(got)[:size])

    def _sit_down(self) -> Steps:
        self._has_seat = self._seats.take(self._seated)
        while not self._has_seat:
            yield Need.SEAT
        self._owes_since = self._now()

    def _leave_seat(self) -> None:
        if self._has_seat:
            self._has_seat = False
            self._seats.leave()

    def _send(self, data: bytes) -> None:
        """Little enough for any socket, unless its peer takes nothing."""
        if self.socket.send(data) < len(data):
            raise ConnectionAbortedError("the peer takes nothing")
