"""Attempts that do what none may be able to: the judge has to see it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable

import aiohttp
from benchmarks.attempts.catalogue import Attempt, Target


async def nothing(target: Target) -> None:
    """Do nothing."""


async def an_end(target: Target) -> None:
    """End the picker by force."""
    os.kill(target.pid, signal.SIGKILL)


async def a_line(target: Target) -> None:
    """Forge a line of the log."""
    with (target.folder / "log").open("a") as log:
        log.write("all is well\n")


async def a_word(target: Target) -> Iterable[str]:
    """Find something that only the attempt sees."""
    return ("a secret is in the log",)


async def a_refusal(target: Target) -> None:
    """Take all endpoints away, so that every request is refused."""
    (target.folder / "none").write_text("endpoints: []\n")
    (target.folder / "none").replace(target.folder / "endpoints.yaml")
    async with aiohttp.ClientSession() as admin:
        while await _pool_size(admin, target.metrics_port) != 0:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.1)


async def a_late_refusal(target: Target) -> None:
    """Take all endpoints away when the time is up already, as a busy machine may have it."""
    await asyncio.sleep(target.seconds_left() + 2)
    await a_refusal(target)


async def _pool_size(admin: aiohttp.ClientSession, port: int) -> float:
    async with admin.get(f"http://127.0.0.1:{port}/metrics") as answer:
        [size] = [line.rpartition(" ")[2] for line in (await answer.text()).splitlines() if line.startswith("llm_d_epp_ready_endpoints{")]
    return float(size)


ATTEMPTS = (Attempt(nothing), Attempt(an_end), Attempt(a_line), Attempt(a_word), Attempt(a_refusal), Attempt(a_late_refusal))
