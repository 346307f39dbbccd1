"""The pools of examples/slurm and examples/ray, as plain processes."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.pages import ROOT
from integration.gateway.running import ask, envoy

SLURM = ROOT / "examples" / "slurm"
SIM_SERVER = (sys.executable, "-m", "endpick", "sim-server", "--host", "0.0.0.0")

pytestmark = [pytest.mark.long, pytest.mark.timeout(90), pytest.mark.asyncio]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - files of other processes
            await asyncio.sleep(0.05)


async def test_slurm_jobs_join_and_leave_the_pool(tmp_path: Path):
    pool, ports, port = tmp_path / "pool", (free_port(), free_port()), free_port()
    script = tmp_path / "bin" / "endpick"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m endpick "$@"\n')
    script.chmod(0o755)
    path = f"{script.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "POOL": str(pool), "DRAIN_SECONDS": "2", "ENDPICK_ENVOY": str(envoy())}

    async def job(name: str, *arguments: object) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(SLURM / name, *map(str, arguments), env=environment, start_new_session=True)

    jobs = [await job("gateway.sh", "--host=127.0.0.1", f"--port={port}", "--metrics-port=0")]
    jobs += [await job("model-server.sh", *SIM_SERVER, "--name", name, "--port", each) for name, each in zip("ab", ports, strict=True)]
    try:
        file = pool / "endpoints.yaml"
        await until(lambda: file.exists() and all(str(each) in file.read_text() for each in ports))
        await until(lambda: answers(port))
        url = f"http://127.0.0.1:{port}"
        jobs[1].send_signal(signal.SIGTERM)
        await until(lambda: str(ports[0]) not in file.read_text())
        served = [await ask(url) for _ in range(10)]
        assert await jobs[1].wait() == 0
        served += [await ask(url) for _ in range(10)]
    finally:
        for each in jobs:
            if each.returncode is None:
                each.send_signal(signal.SIGTERM)
        codes = [await each.wait() for each in jobs]
    assert {status for status, _ in served} == {200}
    assert {server for _, server in served[10:]} == {"b"}
    assert codes == [0, 0, 0]
    assert file.exists()
    assert not list(pool.glob("*.entry"))


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


async def test_ray_pool_replaces_a_server_that_ends(tmp_path: Path):
    spec = importlib.util.spec_from_file_location("ray_pool", ROOT / "examples" / "ray" / "pool.py")
    assert spec is not None
    assert spec.loader is not None
    pool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pool)
    file, servers = tmp_path / "endpoints.json", []

    def start() -> object:
        return pool.ModelServer([*SIM_SERVER, "--port", "{port}"])

    def look() -> str:
        pool.write(file, pool.look(servers, start, pool.ModelServer.endpoint))
        return file.read_text()

    servers += [start(), start()]
    gone = servers[0]
    try:
        await until(lambda: look().count('"port"') == 2)
        before = look()
        gone.stop()
        await until(lambda: look().count('"port"') == 2 and look() != before)
        assert gone not in servers
    finally:
        for server in servers:
            server.stop()
