"""A line between gateway and picker that is slow, stalls, cuts what it carries into single bytes, and breaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self

_PIECE_BYTES = 4096


@dataclass(frozen=True)
class Weather:
    """What the line does.

    Attributes:
        longest_delay_seconds: Of each piece, at random up to this.
        single_bytes: Share of the pieces that go on byte by byte.
        stall_seconds: How long it stands still before it breaks.
        breaks_after_bytes: At random up to this, in either direction; 0: never.
    """

    longest_delay_seconds: float = 0.0
    single_bytes: float = 0.0
    stall_seconds: float = 0.0
    breaks_after_bytes: int = 0


@dataclass
class BadLine:
    """A proxy for any number of connections; use it within `opened`."""

    target: int
    weather: Weather
    rng: random.Random
    port: int = 0
    broken: int = 0
    single: int = 0
    """Bytes that went on one by one."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @classmethod
    @asynccontextmanager
    async def opened(cls, target: int, weather: Weather) -> AsyncIterator[Self]:
        """Listen on a port of loopback for as long as the block lasts."""
        line = cls(target, weather, random.Random(5))
        server = await asyncio.start_server(line._carry, "127.0.0.1", 0)
        line.port = server.sockets[0].getsockname()[1]
        try:
            yield line
        finally:
            server.close()
            for task in line._tasks:
                task.cancel()
            await asyncio.gather(*line._tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        ends = (writer, back)
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.ensure_future(self._pass_on(source, sink, ends))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, ends: tuple[asyncio.StreamWriter, ...]) -> None:
        left = self.rng.randrange(1, self.weather.breaks_after_bytes) if self.weather.breaks_after_bytes else None
        try:
            while piece := await source.read(_PIECE_BYTES):
                await asyncio.sleep(self.rng.uniform(0, self.weather.longest_delay_seconds))
                if left is not None and left < len(piece):
                    sink.write(piece[:left])
                    await asyncio.sleep(self.weather.stall_seconds)
                    self.broken += 1
                    break
                left = None if left is None else left - len(piece)
                await self._write(sink, piece)
        except OSError:
            pass
        finally:
            for end in ends:
                end.transport.abort()

    async def _write(self, sink: asyncio.StreamWriter, piece: bytes) -> None:
        if self.rng.random() < self.weather.single_bytes:
            for at in range(len(piece)):
                sink.write(piece[at : at + 1])
                await asyncio.sleep(0)  # a write of its own for each, since loopback's sockets have no delay
            self.single += len(piece)
        else:
            sink.write(piece)
        await sink.drain()
