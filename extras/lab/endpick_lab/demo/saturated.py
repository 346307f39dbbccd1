"""The saturated demo: two tenants send more requests than the servers can answer, at three priorities."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from random import Random
from typing import TextIO

import aiohttp
import numpy as np

from endpick_lab.demo.processes import Children
from endpick_lab.demo.runner import CONFIG_FILE, MODEL, PICKER, Configuration, built_in
from endpick_lab.demo.stack import start_stack

PRIORITIES = ("high", "normal", "low")
TENANTS = {"flood": 4.0, "trickle": 1.0}  # weights of the request rates
PLACES = 4  # concurrent requests of a server
_TOKENS = 30
_DECODE_MS = 10
_GRACE_SECONDS = 60.0
_SERVER_OPTIONS = ("--model", MODEL, "--max-num-seqs", str(PLACES), "--prefill-ms-per-token", "0.01", "--decode-ms", str(_DECODE_MS))


@dataclass(frozen=True, slots=True)
class SaturatedSettings:
    """Settings of `endpick demo --saturated`, the same for both runs."""

    envoy: Path
    duration_seconds: float = 30.0  # both loads, without startup and the last answers
    servers: int = 2
    seed: int = 1
    overload: float = 1.5  # load / capacity

    @property
    def requests_per_second(self) -> float:
        """The rate of the load: `overload` times the capacity of all servers."""
        return self.overload * self.servers * PLACES / (_TOKENS * _DECODE_MS / 1000.0)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request of the load, due some seconds after the start."""

    due_seconds: float
    tenant: str
    priority: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The status and the duration of the answer to a request; status 0 if there was none."""

    ask: Ask
    seconds: float  # from due to answer
    status: int


def make_asks(settings: SaturatedSettings) -> tuple[Ask, ...]:
    """Return the requests of the load in order of time; the same for the same seed."""
    random = Random(settings.seed)  # noqa: S311 - repeatable by design
    asks, now = [], 0.0
    while (now := now + random.expovariate(settings.requests_per_second)) < settings.duration_seconds / 2:
        tenant = random.choices(tuple(TENANTS), tuple(TENANTS.values()))[0]
        asks.append(Ask(now, tenant, random.choice(PRIORITIES)))
    return tuple(asks)


def without_queues() -> Configuration:
    """Return the configuration without the feature gate `flowControl`."""
    text = built_in("flow-control").text.replace("featureGates: [flowControl]\n", "")
    return Configuration("without flow control", text)


async def run_saturated(settings: SaturatedSettings, output: TextIO, picture: Path) -> bool:
    """Run both trials, print and draw the comparison; True if no request failed. Raises ChildFailed, OSError."""
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
            picker=PICKER,
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
    """Return one bar per priority, tenant and configuration, in this order."""
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
    """Format the bars as lines of text."""
    return "".join(f"{row.group:16}{row.name:24}{row.value:8.2f} s   {row.note}\n" for row in rows)


WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 760, 130, 190, 70, 16, 12
_COLOURS = ("#d0d7de", "#0969da", "#1a7f37", "#8250df")
_STYLE = "text{font:12px system-ui,sans-serif;fill:#1f2328}.title{font-size:15px;font-weight:600}.note{fill:#57606a;font-size:11px}"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; the first of a `group` is labelled, and equal names have the same colour."""

    group: str
    name: str
    value: float
    note: str


def bars_picture(title: str, bars: Sequence[Bar]) -> str:
    """Draw an SVG with one row per bar."""
    longest = max((bar.value for bar in bars), default=0.0) or 1.0
    names = list(dict.fromkeys(bar.name for bar in bars))
    colours = {name: _COLOURS[position % len(_COLOURS)] for position, name in enumerate(names)}
    shapes, y, group = [], float(TOP), None
    for bar in bars:
        if bar.group != group:
            y += GAP if group is not None else 0
            shapes.append(_text(LEFT - 10, y + 12, bar.group, ' text-anchor="end"'))
            group = bar.group
        length = bar.value / longest * (WIDTH - LEFT - RIGHT)
        shapes.append(f'<rect x="{LEFT}" y="{y:g}" width="{length:.1f}" height="{BAR - 2}" fill="{colours[bar.name]}"/>')
        shapes.append(_text(LEFT + length + 6, y + 11, f"{bar.value:.2f}; {bar.note}", ' class="note"'))
        y += BAR
    legend = []
    for position, name in enumerate(names):
        x = LEFT + 180 * position
        legend.append(f'<rect x="{x}" y="38" width="12" height="12" fill="{colours[name]}"/>')
        legend.append(_text(x + 18, 48, name))
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + GAP:g}" role="img">',
            f"<style>{_STYLE}</style>",
            f'<rect width="{WIDTH}" height="{y + GAP:g}" fill="#fff"/>',
            _text(10, 22, title, ' class="title"'),
            *legend,
            *shapes,
            "</svg>",
            "",
        )
    )


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(text)}</text>'
