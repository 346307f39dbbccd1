"""Model servers that fail, sleep, die and come back, behind a real Envoy: where the requests go, and what an operator sees."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from click.testing import CliRunner

from endpick.cli.main import main
from endpick.simulation.demo.processes import Children
from endpick.simulation.demo.stack import EnvoyNotFoundError, endpoints_file, find_envoy, start_envoy
from integration.plugins.serving import Picker, serving

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

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
        self.awake = 1
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
        return web.Response(text=PAGE.format(started=1000 + self.starts, awake=self.awake))

    async def _chat(self, request: web.Request) -> web.Response:
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

    async def send_until(self, text: str) -> None:
        """Send requests until the picker logs the text once more."""
        times = sum(text in str(event["event"]) for event in self.picker.events)
        async with asyncio.timeout(20):
            while sum(text in str(event["event"]) for event in self.picker.events) == times:
                await self.send(4)


@asynccontextmanager
async def cluster(folder: Path, *options: str, ejection: str = "1s"):
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
        (folder / "config.yaml").write_text(CONFIG.replace("EJECTION", ejection))
        picker = await stack.enter_async_context(serving(folder, *options))
        children = await stack.enter_async_context(Children(folder))
        gateway = await start_envoy(children, envoy, folder, picker.port)
        yield Cluster(servers, picker, gateway, await stack.enter_async_context(aiohttp.ClientSession()))


@pytest.mark.asyncio
async def test_failing_server_gets_hardly_any_requests(tmp_path):
    async with cluster(tmp_path) as run:
        answers = await run.send(80)
        assert min(answers[name] for name in "abc") > 8
        run.servers["a"].status = 500
        await run.send_until("endpoint default/a: healthy -> ejected")
        answers = await run.send(400)
        assert answers["a"] <= 0.05 * answers.total()

        run.servers["a"].status = 200
        await run.send_until("endpoint default/a: probing -> healthy")
        assert (await run.send(80))["a"] > 8


@pytest.mark.asyncio
async def test_sleeping_engine_gets_no_request(tmp_path):
    async with cluster(tmp_path) as run:
        run.servers["b"].awake = 0
        await run.picker.logged("endpoint default/b: healthy -> ejected (asleep")
        assert set(await run.send(40)) == {"a", "c"}
        run.servers["b"].awake = 1
        await run.send_until("endpoint default/b: probing -> healthy")


@pytest.mark.asyncio
async def test_dead_servers_are_reported_and_come_back(tmp_path):
    async with cluster(tmp_path, "--unready-without-endpoints", "--metrics-staleness-threshold=1s", ejection="60s") as run:
        assert (await run.picker.health())[1] == "ok\n"
        for server in run.servers.values():
            await server.stop()
        for name in "abc":
            await run.picker.logged(f"endpoint default/{name}: healthy -> degraded (it reports no metrics any more)")
        assert sum((await run.picker.samples("llm_d_epp_ready_endpoints")).values()) == 0
        for name in "abc":
            if not await ejected(run.picker, name):
                await run.send_until(f"endpoint default/{name}: degraded -> ejected")
        text = await health_with(run.picker, 503)
        assert text.startswith("no endpoint is healthy, degraded or probing\n")
        assert text.count("is ejected for") == 3
        url = f"http://127.0.0.1:{run.picker.metrics_port}"
        doctor = await asyncio.to_thread(CliRunner().invoke, main, ["doctor", "--serving", url, "--strict"])
        assert (doctor.exit_code != 0, doctor.output.count("is ejected for")) == (True, 3)
        errors = await run.picker.samples("endpick_endpoint_errors_total")
        assert {dict(labels)["reason"] for labels in errors} <= {"connect-failure", "reset"}

        await run.servers["a"].start()
        await run.picker.logged("endpoint default/a: its model server restarted")
        await run.send_until("endpoint default/a: probing -> healthy")
        assert (await health_with(run.picker, 200)).startswith("ok\n")
        assert set(await run.send(80)) == {"a"}, "the others are known to be dead"


async def ejected(picker: Picker, name: str) -> bool:
    labels = (
        ("endpoint_name", f"default/{name}"),
        ("plugin_name", "endpoint-health"),
        ("plugin_type", "endpoint-health"),
        ("state", "ejected"),
    )
    return (await picker.samples("endpick_endpoint_state"))[labels] == 1


async def health_with(picker: Picker, status: int) -> str:
    """The text of `/healthz` once it has this status."""
    async with asyncio.timeout(10):
        while (answer := await picker.health())[0] != status:  # noqa: ASYNC110 - another process gives no event to wait for
            await asyncio.sleep(0.05)
    return answer[1]
