"""`local-state-store` and `file-state-store`: for one machine, without a server."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from endpick.api import ConfigurationError, PluginContext
from endpick.api.fleet import StateStore
from endpick_builtin.camel_parameters import CamelParameters

_SOCKET: Final = ".socket"
_LENGTH_BYTES: Final = 4
_SNAPSHOT_SECONDS: Final = 600
_MOST_UNREAD_BYTES: Final = 1 << 20  # sent to a picker that does not read them


class FileStoreParameters(CamelParameters):
    """Names the file that keeps the learnt state."""

    path: Annotated[Path, Field(description="File that keeps what was learnt.", examples=["/var/lib/endpick/state"])]


class FileStateStore(StateStore[FileStoreParameters]):
    """Keeps the learnt state of a single picker in a file, from its end to its next start."""

    carries_messages = False

    async def start(self) -> None:
        _make(self.parameters.path.parent)

    async def publish(self, message: bytes) -> None:
        """Do nothing: a single picker has no peers."""

    async def messages(self) -> AsyncIterator[bytes]:
        return
        yield b""

    async def save(self, name: str, snapshot: bytes) -> None:
        await _write(self.parameters.path, snapshot)

    async def load(self, name: str) -> bytes | None:
        return await _read(self.parameters.path)


class LocalStoreParameters(CamelParameters):
    """Names the folder in which the pickers of a machine find each other."""

    folder: Annotated[Path, Field(description="Folder that the pickers of the pool can write to.", examples=["/run/endpick"])]


class LocalStateStore(StateStore[LocalStoreParameters]):
    """Shares learnt state between the pickers of a pool on one machine, through sockets and files in a folder.

    `--workers` uses it. Each picker has a socket to which the others connect; snapshots are files.
    """

    def __init__(self, name: str, parameters: LocalStoreParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._socket = parameters.folder / f"{os.getpid()}-{secrets.token_hex(3)}{_SOCKET}"
        self._writers: dict[str, asyncio.StreamWriter] = {}  # by the name of the socket
        self._publishing = asyncio.Lock()  # two messages must not connect to one picker twice

    async def start(self) -> None:
        _make(self.parameters.folder)

    async def stop(self) -> None:
        for writer in self._writers.values():
            writer.close()

    async def publish(self, message: bytes) -> None:
        framed = len(message).to_bytes(_LENGTH_BYTES, "big") + message
        async with self._publishing:
            others = {name for name in os.listdir(self.parameters.folder) if name.endswith(_SOCKET)}  # noqa: PTH208 - pathlib takes four times as long
            for name in self._writers.keys() - others:
                self._writers.pop(name).close()
            for name in others:
                writer = self._writers.get(name) or await self._connected(name)
                if writer is None:
                    continue
                if writer.is_closing() or writer.transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
                    self._writers.pop(name).close()
                else:
                    writer.write(framed)

    async def messages(self) -> AsyncIterator[bytes]:
        received: asyncio.Queue[bytes] = asyncio.Queue()
        readers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        has_ended = False

        async def read(reader: asyncio.StreamReader) -> None:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
                    received.put_nowait(await reader.readexactly(length))

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if has_ended:
                writer.close()
                return
            task = asyncio.create_task(read(reader))
            readers[task] = writer
            task.add_done_callback(lambda ended: readers.pop(ended).close())

        try:
            unfinished = self._socket.with_suffix(".part")  # a socket that does not listen yet looks like a crashed picker's
            server = await asyncio.start_unix_server(accept, unfinished)
            unfinished.rename(self._socket)
        except OSError as error:
            raise ConnectionError(f"{self._socket} cannot be opened: {error.strerror or error}") from error
        try:
            yield b""
            while True:
                yield await received.get()
        finally:
            has_ended = True
            server.close()
            for task, writer in readers.items():
                task.cancel()
                writer.close()
            self._socket.unlink(missing_ok=True)

    async def save(self, name: str, snapshot: bytes) -> None:
        for old in self.parameters.folder.glob("*.snapshot"):
            if time.time() - old.stat().st_mtime > _SNAPSHOT_SECONDS:
                old.unlink(missing_ok=True)
        await _write(self.parameters.folder / f"{name}.snapshot", snapshot)

    async def load(self, name: str) -> bytes | None:
        return await _read(self.parameters.folder / f"{name}.snapshot")

    async def _connected(self, name: str) -> asyncio.StreamWriter | None:
        path = self.parameters.folder / name
        try:
            _, writer = await asyncio.open_unix_connection(path)
        except OSError:
            path.unlink(missing_ok=True)
            return None
        self._writers[name] = writer
        return writer


def _make(folder: Path) -> None:
    repair = "name a folder that the user of this process can write to, in --state-url or the parameters"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"the folder {folder} cannot be made: {error.strerror}", repair) from error
    if not os.access(folder, os.W_OK):
        raise ConfigurationError(f"the folder {folder} cannot be written to", repair)


async def _write(path: Path, snapshot: bytes) -> None:
    unfinished = path.with_name(f"{path.name}.part")
    try:
        await asyncio.to_thread(unfinished.write_bytes, snapshot)
        unfinished.replace(path)
    except OSError as error:
        raise ConnectionError(f"{path} cannot be written: {error.strerror}") from error


async def _read(path: Path) -> bytes | None:
    """Return the content, or None if there is no such file."""
    try:
        return await asyncio.to_thread(path.read_bytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConnectionError(f"{path} cannot be read: {error.strerror}") from error
