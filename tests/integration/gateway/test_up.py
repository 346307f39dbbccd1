"""`endpick up`: servers and Envoy are killed, the pool changes, it stops; clients notice as little as possible."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest
import websockets

from docs.test_envoy_examples import HOST_NAME, write_certificates
from endpick.diagnostics import ExitCode
from integration.gateway.running import Load, ask, envoy, model_servers, server_options, up

pytestmark = [pytest.mark.long, pytest.mark.timeout(90), pytest.mark.asyncio]

FAST = ("--prefill-ms-per-token", "0.01", "--decode-ms", "2")

AT_RANDOM = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: random-picker, parameters: {maxNumOfEndpoints: 2}}
"""


def is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


async def test_simulated_servers_answer_and_requests_are_logged(tmp_path: Path):
    async with up(tmp_path, "--simulate=2", "--emit-endpoint-scores") as run:
        status, server = await ask(await run.url())
        assert await run.health() == (200, "ok\n")
    assert (status, server in {"sim-0", "sim-1"}) == (200, True)
    (line,) = run.access
    assert (line["status"], line["method"], line["path"], line["attempts"]) == (200, "POST", "/v1/chat/completions", 1)
    picked = str(line["picked"]).split(",")
    assert (picked[0], len(picked)) == (line["endpoint"], 2)
    assert set(line["scores"]) == set(picked)
    assert is_empty(tmp_path)


async def test_killed_server_costs_only_what_was_sent_to_it(tmp_path: Path):
    config = tmp_path / "config.yaml"
    config.write_text(AT_RANDOM)
    async with model_servers(tmp_path, 4, *FAST) as (children, urls), up(tmp_path, str(config), *server_options(urls)) as run:
        load = Load(await run.url())
        async with load.clients(8):
            await load.beyond(200)
            os.kill(children.named("sim-1").process.pid, signal.SIGKILL)
            await load.beyond(400)
    retried = [line for line in run.access if line["attempts"] > 1]
    lost = [line for line in run.access if line["status"] != 200]
    dead = urls["sim-1"].removeprefix("http://")
    assert len(load.failed) == len(lost)
    assert all(sent_to(line, dead) for line in lost), lost
    assert retried
    assert all(str(line["picked"]).startswith(f"{dead},") for line in retried)


def sent_to(line: Mapping[str, object], server: str) -> bool:
    """True if Envoy had a connection to the server, on which the request went out."""
    return line["endpoint"] == server and "UC" in str(line["flags"])


async def test_large_request_falls_back_from_a_dead_server(tmp_path: Path):
    async with model_servers(tmp_path, 1) as (_, urls):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            dead = f"http://127.0.0.1:{closed.getsockname()[1]}"
        async with up(tmp_path, *server_options({**urls, "dead": dead})) as run:
            answers = [await ask(await run.url(), size=3 << 20) for _ in range(4)]
    assert answers == [(200, "sim-0")] * 4


async def test_envoy_is_started_again_after_a_crash(tmp_path: Path):
    binary = tmp_path / "envoy"
    binary.symlink_to(envoy())
    async with model_servers(tmp_path, 1) as (_, urls), up(tmp_path, *server_options(urls), binary=binary) as run:
        await run.url()
        binary.unlink()
        os.kill(run.envoy_pid(), signal.SIGKILL)
        await run.logged("Envoy ended unexpectedly", times=2)
        assert await run.health() == (503, "Envoy does not run: it ended with status -9\n")
        binary.symlink_to(envoy())
        again = await run.logged("Envoy serves again")
        assert (await run.health())[0] == 200
        assert await ask(str(again["url"])) == (200, "sim-0")
    delays = [event["delay_seconds"] for event in run.events if "Envoy ended unexpectedly" in str(event["event"])]
    assert delays == [0.25 * 2**times for times in range(len(delays))]


async def test_stop_answers_every_open_request(tmp_path: Path):
    async with model_servers(tmp_path, 2, *FAST) as (_, urls), up(tmp_path, *server_options(urls)) as run:
        url = await run.url()
        load = Load(url)
        async with load.clients(4):
            await load.beyond(20)
            slow = [asyncio.create_task(ask(url, stream=True, max_tokens=500)) for _ in range(2)]
            await load.beyond(20)
            assert await run.stop() == 0
            load.stopping = True
        answers = [status for status, _ in await asyncio.gather(*slow)]
    assert answers == [200, 200]
    assert [line["status"] for line in run.access] == [200] * (load.served.total() + len(slow))
    assert len(load.failed) <= 4, "a client may find the port closing, and its request unread"


async def test_endpoints_file_is_followed(tmp_path: Path):
    file = tmp_path / "pool.yaml"
    async with model_servers(tmp_path, 2) as (_, urls):
        ports = {name: url.rpartition(":")[2] for name, url in urls.items()}
        file.write_text(f'endpoints: [{{name: one, address: 127.0.0.1, port: "{ports["sim-0"]}"}}]\n')
        async with up(tmp_path, f"--endpoints={file}") as run:
            url = await run.url()
            assert await ask(url) == (200, "sim-0")
            file.write_text(f'endpoints: [{{name: two, address: 127.0.0.1, port: "{ports["sim-1"]}"}}]\n')
            await run.logged("the pool has changed", times=2)
            assert await ask(url) == (200, "sim-1")


async def test_changed_envoy_configuration_with_tls_and_websockets(tmp_path: Path, run_cli):
    write_certificates(tmp_path)
    tls = (f"--tls-certificate={tmp_path / 'tls.crt'}", f"--tls-key={tmp_path / 'tls.key'}")
    printed = run_cli("up", "--print-envoy", "--host=127.0.0.1", "--port=0", *tls).stdout
    changed = tmp_path / "envoy.yaml"
    changed.write_text(printed.replace("stat_prefix: gateway", "stat_prefix: gateway\n          server_name: mine"))
    async with websockets.serve(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with up(tmp_path, f"--server=http://127.0.0.1:{port}", f"--envoy-config={changed}") as run:
            url = (await run.url()).replace("http:", "wss:")
            trusting = ssl.create_default_context(cafile=tmp_path / "endpick-ca.crt")
            async with websockets.connect(f"{url}/v1/realtime", ssl=trusting, server_hostname=HOST_NAME) as client:
                await client.send("hello")
                assert await client.recv() == "hello"
                assert client.response.headers["server"] == "mine"


async def test_refused_envoy_configuration_is_explained(tmp_path: Path, run_cli):
    changed = tmp_path / "envoy.yaml"
    changed.write_text(run_cli("up", "--print-envoy").stdout.replace("stat_prefix", "stat_perfix"))
    environment = {"ENDPICK_ENVOY": str(envoy())}
    result = run_cli("up", "--server=http://127.0.0.1:1", f"--envoy-config={changed}", "--metrics-port=0", environment=environment)
    assert result.exit_code == ExitCode.FAILED
    assert re.search(r"error\[E0809\]: Envoy ended with status 1 before it was ready\n(.*\n)*? +(= note: )?.*stat_perfix", result.stderr)


async def echo(connection: websockets.ServerConnection) -> None:
    async for frame in connection:
        await connection.send(frame)


async def test_unreachable_servers_do_not_keep_it_from_starting(tmp_path: Path):
    async with up(tmp_path, "--server=http://127.0.0.1:1") as run:
        url = await run.url()
        answers = [await ask(url) for _ in range(6)]
        health = await run.health()
    assert answers == [(503, "")] * 6
    assert health[1].startswith("ok\nendpoint default/127.0.0.1:1 is ejected")
