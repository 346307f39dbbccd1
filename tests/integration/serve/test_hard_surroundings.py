"""Serving goes on with a blocked log, a full disk, a jumping wall clock and a slow, lossy network."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest

from integration.plugins.serving import OPTIONS, SOURCES, Picker, serving

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}
- {type: random-picker}
dataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}}
"""
ENDPOINTS = 'endpoints:\n- {{name: {name}, address: 127.0.0.1, port: "{port}"}}\n'
JUMPING = """\
import time
actual, calls = time.time, iter(range(10**9))
time.time = lambda: actual() + (86_400 * 365, -86_400 * 365, 0)[next(calls) % 3]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "endpoints.yaml").write_text(ENDPOINTS.format(name="a", port=1))
    return tmp_path


async def _ports(reader: int) -> dict[str, object]:
    with os.fdopen(os.dup(reader), "rb", buffering=0) as log:
        while line := await asyncio.to_thread(log.readline):
            if b'"event":"serving"' in line:
                return json.loads(line)
    raise AssertionError("it did not start")


def _fill(writer: int) -> None:
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"." * 4096)


@pytest.mark.long
@pytest.mark.asyncio
async def test_a_log_without_a_reader_delays_nothing(folder):
    reader, writer = os.pipe()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
    command = (sys.executable, "-m", "endpick", "serve", "config.yaml", *OPTIONS)
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment, stderr=writer)
    try:
        ports = await asyncio.wait_for(_ports(reader), 40)
        _fill(writer)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports['ext_proc_port']}") as channel:
            picker = Picker(process, channel, int(str(ports["metrics_port"])))
            for _ in range(3):
                picker.reload()
                assert await asyncio.wait_for(picker.ask(), 20) == ("127.0.0.1:1", 0)
            assert (await picker.health())[0] == 200
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 40) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(reader)
        os.close(writer)


def _unread_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def _full_device() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [taken.getsockname()[1] for taken in sockets]


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.parametrize("opened", [_unread_pipe, _full_device])
async def test_requests_are_answered_when_outputs_are_full(folder, opened):
    output, ports = opened(), _free_ports(3)
    flags = [f"--{name}={port}" for name, port in zip(("grpc-port", "grpc-health-port", "metrics-port"), ports, strict=True)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
    command = (sys.executable, "-m", "endpick", "serve", "config.yaml", *OPTIONS, *flags)
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment, stdout=output, stderr=output)
    os.close(output)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports[0]}") as channel:
            picker = Picker(process, channel, ports[2])
            await asyncio.wait_for(channel.channel_ready(), 40)
            assert {await asyncio.wait_for(picker.ask(), 20) for _ in range(20)} == {("127.0.0.1:1", 0)}
            picker.reload()
            async with asyncio.timeout(20):
                while not sum((await picker.samples("endpick_config_reloads_total")).values()):  # noqa: ASYNC110 - counted by another process
                    await asyncio.sleep(0.02)
            assert await asyncio.wait_for(picker.ask(), 20) == ("127.0.0.1:1", 0)
            assert (await picker.health())[0] == 200
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 40) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.long
@pytest.mark.asyncio
async def test_a_jumping_wall_clock_changes_nothing(folder, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(JUMPING)
    async with serving(folder, "--circuit-cool-down=1s", path=[site]) as picker:
        assert {await picker.ask() for _ in range(20)} == {("127.0.0.1:1", 0)}
        await asyncio.to_thread(_replace, folder / "endpoints.yaml", ENDPOINTS.format(name="b", port=2))
        async with asyncio.timeout(20):
            while await picker.ask() != ("127.0.0.1:2", 0):  # noqa: ASYNC110 - read by another process
                await asyncio.sleep(0.05)
        picker.reload()
        await picker.logged("configuration")
        assert (await picker.health())[0] == 200
        assert sum((await picker.samples("endpick_loop_stalls_total")).values()) == 0
    years = {str(event["ts"])[:4] for event in picker.events}
    assert len(years) > 1, "the clock did jump"


def _replace(path: Path, content: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(content)
    fresh.replace(path)


@pytest.mark.long
@pytest.mark.asyncio
async def test_requests_are_answered_over_a_lossy_network(folder):
    own = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    try:
        probe = await asyncio.to_thread(subprocess.run, [*own, "tc", "qdisc", "show"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare: util-linux has it")
    if probe.returncode:
        pytest.skip(f"no network namespace or no tc: {probe.stderr.decode().strip()}")
    tests = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *map(str, SOURCES)])}
    command = [*own, sys.executable, "-m", "integration.serve.slow_network", str(folder), "200"]
    done = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    if not told["how"]:
        pytest.skip("the kernel has neither netem nor tbf")
    assert (told["served"], told["health"], told["stalls"]) == (200, 200, 0)
    assert told["lost_packets"] > 0


@pytest.mark.long
def test_a_full_disk_costs_only_log_lines_and_changes(tmp_path):
    """Of all that the picker writes and that is written for it: log, temporary files, endpoints, configuration."""
    own = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        probe = subprocess.run([*own, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare: util-linux has it")
    if probe.returncode:
        pytest.skip(f"no mount namespace: {probe.stderr.decode().strip()}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *map(str, SOURCES)])}
    command = [*own, sys.executable, "-m", "integration.serve.full_disk", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    first, second = [["127.0.0.1:1", 0]], [["127.0.0.1:2", 0]]
    assert not told["endpoints_written"], "the disk was full"
    assert not told["config_written"]
    assert (told["while_full"], told["after_halves"], told["after"]) == (first, first, second)
    assert (told["health_while_full"], told["health"], told["ended"]) == (200, 200, 0)
