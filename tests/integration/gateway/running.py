"""`endpick up` as a process of its own, with a real Envoy and simulated model servers."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest

from endpick_gateway.envoy import EnvoyNotFoundError, find_envoy
from endpick_lab.demo.processes import Children
from endpick_lab.demo.stack import _start_server
from forked import FORKED
from integration.serve.gateway import samples

ROOT = Path(__file__).parents[3]
PORTS = ("--host=localhost", "--port=0", "--metrics-port=0", "--log-format=json")


@dataclass
class Up:
    """One run of `endpick up`; `events` and `access` are its log lines so far."""

    process: asyncio.subprocess.Process
    events: list[Mapping[str, object]] = field(default_factory=list)
    access: list[Mapping[str, object]] = field(default_factory=list)

    async def logged(self, text: str, times: int = 1) -> Mapping[str, object]:
        """Wait until that many log lines contain the text; returns the last of them."""
        async with asyncio.timeout(30):
            while len(found := [event for event in self.events if text in str(event["event"])]) < times:
                assert self.process.returncode is None, self.events
                await asyncio.sleep(0.02)
        return found[times - 1]

    async def url(self) -> str:
        """Of the port for clients."""
        return str((await self.logged("the gateway serves"))["url"])

    async def metrics_url(self) -> str:
        """Of the metrics port."""
        return f"http://127.0.0.1:{(await self.logged('serving'))['metrics_port']}"

    async def health(self) -> tuple[int, str]:
        """Status and text of `/healthz`."""
        async with aiohttp.ClientSession() as client, client.get(f"{await self.metrics_url()}/healthz") as response:
            return response.status, await response.text()

    async def sample(self, name: str, labels: Mapping[str, str] = {}) -> float:
        """The sum of these samples of the picker."""
        found = await samples(f"{await self.metrics_url()}/metrics")
        return sum(one.value for one in found if one.name == name and labels.items() <= one.labels.items())

    def envoy_pid(self) -> int:
        """Its child."""
        (pid,) = [int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()]
        return pid

    async def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            return await self.process.wait()


def envoy() -> Path:
    """Envoy's binary; skips without one."""
    try:
        return find_envoy(os.environ, ROOT)
    except EnvoyNotFoundError as missing:
        pytest.skip(str(missing))


@asynccontextmanager
async def up(folder: Path, *arguments: str, binary: Path | None = None) -> AsyncIterator[Up]:
    """Run it in a folder until the end of the block; it must end with 0."""
    environment = {**os.environ, "ENDPICK_ENVOY": str(binary or envoy()), "TMPDIR": str(folder)}
    process = await asyncio.create_subprocess_exec(
        *(FORKED, "-m", "endpick", "up", *PORTS, *arguments),
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    run = Up(process)
    reading = [asyncio.create_task(_read(process.stderr, run.events)), asyncio.create_task(_read(process.stdout, run.access))]
    try:
        yield run
        if process.returncode is None:
            await run.stop()
        assert process.returncode == 0, run.events
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await asyncio.gather(*reading)


async def _read(stream: asyncio.StreamReader | None, lines: list[Mapping[str, object]]) -> None:
    assert stream is not None
    while line := await stream.readline():
        lines.append(json.loads(line) if line.startswith(b"{") else {"event": line.decode()})


@asynccontextmanager
async def model_servers(folder: Path, count: int, *options: str) -> AsyncIterator[tuple[Children, dict[str, str]]]:
    """Simulated servers by name."""
    async with Children(folder) as children:
        started = await asyncio.gather(*(_start_server(children, f"sim-{number}", options) for number in range(count)))
        yield children, dict(started)


def server_options(urls: Mapping[str, str]) -> list[str]:
    """`--server` for each."""
    return [f"--server={url}" for url in urls.values()]


@dataclass
class Load:
    """Clients that ask until they are stopped."""

    url: str
    served: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    refused: int = 0  # connections: nothing was sent
    stopping: bool = False

    @asynccontextmanager
    async def clients(self, count: int) -> AsyncIterator[None]:
        """Run until the end of the block."""
        async with aiohttp.ClientSession(self.url) as session, asyncio.TaskGroup() as tasks:
            for _ in range(count):
                tasks.create_task(self._ask(session))
            yield
            self.stopping = True

    async def beyond(self, count: int) -> None:
        """Wait until this many more are served."""
        target = self.served.total() + count
        async with asyncio.timeout(30):
            while self.served.total() < target:  # noqa: ASYNC110 - counts of several tasks
                await asyncio.sleep(0.01)

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        while not self.stopping:
            chat = [{"role": "user", "content": uuid4().hex}]  # no common prefix
            body = {"model": "sim-model", "messages": chat, "max_tokens": 8, "ignore_eos": True}
            try:
                async with session.post("/v1/chat/completions", json=body) as response:
                    text = await response.text()
            except aiohttp.ClientConnectorError:
                self.refused += 1
                return
            except aiohttp.ClientError as problem:
                self.failed.append(repr(problem))
                continue
            if response.status == 200:
                self.served[response.headers["x-served-by"]] += 1
            else:
                self.failed.append(f"{response.status} {text}")


async def ask(url: str, *, stream: bool = False, max_tokens: int = 4, size: int = 10) -> tuple[int, str]:
    """One request; its status and the name of its server."""
    body = {
        "model": "sim-model",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": stream,
        "user": "x" * size,
    }
    data, headers = io.BytesIO(json.dumps(body).encode()), {"content-type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", data=data, headers=headers, ssl=False) as response,
    ):
        with suppress(aiohttp.ClientPayloadError):
            await response.read()
        return response.status, response.headers.get("x-served-by", "")
