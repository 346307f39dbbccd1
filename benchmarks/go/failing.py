"""Compare where requests go when one server of three fails fast: python -m benchmarks.go.failing --epp /path/to/epp.

The failing server answers 500 at once and has a healthy metrics page; the others take 50 ms. The pickers take turns behind a real Envoy,
with the same configuration and eight clients that send one request after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import random

import aiohttp
from aiohttp import web

from benchmarks.extproc.plan import CONFIG, endpoints_file
from benchmarks.go.pickers import MISSING, add_options, commands, started
from endpick.api import Endpoint
from endpick.serve.eds import write_eds
from endpick_gateway.envoy import find_envoy
from endpick_lab.demo.processes import Children
from endpick_lab.demo.stack import EDS_FILE, start_envoy

SERVERS = 3
CLIENTS = 8
ANSWER_SECONDS = 0.05
PAGE = "vllm:num_requests_waiting 0\nvllm:num_requests_running {}\nvllm:kv_cache_usage_perc {}\n"
ROOT = Path(__file__).resolve().parents[2]


class Server:
    """One model server on its own loopback address."""

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails
        self.open = 0
        self.answers: Counter[str] = Counter()

    async def metrics(self, _request: web.Request) -> web.Response:
        """A healthy page."""
        return web.Response(text=PAGE.format(self.open, self.open / 100))

    async def chat(self, _request: web.Request) -> web.Response:
        """Fail at once, or answer in a while."""
        if self.fails:
            return web.json_response({"error": "out of memory"}, status=500, headers={"x-served-by": "failing"})
        self.open += 1
        await asyncio.sleep(ANSWER_SECONDS)
        self.open -= 1
        return web.json_response(
            {"model": "llama", "usage": {"prompt_tokens": 5, "completion_tokens": 1}}, headers={"x-served-by": "sound"}
        )


async def served(addresses: Sequence[str], port: int) -> list[web.AppRunner]:
    """Start a server on each address; the first fails."""
    runners = []
    for place, address in enumerate(addresses):
        server, app = Server(fails=not place), web.Application()
        app.add_routes([web.get("/metrics", server.metrics), web.post("/v1/chat/completions", server.chat)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, address, port).start()
        runners.append(runner)
    return runners


async def load(url: str, seconds: float, windows: Sequence[float]) -> list[Counter[str]]:
    """Answers by server, in each window; `gateway` for Envoy's own."""
    began = time.monotonic()
    counted: list[Counter[str]] = [Counter() for _ in windows]

    async def client(session: aiohttp.ClientSession) -> None:
        while (elapsed := time.monotonic() - began) < seconds:
            chat = {"model": "llama", "messages": [{"role": "user", "content": f"{random()} is a number."}]}  # no common prefix
            async with session.post(url, json=chat) as response:
                place = max(index for index, start in enumerate(windows) if start <= elapsed)
                counted[place][response.headers.get("x-served-by", "gateway")] += 1

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(client(session) for _ in range(CLIENTS)))
    return counted


async def measure(port: int, endpoints: Sequence[Endpoint], seconds: float) -> list[Counter[str]]:
    """Load one picker behind an Envoy of its own."""
    with tempfile.TemporaryDirectory() as folder:
        write_eds(Path(folder, EDS_FILE), endpoints)
        async with Children(Path(folder)) as children:
            gateway = await start_envoy(children, find_envoy(os.environ, ROOT), Path(folder), port)
            return await load(f"{gateway}/v1/chat/completions", seconds, (0.0, 10.0))


async def serve_forever(addresses: Sequence[str], port: int, ready: asyncio.Event) -> None:
    """The servers, until cancelled."""
    runners = await served(addresses, port)
    ready.set()
    try:
        await asyncio.Event().wait()
    finally:
        for runner in runners:
            await runner.cleanup()


async def compare(epp: str, port: int, seconds: float, core: int) -> None:
    """Print a row for each picker."""
    lines = endpoints_file(SERVERS, port).splitlines()
    addresses = [line.partition("address: ")[2].partition(",")[0] for line in lines if "address" in line]
    ready = asyncio.Event()
    serving = asyncio.create_task(serve_forever(addresses, port, ready))
    await ready.wait()
    print("| picker | share of the failing server, first 10 s | after 10 s | failed requests | of all |\n|---|---|---|---|---|")
    for name, command in commands(epp).items():
        picker = started(name, command, CONFIG, SERVERS, port, core)
        ext_proc_port, _ = await asyncio.to_thread(picker.__enter__)
        try:
            windows = await measure(ext_proc_port, [Endpoint(address, address, port) for address in addresses], seconds)
        finally:
            await asyncio.to_thread(picker.__exit__, None, None, None)
        shares = [f"{window['failing'] / max(1, window.total()):.1%}" for window in windows]
        failed, total = sum(window["failing"] for window in windows), sum(window.total() for window in windows)
        print(f"| {name} | {' | '.join(shares)} | {failed} | {total} |", flush=True)
    serving.cancel()


def main() -> None:
    """Parse options and compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.go.failing", description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    parser.add_argument("--port", type=int, default=18100)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    if not options.epp:
        raise SystemExit(MISSING)
    asyncio.run(compare(options.epp, options.port, options.seconds, options.picker_core))


if __name__ == "__main__":
    main()
