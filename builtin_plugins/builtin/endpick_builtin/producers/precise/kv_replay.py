"""Fetches the messages that a publisher keeps for those who have missed them."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncGenerator, Iterator

from endpick_builtin.producers.precise.kv_addresses import connected_to
from endpick_builtin.producers.precise.kv_sockets import Sockets
from endpick_builtin.producers.precise.kv_turns import TURN_SECONDS
from endpick_builtin.producers.precise.kv_zmtp import Connection, CutOffError, Frames, Need, message

END_OF_REPLAY = -1
_PAUSE_SECONDS = 0.2
"""Before another attempt to reach a publisher that has said nothing yet."""


async def fetch(sockets: Sockets, address: str, number: int, idle_seconds: float) -> AsyncGenerator[Frames]:
    """The messages that a publisher keeps, from this number on, as `[topic, number, payload]`; ends with the last one.

    Raises:
        TimeoutError: nothing came for that long.
        OSError: the address is none, the publisher is lost after it has begun to answer, or there are no sockets left.
    """
    now = asyncio.get_running_loop().time
    sockets.enter()
    kept: _Kept | None = None
    until, has_begun = now() + idle_seconds, False
    try:
        while True:
            try:
                kept = kept or _Kept(await connected_to(address), number, sockets)
                frames = await kept.message(until)
            except (OSError, CutOffError) as problem:
                if has_begun or now() + _PAUSE_SECONDS > until:
                    raise problem if isinstance(problem, OSError) else OSError(errno.EPROTO, str(problem)) from None
                if kept is not None:
                    kept.close()
                kept = None
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            frames = frames[1:] if frames and not frames[0] and len(frames) > 3 else frames
            if len(frames) == 3 and int.from_bytes(frames[1], "big", signed=True) == END_OF_REPLAY:
                return
            yield frames
            until, has_begun = now() + idle_seconds, True
    finally:
        if kept is not None:
            kept.close()
        sockets.leave()


class _Kept:
    """A connection over which a publisher is asked for the messages that it keeps."""

    def __init__(self, connected: socket.socket, number: int, sockets: Sockets) -> None:
        self._loop = asyncio.get_running_loop()
        self._got: list[Frames] = []
        question = message(b"", number.to_bytes(8, "big"))
        self._connection = Connection(
            connected, b"DEALER", question, sockets.seats, self._keep, self._loop.time(), sockets.max_message_bytes
        )
        self._descriptor = connected.fileno()
        self._rest_at = self._loop.time() + TURN_SECONDS

    def close(self) -> None:
        self._connection.close()

    def _keep(self, frames: Frames) -> Iterator[None]:
        self._got.append(frames)
        return iter(())

    async def message(self, until: float) -> Frames:
        """The next one, by that time of the event loop.

        Raises:
            OSError, CutOffError: there is none.
        """
        while True:
            need = next(self._connection.steps)
            if self._got:
                return self._got.pop()
            if need is not Need.TURN:
                async with asyncio.timeout_at(until):
                    await (self._readable() if need is Need.BYTES else self._seated())
                self._rest_at = self._loop.time() + TURN_SECONDS
            elif self._loop.time() > self._rest_at:
                await asyncio.sleep(TURN_SECONDS)
                self._rest_at = self._loop.time() + TURN_SECONDS

    async def _readable(self) -> None:
        ready = asyncio.Event()
        self._loop.add_reader(self._descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_reader(self._descriptor)

    async def _seated(self) -> None:
        ready = asyncio.Event()
        self._connection.on_seated = ready.set
        await ready.wait()
