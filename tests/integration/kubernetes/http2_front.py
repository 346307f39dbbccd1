"""TLS and HTTP/2 before the small API server, as a kube-apiserver has them: it says goodbye, or falls silent, when a test wants that."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from jh2.config import H2Configuration
from jh2.connection import H2Connection
from jh2.events import RequestReceived

from endpick.transport.tls import make_self_signed
from integration.kubernetes.api_server import ApiServer, kubeconfig, serving


@dataclass(eq=False)
class Connection:
    """One of HTTP/2, and the requests on it."""

    writer: asyncio.StreamWriter
    http2: H2Connection = field(default_factory=lambda: H2Connection(H2Configuration(client_side=False, header_encoding="utf-8")))
    silent: bool = False
    """Whether nothing is read or written any more; the connection stays."""
    paths: list[str] = field(default_factory=list)
    """What was asked for, from when its answer has begun."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client has sent something: its window may be wider."""

    async def send(self, chunk: bytes) -> None:
        """Pass on a part of a body, as the client's window lets it."""
        while chunk and not self.silent:
            room = min(self.http2.local_flow_control_window(1), self.http2.max_outbound_frame_size)
            if room:
                self.http2.send_data(1, chunk[:room])
                self.flush()
                chunk = chunk[room:]
            else:
                self.heard.clear()
                await self.heard.wait()

    def flush(self, more: bytes = b"") -> None:
        if not self.silent:
            self.writer.write(self.http2.data_to_send() + more)


class Http2Front:
    """Takes connections, and carries requests to the API server behind it."""

    def __init__(self, folder: Path, backend: str, protocols: tuple[str, ...]) -> None:
        certificate, key = make_self_signed()
        (folder / "front.pem").write_bytes(certificate + key)
        (folder / "authority.crt").write_bytes(certificate)
        self.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.tls.load_cert_chain(folder / "front.pem")
        self.tls.set_alpn_protocols(list(protocols))
        self.backend = backend
        self.connections: list[Connection] = []
        self.client = aiohttp.ClientSession(backend)
        self.plain = 0
        """Connections of HTTP/1.1."""

    def watching(self, path: str) -> list[Connection]:
        """Connections on which a path was watched, and that are not silent."""
        return [one for one in self.connections if not one.silent and any(asked.startswith(f"{path}?") for asked in one.paths)]

    def say_goodbye(self, path: str, last: bytes = b"") -> None:
        """Send GOAWAY where a path is watched, and then nothing more, as a kube-apiserver that was told to end; `last` is an event."""
        for one in self.watching(path):
            if last:
                one.http2.send_data(1, last)
            one.http2.close_connection()
            one.flush()
            one.silent = True

    def fall_silent(self, path: str) -> None:
        """Answer nothing more where a path is watched, not even PING, as a machine that is gone."""
        for one in self.watching(path):
            one.silent = True

    def send(self, path: str, raw: bytes) -> None:
        """Write any bytes where a path is watched."""
        for one in self.watching(path):
            one.flush(raw)

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2":
                await self._http2(reader, Connection(writer))
            else:
                self.plain += 1
                await self._http1(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def _http1(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, onward = await asyncio.open_connection("127.0.0.1", int(self.backend.rpartition(":")[2]))

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)

        copies = [asyncio.create_task(copy(reader, onward)), asyncio.create_task(copy(back, writer))]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in copies:
                task.cancel()
            onward.transport.abort()

    async def _http2(self, reader: asyncio.StreamReader, connection: Connection) -> None:
        self.connections.append(connection)
        connection.http2.initiate_connection()
        connection.flush()
        try:
            while data := await reader.read(65536):
                for event in () if connection.silent else connection.http2.receive_data(data):
                    if isinstance(event, RequestReceived):
                        task = asyncio.create_task(self._carry(connection, event))
                        connection.tasks.add(task)
                connection.flush()
                connection.heard.set()
        finally:
            self.connections.remove(connection)
            for task in connection.tasks:
                task.cancel()
            await asyncio.gather(*connection.tasks, return_exceptions=True)

    async def _carry(self, connection: Connection, asked: RequestReceived) -> None:
        fields = {str(name): str(value) for name, value in asked.headers or ()}
        headers = {name: value for name, value in fields.items() if name == "authorization"}
        try:
            async with self.client.get(fields[":path"], headers=headers) as response:
                passed = {name.lower(): value for name, value in response.headers.items() if name in ("Content-Type", "Retry-After")}
                connection.http2.send_headers(1, [(":status", str(response.status)), *passed.items()])
                connection.flush()
                connection.paths.append(fields[":path"])
                async for chunk in response.content.iter_any():
                    await connection.send(chunk)
        except aiohttp.ClientError:
            connection.writer.transport.abort()
        else:
            if not connection.silent:
                connection.http2.end_stream(1)
                connection.flush()


@asynccontextmanager
async def fronted(server: ApiServer, folder: Path, *protocols: str) -> AsyncIterator[tuple[Http2Front, Path]]:
    """The server behind a front; gives that, and a kubeconfig that names it."""
    async with serving(server) as url:
        front = Http2Front(folder, url, protocols or ("h2", "http/1.1"))
        listener = await asyncio.start_server(front.take, "127.0.0.1", 0, ssl=front.tls)
        try:
            file = kubeconfig(folder / "kubeconfig", f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}", token="t")
            content = json.loads(file.read_text())
            content["clusters"][0]["cluster"]["certificate-authority"] = "authority.crt"
            file.write_text(json.dumps(content))
            yield front, file
        finally:
            listener.close()
            await front.client.close()
