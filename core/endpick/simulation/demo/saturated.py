"""The saturated demo: more requests than the model servers can answer, of two tenants and three priorities."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TextIO

import aiohttp
import numpy as np

from endpick.simulation.demo.picture import Bar, bars_picture
from endpick.simulation.demo.processes import Children
from endpick.simulation.demo.stack import start_stack
from endpick.simulation.demo.trial import CONFIG_FILE, MODEL, Configuration, built_in

PRIORITIES = ("high", "normal", "low")
TENANTS = {"flood": 4.0, "trickle": 1.0}
"""Each tenant's share of the requests."""
PLACES = 4
"""Requests that a model server works on at a time."""
_TOKENS = 30
_DECODE_MS = 10
_GRACE_SECONDS = 60.0
_SERVER_OPTIONS = ("--model", MODEL, "--max-num-seqs", str(PLACES), "--prefill-ms-per-token", "0.01", "--decode-ms", str(_DECODE_MS))
_PICKER = (sys.executable, "-m", "endpick", "serve")


@dataclass(frozen=True, slots=True)
class SaturatedSettings:
    """What is run, once with flow control and once without."""

    envoy: Path
    duration_seconds: float = 30.0
    """Of the load under both configurations together, without starting, stopping and the last answers."""
    servers: int = 2
    seed: int = 1
    overload: float = 1.5
    """How many times what the servers can answer."""

    @property
    def requests_per_second(self) -> float:
        """That follow."""
        return self.overload * self.servers * PLACES / (_TOKENS * _DECODE_MS / 1000.0)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of the load."""

    due_seconds: float
    """Since the start of the load."""
    tenant: str
    priority: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one."""

    ask: Ask
    seconds: float
    """From when it was due to its answer."""
    status: int


def make_asks(settings: SaturatedSettings) -> tuple[Ask, ...]:
    """The load, in the order of time; the same settings give the same load."""
    random = Random(settings.seed)  # noqa: S311 - repeatable by design
    asks, now = [], 0.0
    while (now := now + random.expovariate(settings.requests_per_second)) < settings.duration_seconds / 2:
        tenant = random.choices(tuple(TENANTS), tuple(TENANTS.values()))[0]
        asks.append(Ask(now, tenant, random.choice(PRIORITIES)))
    return tuple(asks)


def without_queues() -> Configuration:
    """The same configuration with the gate off."""
    text = built_in("flow-control").text.replace("featureGates: [flowControl]\n", "")
    return Configuration("without flow control", text)


async def run_saturated(settings: SaturatedSettings, output: TextIO, picture: Path) -> bool:
    """Run both trials, write the comparison, and draw it into `picture`; True when no request failed.

    Raises:
        ChildFailed: a process did not start.
        OSError: a process cannot be started, or the picture cannot be written.
    """
    asks = make_asks(settings)
    output.write(f"{len(asks)} requests, {settings.overload:g} times what {settings.servers} simulated model servers can answer, twice\n\n")
    results: dict[str, list[Answer]] = {}
    for config in (without_queues(), Configuration("with flow control", built_in("flow-control").text)):
        with tempfile.TemporaryDirectory(prefix="endpick-demo-") as folder:
            results[config.name] = await _run(settings, config, asks, Path(folder))
    rows = rows_of(results)
    output.write(render(rows))
    await asyncio.to_thread(picture.write_text, bars_picture("Seconds to the answer, 9 of 10 requests", rows), encoding="utf-8")
    output.write(f"\npicture: {picture}\n")
    return all(answer.status == 200 for answers in results.values() for answer in answers)


async def _run(settings: SaturatedSettings, config: Configuration, asks: Sequence[Ask], folder: Path) -> list[Answer]:
    file = folder / CONFIG_FILE
    file.write_text(config.text)
    async with Children(folder) as children:
        stack = await start_stack(
            children,
            folder,
            server_options=_SERVER_OPTIONS,
            servers=settings.servers,
            picker=_PICKER,
            config=file,
            envoy=settings.envoy,
        )
        timeout = aiohttp.ClientTimeout(total=settings.duration_seconds + _GRACE_SECONDS)
        async with aiohttp.ClientSession(stack.gateway, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as client:
            start = asyncio.get_running_loop().time()
            return await asyncio.gather(*(_ask(client, ask, start) for ask in asks))


async def _ask(client: aiohttp.ClientSession, ask: Ask, start: float) -> Answer:
    clock = asyncio.get_running_loop().time
    await asyncio.sleep(max(0.0, start + ask.due_seconds - clock()))
    headers = {"x-llm-d-inference-fairness-id": ask.tenant, "x-llm-d-inference-objective": ask.priority}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": _TOKENS, "ignore_eos": True}
    try:
        async with client.post("/v1/chat/completions", json=body, headers=headers) as response:
            await response.read()
            status = response.status
    except (aiohttp.ClientError, TimeoutError):
        status = 0
    return Answer(ask, clock() - start - ask.due_seconds, status)


def rows_of(results: dict[str, list[Answer]]) -> list[Bar]:
    """A bar for each priority, tenant and configuration, in this order."""
    rows = []
    for priority in PRIORITIES:
        for tenant in TENANTS:
            for name, answers in results.items():
                mine = [answer for answer in answers if (answer.ask.priority, answer.ask.tenant) == (priority, tenant)]
                times = [answer.seconds for answer in mine if answer.status == 200]
                slow = float(np.percentile(times, 90)) if times else 0.0
                rows.append(Bar(f"{priority}, {tenant}", name, slow, f"{len(times)} of {len(mine)} answered"))
    return rows


def render(rows: Sequence[Bar]) -> str:
    """The same as text."""
    return "".join(f"{row.group:16}{row.name:24}{row.value:8.2f} s   {row.note}\n" for row in rows)
