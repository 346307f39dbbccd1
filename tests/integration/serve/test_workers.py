"""`endpick serve --workers`: several processes behind the same ports."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import grpc
import pytest
import pytest_asyncio
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from endpick.cli.doctor import ask_serving
from endpick.cli.main import main
from forked import FORKED
from integration.plugins.serving import OPTIONS, Picker, metrics_page, serving
from integration.serve.gateway import until

pytestmark = pytest.mark.asyncio

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- type: prefix-cache-scorer
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
"""
ENDPOINTS = "endpoints: [{name: a, address: 10.0.0.1, port: 1}, {name: b, address: 10.0.0.2, port: 1}]"
PROMPT = "The quick brown fox jumps over the lazy dog. " * 40


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "endpoints.yaml").write_text(ENDPOINTS)
    return tmp_path


class Workers:
    """A supervisor with two workers."""

    def __init__(self, picker: Picker, stack: AsyncExitStack) -> None:
        self.picker = picker
        self._stack = stack

    async def gateways(self, count: int) -> list[Picker]:
        """Connections of their own."""
        found = []
        for _ in range(count):
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.picker.port}", options=[("grpc.use_local_subchannel_pool", 1)])
            await self._stack.enter_async_context(channel)
            await channel.channel_ready()
            found.append(Picker(self.picker.process, channel, self.picker.metrics_port, self.picker.events))
        return found

    async def page(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.picker.metrics_port}{path}"
        async with aiohttp.ClientSession() as client, client.get(url) as response:
            return response.status, await response.text()

    async def sample(self, name: str, worker: int | None = None, **labels: str) -> float:
        _, text = await self.page("/metrics" if worker is None else f"/metrics?worker={worker}")
        families = text_string_to_metric_families(text)
        return sum(one.value for family in families for one in family.samples if one.name == name and labels.items() <= one.labels.items())

    async def both(self, name: str, least: float) -> None:
        """Wait until this metric is so large in both workers."""
        for worker in (0, 1):

            async def reached(worker: int = worker) -> bool:
                return await self.sample(name, worker) >= least

            await until(reached, f"{name} of worker {worker} is at least {least}")


def children(process: int, pattern: str = "") -> list[int]:
    command = ["pgrep", "-P", str(process), "-f", pattern]
    return [int(line) for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]


@pytest_asyncio.fixture
async def workers(folder):
    async with AsyncExitStack() as stack:
        picker = await stack.enter_async_context(serving(folder, "--workers=2"))
        started = Workers(picker, stack)
        await started.both("endpick_fleet_peers", 1)
        yield started


async def test_workers_share_a_port_and_what_they_learn(workers, folder):
    gateways = await workers.gateways(4)
    first, _ = await gateways[0].ask(PROMPT)
    await workers.both("llm_d_epp_prefix_indexer_size", 1)

    assert [await gateway.ask(PROMPT) for gateway in gateways] == [(first, 0)] * 4
    opened = [await workers.sample("endpick_transport_events_total", worker, event="connections_opened") for worker in (0, 1)]
    assert opened == [2, 2]
    assert await workers.sample("llm_d_epp_request_total") == 5
    assert await workers.page("/healthz") == (200, "worker 0: ok\nworker 1: ok\n")

    status, text = await workers.page("/plan?worker=1")
    assert (status, json.loads(text)["config"]) == (200, "config.yaml")
    assert (await workers.page("/decisions"))[0] == 200
    assert (await workers.page("/nothing"))[0] == 404
    assert await workers.page("/metrics?worker=2") == (404, "there is no worker '2', only 0 to 1\n")
    health = await asyncio.to_thread(ask_serving, f"http://127.0.0.1:{workers.picker.metrics_port}")
    assert (health.ready, health.remarks) == (True, [])

    (folder / "config.yaml").write_text(CONFIG.replace("prefix-cache-scorer", "queue-scorer"))
    workers.picker.reload()
    told = await workers.picker.logged("configuration replaced", times=2)
    assert {event["worker"] for event in told} == {0, 1}


@pytest.mark.long
@pytest.mark.parametrize("scorer", ["queue-scorer", "predicted-latency"])  # which needs the values, and which would use them
async def test_one_worker_polls_for_all(folder, scorer):
    scrapes = itertools.count()
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(metrics_page(lambda: f"vllm:num_requests_waiting {next(scrapes)}\n"))
        (folder / "endpoints.yaml").write_text(f"endpoints: [{{name: a, address: 127.0.0.1, port: {port}}}]")
        (folder / "config.yaml").write_text(CONFIG.replace("prefix-cache-scorer", scorer))
        picker = await stack.enter_async_context(serving(folder, "--workers=2"))
        workers = Workers(picker, stack)

        async def polls(worker: int) -> tuple[float, float]:
            return tuple([await workers.sample("endpick_polls_total", worker, event=event) for event in ("made", "reported")])

        await workers.both("endpick_fleet_peers", 1)

        async def polls_once_a_second() -> bool:  # not twenty times; on a busy machine values may come late for a while
            began = await polls(1)
            await until(lambda: _reaches(polls(1), began[1] + 40), "worker 1 received what worker 0 polled")
            made, reported = (now - before for now, before in zip(await polls(1), began, strict=True))
            return made <= reported / 8

        await until(polls_once_a_second, "worker 1 leaves the polls to worker 0", 60.0)

        hung = children(picker.process.pid, "endpick serve")[0]
        os.kill(hung, signal.SIGSTOP)
        try:
            made, _ = await polls(1)

            async def polls_alone() -> bool:
                return (await polls(1))[0] >= made + 40

            await until(polls_alone, "worker 1 polls for itself", 10.0)
        finally:
            os.kill(hung, signal.SIGCONT)


async def _reaches(polls, reported):
    return (await polls)[1] >= reported


@pytest.mark.long
async def test_a_crash_costs_only_the_requests_of_its_worker(workers):
    gateways = await workers.gateways(4)
    streams = [await gateway.begin() for gateway in gateways]
    counted = await workers.sample("llm_d_epp_request_total")
    assert counted == 4
    os.kill(children(workers.picker.process.pid, "endpick serve")[1], signal.SIGKILL)
    await workers.picker.logged("ended with code -9; another one starts")
    codes = [await asyncio.wait_for(call.code(), 10) if call.done() else None for call, _ in streams]
    await workers.picker.logged("worker serving", times=3)

    assert codes.count(None) >= 2, "the streams of the other worker go on"
    assert await workers.sample("llm_d_epp_request_total") == counted, "a sum that falls looks like a restart"
    assert [(await gateway.ask())[1] for gateway in gateways] == [0] * 4
    for call, _ in streams:
        call.cancel()


@pytest.mark.long
async def test_a_worker_that_fails_again_is_started_again(folder):
    async with serving(folder, "--workers=2") as picker:
        await picker.logged("worker serving", times=2)
        (folder / "config.yaml").write_text("nonsense: [")
        os.kill(children(picker.process.pid, "endpick serve")[0], signal.SIGKILL)
        await picker.logged("ended with code 3; another one starts")
        (folder / "config.yaml").write_text(CONFIG.replace("prefix-cache-scorer", "queue-scorer"))
        await picker.logged("worker serving", times=3)
        await picker.logged("configuration replaced")  # by the other one, so that both serve the same


@pytest.mark.long
async def test_a_signal_to_the_whole_group_is_one_signal(folder):
    async with serving(folder, "--workers=2", "--drain-timeout=2s") as picker:
        await picker.logged("worker serving", times=2)
        for pid in (picker.process.pid, *children(picker.process.pid)):
            os.kill(pid, signal.SIGTERM)
        await picker.logged("stopped", times=2)
    assert not any("ends at once" in str(event) for event in picker.events)


@pytest.mark.long
async def test_workers_end_with_their_supervisor(folder):
    async with serving(folder, "--workers=2", exit_code=-signal.SIGKILL) as picker:
        await picker.logged("worker serving", times=2)
        pids = children(picker.process.pid)
        assert len(pids) == 2
        picker.process.kill()
        async with asyncio.timeout(20):
            while any(Path(f"/proc/{pid}").exists() for pid in pids):  # noqa: ASYNC110, ASYNC240 - other processes
                await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--workers=0"], "is no number of workers"),
        (["--workers=2", "--transport=grpcio"], "--workers needs --transport h2"),
        (["--workers=2", "--ha-enable-leader-election"], "exclude each other"),
        (["--workers=2", "--state-url=file:///tmp/state"], "local:///FOLDER"),
        (["--state-url=http://localhost"], "does not begin with valkey://"),
        (["--state-url=valkey://user:secret@localhost"], "keep the password out"),
    ],
)
async def test_options_that_do_not_go_together(options, problem):
    result = CliRunner().invoke(main, ["serve", *options])
    assert result.exit_code == 2
    assert problem in result.output


async def test_a_wrong_configuration_is_reported_once(folder):
    (folder / "config.yaml").write_text(CONFIG.replace("prefix-cache-scorer", "prefix-cash-scorer"))
    command = [FORKED, "-m", "endpick", "serve", "config.yaml", "--workers=2", *OPTIONS]
    result = await asyncio.to_thread(subprocess.run, command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 4
    assert result.stderr.count("error[") == 1
