"""A gateway whose simulated model servers have roles: each server and each endpoint's label says which."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from ruamel.yaml import YAML

from endpick_gateway.envoy import EnvoyNotFoundError, find_envoy
from endpick_lab.demo.processes import Children
from endpick_lab.demo.stack import Stack, _start_picker, _start_server, start_envoy
from forked import FORKED
from integration.serve.gateway import FAST_SERVERS, ROOT, Gateway

Document = Mapping[str, object]
DocumentFor = Callable[[Mapping[str, str]], Document]
ROLE_LABEL = "llm-d.ai/role"
DISCOVERY = {"type": "file-discovery", "parameters": {"path": "endpoints.yaml"}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}


def with_discovery(document: dict[str, object]) -> dict[str, object]:
    """A configuration that relies on Kubernetes, with endpoints from a file instead."""
    plugins, layer = document["plugins"], document.get("dataLayer") or {}
    assert isinstance(plugins, list)
    assert isinstance(layer, dict)
    return {
        **document,
        "plugins": [*plugins, DISCOVERY],
        "dataLayer": {**layer, "discovery": {"endpoints": {"pluginRef": "file-discovery"}}},
    }


@dataclass(frozen=True)
class Member:
    """A running model server of a pool; an empty role is an endpoint without label."""

    name: str
    url: str
    role: str


async def start_member(children: Children, name: str, role: str) -> Member:
    """A simulated model server that does what one of this role does."""
    _, url = await _start_server(children, name, (*FAST_SERVERS, *(("--role", role) if role else ())))
    return Member(name, url, role)


@asynccontextmanager
async def disaggregated_gateway(folder: Path, config: Document | DocumentFor, roles: Sequence[str]) -> AsyncIterator[Gateway]:
    """Everything up, with a server `sim-0`, `sim-1`, … for each role; an empty role is a server without label. Skips without an Envoy.

    `config` may be a function of the servers' URLs by name.
    """
    async with Children(folder) as servers:
        members = await asyncio.gather(*(start_member(servers, f"sim-{number}", role) for number, role in enumerate(roles)))
        async with gateway_to(folder, config, members) as gateway:
            yield gateway


@asynccontextmanager
async def gateway_to(folder: Path, config: Document | DocumentFor, members: Sequence[Member]) -> AsyncIterator[Gateway]:
    """Envoy and `endpick serve` before servers that run already; they are the pool. Skips without an Envoy."""
    try:
        envoy = find_envoy(os.environ, ROOT)
    except EnvoyNotFoundError as missing:
        pytest.skip(str(missing))
    async with Children(folder) as children:
        urls = {member.name: member.url for member in members}
        (folder / "endpoints.yaml").write_text("endpoints:\n" + "".join(map(_endpoint, members)))
        with (folder / "config.yaml").open("w") as file:
            YAML().dump(config(urls) if callable(config) else config, file)
        port, metrics = await _start_picker(children, (FORKED, "-m", "endpick", "serve"), folder / "config.yaml")
        stack = Stack(await start_envoy(children, envoy, folder, port), urls, f"http://127.0.0.1:{metrics}/metrics")
        async with aiohttp.ClientSession(stack.gateway, timeout=aiohttp.ClientTimeout(total=30)) as client:
            yield Gateway(client, stack, children, folder)


def _endpoint(member: Member) -> str:
    address, _, port = member.url.removeprefix("http://").rpartition(":")
    labels = f", labels: {{{ROLE_LABEL}: {member.role}}}" if member.role else ""
    return f'- {{name: {member.name}, address: "{address}", port: "{port}"{labels}}}\n'


async def served_by(gateway: Gateway, content: object, headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ask, and say who decoded, prefilled and encoded."""
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 2, "ignore_eos": True}
    async with gateway.client.post("/v1/chat/completions", json=body, headers=headers) as response:
        text = await response.text()
        assert response.status == 200, text
        named = {"decode": "x-served-by", "prefill": "x-prefilled-by", "encode": "x-encoded-by"}
        return {stage: response.headers[name] for stage, name in named.items() if name in response.headers}


async def decisions(gateway: Gateway, metric: str = "llm_d_epp_disagg_decision_total") -> dict[str, int]:
    """What the picker has counted, by type of decision."""
    types = ("decode-only", "prefill-decode", "encode-decode", "encode-prefill-decode")
    counted = {each: int(await gateway.sample(metric, {"decision_type": each, "model_name": "m"})) for each in types}
    return {each: count for each, count in counted.items() if count}


async def work_of(gateway: Gateway) -> Counter[str]:
    """Requests that each server has answered, those of other servers included; without servers that answered none."""
    return +await gateway.served()
