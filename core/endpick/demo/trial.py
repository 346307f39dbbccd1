"""One trial of the demo: fresh model servers with cold caches, endpick with one configuration, and a load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from endpick.demo.configurations import Configuration
from endpick.demo.load import Outcome, run_load
from endpick.demo.processes import Children
from endpick.demo.stack import Stack, start_stack
from endpick.demo.stats import read_stats
from endpick.demo.table import LiveTable
from endpick.demo.workload import Chat

MODEL = "sim-model"
CONFIG_FILE = "config.yaml"
_REFRESH_SECONDS = 0.5
_SERVER_OPTIONS = (
    *("--model", MODEL, "--max-num-seqs", "16", "--max-model-len", "8192"),
    *("--kv-blocks", "1024", "--block-size", "16"),
    *("--prefill-ms-per-token", "0.15", "--decode-ms", "8"),
)
"""A cache of about seven of the workload's conversations: room for a share of the tenants, not for all of them."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is tried, and with what."""

    config: Configuration
    servers: int
    envoy: Path
    workload: Sequence[Chat]
    limit_seconds: float
    """When the load ends, answered or not."""
    picker: tuple[str, ...]
    """The command that serves a configuration; the configuration and options are added."""


async def run_trial(trial: Trial, folder: Path, table: LiveTable) -> list[Outcome]:
    """Start everything in `folder`, which must be empty, run the load, stop everything; nothing is left running.

    Raises:
        ChildFailed: a process did not start, or ended during the load.
        OSError: a process cannot be started.
    """
    config = folder / CONFIG_FILE
    config.write_text(trial.config.text)
    async with Children(folder) as children:
        stack = await start_stack(
            children,
            folder,
            server_options=_SERVER_OPTIONS,
            servers=trial.servers,
            picker=trial.picker,
            config=config,
            envoy=trial.envoy,
        )
        load = asyncio.create_task(_load_with_table(trial, stack, table))
        watch = asyncio.create_task(children.watch())
        try:
            await asyncio.wait((load, watch), return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
            return await load
        finally:
            for task in (load, watch):
                task.cancel()
            await asyncio.gather(load, watch, return_exceptions=True)


async def _load_with_table(trial: Trial, stack: Stack, table: LiveTable) -> list[Outcome]:
    async with _refreshing(trial.config.name, stack.servers, table):
        return await run_load(stack.gateway, trial.workload, MODEL, trial.limit_seconds)


@asynccontextmanager
async def _refreshing(title: str, servers: Mapping[str, str], table: LiveTable) -> AsyncIterator[None]:
    task = asyncio.create_task(_refresh(title, servers, table))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _refresh(title: str, servers: Mapping[str, str], table: LiveTable) -> None:
    clock = asyncio.get_running_loop().time
    start = clock()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as client:
        while True:
            stats = await asyncio.gather(*(read_stats(client, url) for url in servers.values()))
            table.show(title, clock() - start, dict(zip(servers, stats, strict=True)))
            await asyncio.sleep(_REFRESH_SECONDS)
