"""Three model servers that do as a test wants, a picker, a real Envoy, and the operator's command line."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from click.testing import CliRunner

from endpick.cli.main import main
from endpick_gateway.envoy import EnvoyNotFoundError, find_envoy
from endpick_lab.demo.processes import Children
from endpick_lab.demo.stack import EDS_FILE, endpoints_file, start_envoy
from integration.plugins.serving import Picker, serving

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: endpoint-health, parameters: {baseEjectionTime: EJECTION, interval: 1s, tolerance: 1s}}
- type: queue-scorer
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
"""
PAGE = """\
process_start_time_seconds {started}
vllm:num_requests_waiting 0
vllm:num_requests_running 0
vllm:kv_cache_usage_perc 0
vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {awake}
"""
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class Server:
    """A model server that does as the test wants."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self.status = 200
        self.seconds = 0.0
        self.awake = 1
        self.page: str | None = None
        self.starts = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.add_routes([web.get("/metrics", self._metrics), web.post("/v1/chat/completions", self._chat)])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        self.starts += 1

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.page or PAGE.format(started=1000 + self.starts, awake=self.awake))

    async def _chat(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.seconds)
        return web.json_response({"model": "m"}, status=self.status, headers={"x-served-by": self.name})


class Cluster:
    """Three servers, a picker, Envoy and a client."""

    def __init__(self, servers: dict[str, Server], picker: Picker, gateway: str, client: aiohttp.ClientSession) -> None:
        self.servers = servers
        self.picker = picker
        self.url = f"{gateway}/v1/chat/completions"
        self.client = client

    async def send(self, count: int) -> Counter[str]:
        """Send requests, four at a time; the number of answers by server, `gateway` for its own."""
        answers: Counter[str] = Counter()

        async def some(number: int) -> None:
            for _ in range(number):
                async with self.client.post(self.url, json=CHAT) as response:
                    answers[response.headers.get("x-served-by", "gateway")] += 1

        await asyncio.gather(*(some(count // 4) for _ in range(4)))
        return answers

    async def cli(self, *arguments: str) -> str:
        """The output of a verb that asks the picker."""
        url = f"http://127.0.0.1:{self.picker.metrics_port}"
        flag = "--serving" if arguments[0] == "doctor" else "--url"
        result = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, flag, url])
        return result.output

    async def cli_until(self, pattern: str, *arguments: str) -> str:
        """The same, once its output matches."""
        output = ""
        try:
            async with asyncio.timeout(20):
                while not re.search(pattern, output):
                    output = await self.cli(*arguments)
        except TimeoutError:
            pytest.fail(f"'{pattern}' is not in the output of {arguments}:\n{output}")
        return output

    async def send_until(self, text: str) -> None:
        """Send requests until the picker logs the text once more."""
        times = sum(text in str(event["event"]) for event in self.picker.events)
        async with asyncio.timeout(20):
            while sum(text in str(event["event"]) for event in self.picker.events) == times:
                await self.send(4)


@asynccontextmanager
async def cluster(folder: Path, *options: str, ejection: str = "1s", more: str = "", path: Sequence[Path] = ()):
    """`more` goes into the list of plugins."""
    try:
        envoy = find_envoy(os.environ, Path.cwd())
    except EnvoyNotFoundError as missing:
        pytest.skip(str(missing))
    async with AsyncExitStack() as stack:
        servers = {name: Server(name) for name in "abc"}
        for server in servers.values():
            await server.start()
            stack.push_async_callback(server.stop)
        (folder / "endpoints.yaml").write_text(endpoints_file({name: f"http://127.0.0.1:{each.port}" for name, each in servers.items()}))
        (folder / "config.yaml").write_text(
            CONFIG.replace("EJECTION", ejection).replace("- type: queue-scorer\n", f"- type: queue-scorer\n{more}")
        )
        picker = await stack.enter_async_context(serving(folder, "--envoy-endpoints", EDS_FILE, *options, path=path))
        children = await stack.enter_async_context(Children(folder))
        gateway = await start_envoy(children, envoy, folder, picker.port)
        yield Cluster(servers, picker, gateway, await stack.enter_async_context(aiohttp.ClientSession()))
