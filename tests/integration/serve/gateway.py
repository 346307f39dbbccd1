"""A whole gateway for one test: Envoy, `endpick serve` and simulated model servers, each its own process."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from endpick_gateway.envoy import EnvoyNotFoundError, find_envoy
from endpick_lab.demo.processes import Children
from endpick_lab.demo.stack import Stack, start_stack
from forked import FORKED

ROOT = Path(__file__).parents[3]
PREFIX_AWARE = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
"""
RANDOM = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}
- type: random-picker
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
"""
FAST_SERVERS = ("--model", "m", "--prefill-ms-per-token", "0.01", "--decode-ms", "1")


@dataclass
class Gateway:
    """What a test talks to."""

    client: aiohttp.ClientSession
    stack: Stack
    children: Children
    folder: Path

    @property
    def endpoints_file(self) -> Path:
        return self.folder / "endpoints.yaml"

    async def chat(self, text: str, *, max_tokens: int = 4, **extra: object) -> aiohttp.ClientResponse:
        """Ask, and wait for the headers."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "ignore_eos": True, **extra}
        return await self.client.post("/v1/chat/completions", json=body)

    async def sample(self, name: str, labels: Mapping[str, str] | None = None) -> float:
        """The sum of the picker's samples of that name that carry these labels."""
        return sum(
            sample.value
            for sample in await samples(self.stack.metrics)
            if sample.name == name and (labels or {}).items() <= sample.labels.items()
        )

    async def health(self) -> str:
        """The text of `/healthz`."""
        async with aiohttp.ClientSession() as client, client.get(self.stack.metrics.replace("/metrics", "/healthz")) as response:
            return await response.text()

    async def served(self) -> Counter[str]:
        """Completed requests of each model server, as it counts them itself."""
        counted: Counter[str] = Counter()
        for name, url in self.stack.servers.items():
            found = [sample for sample in await samples(f"{url}/metrics") if sample.name == "vllm:request_success_total"]
            counted[name] = int(sum(sample.value for sample in found))
        return counted


async def samples(url: str):
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        return [sample for family in text_string_to_metric_families(await response.text()) for sample in family.samples]


@asynccontextmanager
async def running_gateway(
    folder: Path,
    config: str = PREFIX_AWARE,
    *,
    servers: int = 3,
    server_options: tuple[str, ...] = FAST_SERVERS,
    options: tuple[str, ...] = (),
) -> AsyncIterator[Gateway]:
    """Everything up, each process on ports the system chose; skips the test where there is no Envoy."""
    try:
        envoy = find_envoy(os.environ, ROOT)
    except EnvoyNotFoundError as missing:
        pytest.skip(str(missing))
    (folder / "config.yaml").write_text(config)
    picker = (FORKED, "-m", "endpick", "serve", *options)
    async with Children(folder) as children:
        with patch("endpick_lab.demo.stack.sys", SimpleNamespace(executable=FORKED)):  # the model servers as well
            stack = await start_stack(
                children, folder, server_options=server_options, servers=servers, picker=picker, config=folder / "config.yaml", envoy=envoy
            )
        async with aiohttp.ClientSession(stack.gateway, timeout=aiohttp.ClientTimeout(total=30)) as client:
            yield Gateway(client, stack, children, folder)


async def until(condition, what: str, timeout_seconds: float = 20.0) -> None:
    """Wait for an awaitable condition to come true."""
    try:
        async with asyncio.timeout(timeout_seconds):
            while not await condition():  # noqa: ASYNC110 - what is waited for happens in other processes
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not within {timeout_seconds} s: {what}")
