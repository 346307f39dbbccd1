"""Two pickers with a gateway each before the same model servers, and a real Valkey server that is in trouble."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import aiohttp
import pytest

from endpick_gateway.envoy import EnvoyNotFoundError, find_envoy
from endpick_lab.demo.processes import Children
from endpick_lab.demo.stack import ENDPOINTS_FILE, _start_picker, start_envoy, start_stack
from endpick_lab.openai import answer_text
from forked import FORKED
from integration.fleet.valkeys import Partition, Valkey, partition, valkey
from integration.plugins.serving import serving
from integration.serve.gateway import FAST_SERVERS, PREFIX_AWARE, ROOT, until

__all__ = ("valkey",)
pytestmark = [pytest.mark.asyncio, pytest.mark.long]

SERVERS = 4


@dataclass
class Fleet:
    """Two gateways, and the metrics pages of their pickers."""

    clients: list[aiohttp.ClientSession]
    metrics: list[str]

    async def ask(self, gateway: int, prompt: str) -> str:
        """The server that answers, or the failure."""
        body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": 2, "ignore_eos": True}
        async with self.clients[gateway].post("/v1/chat/completions", json=body) as response:
            text = await response.text()
            return response.headers["x-served-by"] if response.status == 200 else f"failed: {response.status} {text}"

    async def sample(self, picker: int, name: str) -> float:
        async with aiohttp.ClientSession() as client, client.get(self.metrics[picker]) as response:
            found = re.search(rf"^{name} ([0-9.e+]+)$", await response.text(), re.MULTILINE)
            return float(found[1]) if found else 0.0

    async def connected(self, timeout_seconds: float = 20.0) -> None:
        """Wait until both hear each other."""
        for picker in (0, 1):

            async def hears(picker: int = picker) -> bool:
                return await self.sample(picker, "endpick_fleet_peers") == 1.0

            await until(hears, f"picker {picker} hears the other", timeout_seconds)

    async def agreement(self, prompts: list[str]) -> float:
        """Share of the prompts that the second gateway sends to where the first one did."""
        first = [await self.ask(0, prompt) for prompt in prompts]
        blocks = await self.sample(0, "llm_d_epp_prefix_indexer_size")

        async def told() -> bool:
            return await self.sample(1, "llm_d_epp_prefix_indexer_size") >= blocks

        if await self.sample(1, "endpick_fleet_peers"):
            await until(told, "the second picker knows what the first has sent")
        second = [await self.ask(1, prompt) for prompt in prompts]
        return sum(one == other for one, other in zip(first, second, strict=True)) / len(prompts)


def prompts(count: int, seed: int = 1) -> list[str]:
    """Long prompts that share nothing."""
    random = Random(seed)
    return [answer_text(random.getrandbits(64), 400) for _ in range(count)]


@asynccontextmanager
async def fleet(folder: Path, *urls: str):
    """Pickers that share through these stores, by their own URL each."""
    try:
        envoy = find_envoy(os.environ, ROOT)
    except EnvoyNotFoundError as missing:
        pytest.skip(str(missing))
    async with AsyncExitStack() as stack:
        gateways, metrics = [], []
        for number in range(2):
            own = folder / f"picker-{number}"
            own.mkdir()
            picker = (FORKED, "-m", "endpick", "serve", *(["--state-url", urls[number]] if urls else []))
            (own / "config.yaml").write_text(PREFIX_AWARE)
            children = await stack.enter_async_context(Children(own))
            if number:
                (own / ENDPOINTS_FILE).write_text((folder / "picker-0" / ENDPOINTS_FILE).read_text())
                port, metrics_port = await _start_picker(children, picker, own / "config.yaml")
                gateways.append(await start_envoy(children, envoy, own, port))
                metrics.append(f"http://127.0.0.1:{metrics_port}/metrics")
            else:
                started = await start_stack(
                    children, own, server_options=FAST_SERVERS, servers=SERVERS, picker=picker, config=own / "config.yaml", envoy=envoy
                )
                gateways.append(started.gateway)
                metrics.append(started.metrics)
        clients = [await stack.enter_async_context(aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=30))) for url in gateways]
        yield Fleet(clients, metrics)


async def test_two_pickers_send_a_prompt_to_where_it_is_cached(tmp_path, valkey):
    async with fleet(tmp_path, valkey.url, valkey.url) as shared:
        await shared.connected()
        assert await shared.agreement(prompts(40)) == 1.0


async def test_pickers_that_share_nothing_guess(tmp_path):
    async with fleet(tmp_path) as unshared:
        assert await unshared.agreement(prompts(40)) < 0.7


@pytest.mark.parametrize("trouble", ["killed", "paused", "flushed", "partitioned"])
async def test_trouble_of_the_store_costs_no_request(tmp_path, valkey, trouble):
    async with partition(valkey) as line, fleet(tmp_path, valkey.url, line.url) as shared:
        await shared.connected()
        answers: Counter[str] = Counter()
        ending = asyncio.Event()

        async def client(number: int) -> None:
            for turn in range(100_000):
                if ending.is_set():
                    return
                answers[await shared.ask(number % 2, f"client {number} turn {turn} {'x' * 500}")] += 1

        async def cut_off() -> bool:
            first, second = [await shared.sample(picker, "endpick_fleet_connected") for picker in (0, 1)]
            alone = await shared.sample(0, "endpick_fleet_peers") == 0
            return not second and alone and bool(first) == (trouble == "partitioned")

        async with asyncio.TaskGroup() as load:
            for number in range(4):
                load.create_task(client(number))
            await _more(answers)
            async with _trouble(valkey, line, trouble):
                if trouble != "flushed":
                    await until(cut_off, "the pickers are alone")
                    await _more(answers)
            await shared.connected(5.0)
            ending.set()
        assert {answer for answer in answers if answer.startswith("failed")} == set()
        assert await shared.agreement(prompts(20, seed=2)) == 1.0


@asynccontextmanager
async def _trouble(valkey: Valkey, line: Partition, kind: str):
    if kind == "killed":
        await asyncio.to_thread(valkey.stop)
        yield
        await asyncio.to_thread(valkey.start)
    elif kind == "paused":
        with valkey.paused():
            yield
    elif kind == "partitioned":
        line.passes.clear()
        yield
        line.passes.set()
    else:
        valkey.command("FLUSHALL")
        yield


async def _more(answers: Counter[str]) -> None:
    target = answers.total() + 50

    async def reached() -> bool:
        return answers.total() >= target

    await until(reached, "50 more requests")


@pytest.mark.parametrize("kept_in", ["a server", "a file"])
async def test_a_picker_that_starts_again_is_warm(tmp_path, valkey, kept_in):
    (tmp_path / "config.yaml").write_text(PREFIX_AWARE)
    _write_endpoints(tmp_path)
    url = valkey.url if kept_in == "a server" else f"file://{tmp_path}/kept"

    async def destinations() -> list[tuple[str, int]]:
        async with serving(tmp_path, f"--state-url={url}") as picker:
            return [await picker.ask(prompt) for prompt in prompts(100)]

    assert await destinations() == await destinations()


async def test_a_reload_with_other_parameters_keeps_what_was_learnt(tmp_path):
    config = PREFIX_AWARE.replace(
        "- type: prefix-cache-scorer\n",
        "- type: prefix-cache-scorer\n- {type: approx-prefix-cache-producer, parameters: {lruCapacityPerServer: 1000}}\n",
        1,
    )
    (tmp_path / "config.yaml").write_text(config)
    _write_endpoints(tmp_path)
    async with serving(tmp_path) as picker:
        before = [await picker.ask(prompt) for prompt in prompts(30)]
        (tmp_path / "config.yaml").write_text(config.replace("1000", "2000"))
        picker.reload()
        (applied,) = await picker.logged("configuration replaced")
        assert applied["built"] == 1
        assert [await picker.ask(prompt) for prompt in prompts(30)] == before


def _write_endpoints(folder: Path) -> None:
    endpoints = "".join(f"- {{name: e{number}, address: 10.0.0.{number}, port: 1}}\n" for number in range(1, 9))
    (folder / ENDPOINTS_FILE).write_text(f"endpoints:\n{endpoints}")
