"""`endpick sim-server` as a process."""

from __future__ import annotations

import asyncio
import re
import signal
import socket

import aiohttp
import pytest

from endpick.diagnostics import ExitCode
from forked import FORKED


async def start(*arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(FORKED, "-m", "endpick", "sim-server", *arguments, stdout=pipe, stderr=pipe)


@pytest.mark.asyncio
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_it_says_where_it_listens_serves_and_stops_when_told(how: signal.Signals):
    process = await start("--port", "0", "--name", "sim-3", "--model", "m", "--lora", "red", "--block-size", "32")
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    match = re.fullmatch(r"sim-3 serves m on (http://127\.0\.0\.1:\d+)\n", line)
    assert match, line
    async with aiohttp.ClientSession(match[1]) as client, client.get("/v1/models") as response:
        assert [card["id"] for card in (await response.json())["data"]] == ["m", "red"]
    process.send_signal(how)
    _, errors = await process.communicate()
    assert (process.returncode, errors) == (ExitCode.OK, b"")


@pytest.mark.asyncio
async def test_a_port_in_use_is_said_plainly():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = await start("--port", str(port))
        _, errors = await process.communicate()
    assert process.returncode == ExitCode.FAILED
    assert f"error: cannot listen on 127.0.0.1:{port}: Address already in use" in errors.decode()
    assert "Traceback" not in errors.decode()


@pytest.mark.asyncio
async def test_an_engine_that_could_not_work_is_a_usage_error():
    process = await start("--kv-blocks", "2")
    _, errors = await process.communicate()
    assert process.returncode == ExitCode.USAGE
    assert "raise kv_blocks or lower max_model_len" in errors.decode()
