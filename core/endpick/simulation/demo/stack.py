"""Starts model servers, endpick and Envoy, as child processes that never outlive their parent."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from endpick.simulation.demo.envoy import start_envoy
from endpick.simulation.demo.processes import Children

READY_SECONDS = 30.0
ENDPOINTS_FILE = "endpoints.yaml"
_PICKER_OPTIONS = (
    *("--host", "127.0.0.1", "--secure-serving=false", "--log-format", "json"),
    *("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"),
)


@dataclass(frozen=True, slots=True)
class Stack:
    """The URLs of the processes."""

    gateway: str
    """URL of Envoy."""
    servers: Mapping[str, str]
    """URL of each model server by its name, which is also the name of the endpoint."""
    metrics: str
    """URL of the picker's metrics."""


async def start_stack(
    children: Children, folder: Path, *, server_options: Sequence[str], servers: int, picker: Sequence[str], config: Path, envoy: Path
) -> Stack:
    """Start all processes as `children` and wait until they are ready; `config` may name `endpoints.yaml` in `folder`.

    Raises:
        ChildFailed: a process did not get ready.
        OSError: a program cannot be started.
    """
    try:
        async with asyncio.TaskGroup() as starting:
            tasks = [starting.create_task(_start_server(children, f"sim-{n}", server_options)) for n in range(servers)]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    urls = dict(task.result() for task in tasks)
    (folder / ENDPOINTS_FILE).write_text(endpoints_file(urls))
    ext_proc_port, metrics_port = await _start_picker(children, picker, config)
    gateway = await start_envoy(children, envoy, folder, ext_proc_port)
    return Stack(gateway, urls, f"http://127.0.0.1:{metrics_port}/metrics")


def endpoints_file(urls: Mapping[str, str]) -> str:
    """The model servers in the format of `file-discovery`, where the port is a string."""
    lines = []
    for name, url in urls.items():
        address, _, port = url.removeprefix("http://").rpartition(":")
        lines.append(f'- {{name: {name}, address: "{address}", port: "{port}"}}\n')
    return "endpoints:\n" + "".join(lines)


async def _start_server(children: Children, name: str, options: Sequence[str]) -> tuple[str, str]:
    child = await children.start(name, (sys.executable, "-m", "endpick", "sim-server", "--port", "0", "--name", name, *options))

    async def printed_url() -> str | None:
        match = re.search(r" on (http://\S+)\n", child.output())
        return match[1] if match else None

    return name, await child.wait_until_ready(printed_url, READY_SECONDS)


async def _start_picker(children: Children, command: Sequence[str], config: Path) -> tuple[int, int]:
    """Start endpick; returns the ports of its ext_proc service and of its metrics, which it logs once it serves."""
    child = await children.start("endpick", (*command, config, *_PICKER_OPTIONS))

    async def logged_ports() -> tuple[int, int] | None:
        complete_lines = child.output().rpartition("\n")[0].splitlines()
        events = (orjson.loads(line) for line in complete_lines if line.startswith("{"))
        return next(((event["ext_proc_port"], event["metrics_port"]) for event in events if event.get("event") == "serving"), None)

    return await child.wait_until_ready(logged_ports, READY_SECONDS)
