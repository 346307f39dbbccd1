"""One trial of the demo: fresh model servers, endpick with one configuration, Envoy, and a load."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import aiohttp

from endpick.demo.envoy import start_envoy
from endpick.demo.load import Outcome, run_load
from endpick.demo.processes import Child, Children
from endpick.demo.stats import read_stats
from endpick.demo.table import LiveTable
from endpick.demo.workload import Chat

MODEL = "sim-model"
READY_SECONDS = 30.0
_REFRESH_SECONDS = 0.5
_SERVER_OPTIONS = (
    ("--model", MODEL),
    ("--max-num-seqs", "16"),
    ("--kv-blocks", "1024"),
    ("--block-size", "16"),
    ("--max-model-len", "8192"),
    ("--prefill-ms-per-token", "0.15"),
    ("--decode-ms", "8"),
)
"""A cache that holds about seven of the workload's conversations: room for a share of the tenants, not for all."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is tried, and with what."""

    name: str
    config: str
    """Name of a configuration in this package."""
    servers: int
    envoy: Path
    workload: Sequence[Chat]
    limit_seconds: float
    """When the load ends, answered or not."""
    picker: tuple[str, ...]
    """The command that serves a configuration; the configuration and options for its ports are added."""


async def run_trial(trial: Trial, folder: Path, table: LiveTable) -> list[Outcome]:
    """Start everything in `folder`, which must be empty, run the load, stop everything; nothing is left running, whatever happens.

    Raises:
        ChildFailed: a process did not start, or ended during the load.
        OSError: a process cannot be started.
    """
    async with Children(folder) as children:
        urls, gateway = await _start_all(trial, folder, children)
        load = asyncio.create_task(_load_with_table(trial, gateway, urls, table))
        watch = asyncio.create_task(children.watch())
        try:
            await asyncio.wait((load, watch), return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
            return await load
        finally:
            for task in (load, watch):
                task.cancel()
            await asyncio.gather(load, watch, return_exceptions=True)


async def _start_all(trial: Trial, folder: Path, children: Children) -> tuple[dict[str, str], str]:
    """URLs of the model servers by name, and of the gateway, all of them ready."""
    grpc_port, health_port, metrics_port = free_ports(3)
    try:
        async with asyncio.TaskGroup() as starting:
            envoy = starting.create_task(start_envoy(children, trial.envoy, folder, grpc_port))
            servers = [starting.create_task(_start_server(children, f"sim-{n}")) for n in range(trial.servers)]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    urls = dict(server.result() for server in servers)
    (folder / "endpoints.yaml").write_text(endpoints_file(urls))
    config = folder / trial.config
    config.write_text((resources.files("endpick.demo") / trial.config).read_text())
    ports = ("--grpc-port", grpc_port, "--grpc-health-port", health_port, "--metrics-port", metrics_port)
    local = ("--host", "127.0.0.1", "--secure-serving", "false")
    picker = await children.start("endpick", (*trial.picker, config, *local, *map(str, ports)))
    await _wait_until_healthy(picker, f"http://127.0.0.1:{metrics_port}/healthz")
    return urls, envoy.result()[1]


def free_ports(count: int) -> list[int]:
    """TCP ports of 127.0.0.1 that nobody listens on at the moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()


def endpoints_file(urls: dict[str, str]) -> str:
    """The model servers in the format of `file-discovery`, where the port is a string."""
    lines = []
    for name, url in urls.items():
        address, _, port = url.removeprefix("http://").rpartition(":")
        lines.append(f'- {{name: {name}, address: "{address}", port: "{port}"}}\n')
    return "endpoints:\n" + "".join(lines)


async def _start_server(children: Children, name: str) -> tuple[str, str]:
    options = (option for pair in _SERVER_OPTIONS for option in pair)
    child = await children.start(name, (sys.executable, "-m", "endpick", "sim-server", "--port", "0", "--name", name, *options))

    async def printed_url() -> str | None:
        match = re.search(r" on (http://\S+)\n", child.output())
        return match[1] if match else None

    return name, await child.wait_until_ready(printed_url, READY_SECONDS)


async def _wait_until_healthy(picker: Child, url: str) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as client:

        async def healthy() -> bool | None:
            try:
                async with client.get(url) as response:
                    return response.status == 200 or None
            except (aiohttp.ClientError, TimeoutError):
                return None

        await picker.wait_until_ready(healthy, READY_SECONDS)


async def _load_with_table(trial: Trial, gateway: str, urls: dict[str, str], table: LiveTable) -> list[Outcome]:
    async with _refreshing(trial.name, urls, table):
        return await run_load(gateway, trial.workload, MODEL, trial.limit_seconds)


@asynccontextmanager
async def _refreshing(title: str, urls: dict[str, str], table: LiveTable) -> AsyncIterator[None]:
    task = asyncio.create_task(_refresh(title, urls, table))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _refresh(title: str, urls: dict[str, str], table: LiveTable) -> None:
    clock = asyncio.get_running_loop().time
    start = clock()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as client:
        while True:
            stats = await asyncio.gather(*(read_stats(client, url) for url in urls.values()))
            table.show(title, clock() - start, dict(zip(urls, stats, strict=True)))
            await asyncio.sleep(_REFRESH_SECONDS)
