"""Starts the child processes of the demo: model servers, endpick and Envoy."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson

from endpick_gateway.envoy import OPTIONS, listener_url
from endpick_gateway.envoy_config import EnvoySettings, bootstrap
from endpick_lab.demo.processes import Children

_READY_SECONDS = 30.0
ENDPOINTS_FILE = "endpoints.yaml"
EDS_FILE = "endpoints.json"  # written by the picker, read by Envoy
_PICKER_OPTIONS = (
    *("--host", "127.0.0.1", "--secure-serving=false", "--log-format", "json"),
    *("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"),
)


@dataclass(frozen=True, slots=True)
class Stack:
    """The URLs of the processes."""

    gateway: str
    servers: Mapping[str, str]  # URLs by endpoint name
    metrics: str


async def start_stack(
    children: Children, folder: Path, *, server_options: Sequence[str], servers: int, picker: Sequence[str], config: Path, envoy: Path
) -> Stack:
    """Start all processes; `config` may refer to `endpoints.yaml` in `folder`. Raises ChildFailed, OSError."""
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
    """Format the servers for `file-discovery`."""
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

    return name, await child.wait_until_ready(printed_url, _READY_SECONDS)


async def _start_picker(children: Children, command: Sequence[str], config: Path) -> tuple[int, int]:
    child = await children.start("endpick", (*command, config, *_PICKER_OPTIONS, "--envoy-endpoints", EDS_FILE))

    async def logged_ports() -> tuple[int, int] | None:
        complete_lines = child.output().rpartition("\n")[0].splitlines()
        events = (orjson.loads(line) for line in complete_lines if line.startswith("{"))
        return next(((event["ext_proc_port"], event["metrics_port"]) for event in events if event.get("event") == "serving"), None)

    return await child.wait_until_ready(logged_ports, _READY_SECONDS)


_ENVOY_READY_SECONDS = 20.0


async def start_envoy(children: Children, binary: Path, folder: Path, ext_proc_port: int) -> str:
    """Start Envoy; returns its base URL once ready. Raises ChildFailed."""
    config, admin_address = folder / "envoy.json", folder / "envoy-admin-address"
    config.write_bytes(orjson.dumps(bootstrap(EnvoySettings(ext_proc_port, folder / EDS_FILE)), option=orjson.OPT_INDENT_2))
    command = (binary, "--config-path", config, "--admin-address-path", admin_address, "--concurrency", "1", *OPTIONS)
    child = await children.start("envoy", command)
    async with aiohttp.ClientSession() as client:

        async def url() -> str | None:
            if not admin_address.exists():
                return None
            admin = f"http://{admin_address.read_text()}"
            try:
                async with client.get(f"{admin}/ready") as ready, client.get(f"{admin}/listeners?format=json") as page:
                    return listener_url(await page.read()) if ready.status == 200 else None
            except aiohttp.ClientError:
                return None

        return await child.wait_until_ready(url, _ENVOY_READY_SECONDS)
