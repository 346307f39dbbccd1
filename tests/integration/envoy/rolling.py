"""Two pickers behind one Envoy, under load, of which one after the other is restarted."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from integration.envoy.gateway import Envoy, start_envoy, stop_envoy
from integration.plugins.serving import Picker, serving
from integration.serve.gateway import RANDOM, until

CHUNKS = 5
DRAIN = {"h2": "--drain-timeout=1h", "grpcio": "--drain-timeout=5s"}
"""By transport: h2 ends the drain time when Envoy has gone; grpcio does not see connections, so there it lasts to its end."""
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@dataclass
class Rolling:
    """What is restarted, and what became of the requests meanwhile."""

    folder: Path
    envoy: Envoy
    options: tuple[str, ...]
    pickers: dict[int, tuple[Picker, AsyncExitStack]] = field(default_factory=dict)
    served: int = 0
    failed: list[str] = field(default_factory=list)
    restarts: int = 0
    calm: bool = False
    """Whether a request that begins now must not fail."""
    failed_in_calm: list[str] = field(default_factory=list)

    async def start(self, port: int) -> None:
        """Start a picker, and wait until Envoy sends it requests."""
        running = AsyncExitStack()
        picker = await running.enter_async_context(serving(self.folder, f"--grpc-port={port}", "--reuse-port", *self.options))
        self.pickers[port] = picker, running
        await self.healthy(lambda ports: port in ports)

    async def restart(self, port: int, *, when_noticed: bool) -> None:
        """Restart a picker; `when_noticed` ends its drain time as soon as Envoy has noticed, rather than after `--drain-timeout`."""
        picker, running = self.pickers.pop(port)
        picker.process.send_signal(signal.SIGTERM)
        if when_noticed:
            await picker.logged("draining")
            await self.healthy(lambda ports: port not in ports)
            await self.beyond(20)
            picker.process.send_signal(signal.SIGTERM)
        await picker.process.wait()
        await running.aclose()
        await self.start(port)
        self.restarts += 1

    async def kill(self, port: int) -> None:
        """Kill a picker as the kernel does that runs out of memory, and wait until Envoy has noticed."""
        picker, running = self.pickers.pop(port)
        picker.process.kill()
        await picker.process.wait()
        await self.healthy(lambda ports: port not in ports)
        with suppress(AssertionError):  # it tells that the exit code is that of a process that was killed
            await running.aclose()

    async def stop(self) -> None:
        """Stop the pickers; they wait for Envoy to go first."""
        for _, running in self.pickers.values():
            await running.aclose()

    async def healthy(self, condition: Callable[[set[int]], bool]) -> None:
        """Wait until the pickers to which Envoy sends requests are as they should be."""

        async def holds() -> bool:
            return condition(await asyncio.to_thread(self.envoy.healthy_pickers))

        await until(holds, "Envoy to notice")

    async def beyond(self, count: int) -> None:
        """Wait until that many more requests have been served."""
        target = self.served + count

        async def reached() -> bool:
            return self.served >= target

        await until(reached, f"{count} more requests served; failures: {self.failed[:3]}")

    async def client(self) -> None:
        """Send one request after the other."""
        async with aiohttp.ClientSession(f"http://127.0.0.1:{self.envoy.ports['full_duplex']}") as client:
            while True:
                calm = self.calm
                try:
                    async with client.post("/v1/chat/completions", json=CHAT) as response:
                        body = await response.text()
                except (OSError, aiohttp.ClientError) as problem:
                    self._fail(repr(problem), calm=calm)
                    continue
                if response.status == 200 and body.count("data:") == CHUNKS:
                    self.served += 1
                else:
                    self._fail(f"{response.status} {body}", calm=calm)

    def _fail(self, what: str, *, calm: bool) -> None:
        self.failed.append(what)
        if calm:
            self.failed_in_calm.append(what)


@asynccontextmanager
async def rolling(
    folder: Path, binary: Path, *options: str, clients: int = 8, threads: int = 2, tls: Mapping[str, Any] | None = None
) -> AsyncIterator[Rolling]:
    """Everything up and under load, until the caller has done with it."""
    async with AsyncExitStack() as stack:
        models = await asyncio.start_server(_answer_slowly, "127.0.0.1", 0)
        stack.callback(models.close)
        (folder / "config.yaml").write_text(RANDOM)
        model_port = models.sockets[0].getsockname()[1]
        (folder / "endpoints.yaml").write_text(f'endpoints: [{{name: a, address: 127.0.0.1, port: "{model_port}"}}]\n')
        ports = [stack.enter_context(_reserved()).getsockname()[1] for _ in range(2)]
        envoy = await asyncio.to_thread(start_envoy, binary, folder, *ports, threads=threads, tls=tls)
        run = Rolling(folder, envoy, options)
        stack.push_async_callback(run.stop)
        stack.push_async_callback(asyncio.to_thread, stop_envoy, envoy.process)
        for port in ports:
            await run.start(port)
        load = [asyncio.create_task(run.client()) for _ in range(clients)]
        try:
            yield run
        finally:
            for task in load:
                task.cancel()
            await asyncio.wait(load)


def _reserved() -> socket.socket:
    """A port that this process keeps, and on which pickers can listen, one after the other."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


async def _answer_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A model server: its answers take so long that each restart finds some under way."""
    with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
        while head := await reader.readuntil(b"\r\n\r\n"):
            lines = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
            if lines.get("transfer-encoding") == "chunked":
                while size := int(await reader.readline(), 16):
                    await reader.readexactly(size + 2)
                await reader.readline()
            else:
                await reader.readexactly(int(lines.get("content-length", 0)))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(CHUNKS):
                writer.write(b"8\r\ndata: 1\n\r\n")
                await writer.drain()
                await asyncio.sleep(0.02)
            writer.write(b"0\r\n\r\n")
    writer.close()
