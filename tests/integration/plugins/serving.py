"""`endpick serve` as a process of its own, and a gateway's part of the talk with it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import grpc
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from endpick._proto import ext_proc_pb2 as pb
from forked import FORKED

SOURCES = tuple(
    Path(__file__).parents[3] / name for name in ("core", "builtin_plugins/builtin", "extras/gateway", "extras/lab", "extras/migrate")
)
PORTS = ("--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0")
OPTIONS = (*PORTS, "--secure-serving=false", "--log-format=json", "--drain-timeout=200ms")
"""A test that stays connected need not wait long for the end; give `--drain-timeout` again to change that."""
METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
DESTINATION = "x-gateway-destination-endpoint"


@dataclass
class Picker:
    """One serving process.

    Attributes:
        events: Its log so far, one mapping per line.
    """

    process: asyncio.subprocess.Process
    channel: grpc.aio.Channel
    metrics_port: int
    events: list[Mapping[str, object]] = field(default_factory=list)

    @property
    def port(self) -> int:
        """Where it listens for gateways."""
        return self._port("ext_proc_port")

    @property
    def health_port(self) -> int:
        """Where it answers gRPC health checks."""
        return self._port("health_port")

    def _port(self, name: str) -> int:
        (served,) = (event for event in self.events if event["event"] == "serving")
        return int(str(served[name]))

    async def ask(self, prompt: str = "hello", request_id: str = "r", model: str = "m") -> tuple[str, int]:
        """Send one chat request; where endpick sends it, and the status of a refusal: 0 when it is routed."""
        call, answer = await self.begin(prompt, request_id, model)
        call.cancel()
        if answer.WhichOneof("response") == "immediate_response":
            return "", answer.immediate_response.status.code
        set_headers = answer.request_headers.response.header_mutation.set_headers
        return {one.header.key: one.header.raw_value.decode() for one in set_headers}[DESTINATION], 0

    async def begin(
        self, prompt: str = "hello", request_id: str = "r", model: str = "m"
    ) -> tuple[grpc.aio.StreamStreamCall, pb.ProcessingResponse]:
        """Send one chat request; the stream, open for the response, and endpick's first answer."""
        call = await self.announce(request_id)
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": prompt}]}).encode()
        with suppress(asyncio.InvalidStateError):  # the stream has ended at its headers: reading says how
            await call.write(pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True)))
        return call, await call.read()

    async def announce(self, request_id: str = "r") -> grpc.aio.StreamStreamCall:
        """Send the headers of one chat request: for what is decided before the body comes."""
        call = self.channel.stream_stream(METHOD, pb.ProcessingRequest.SerializeToString, pb.ProcessingResponse.FromString)()
        names = {":path": "/v1/chat/completions", ":method": "POST", "content-type": "application/json", "x-request-id": request_id}
        headers = pb.HeaderMap(headers=[pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in names.items()])
        await call.write(pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=headers)))
        return call

    async def samples(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The samples of that name on the metrics page, by their labels."""
        async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{self.metrics_port}/metrics") as response:
            families = text_string_to_metric_families(await response.text())
            return {tuple(sorted(each.labels.items())): each.value for family in families for each in family.samples if each.name == name}

    async def health(self) -> tuple[int, str]:
        """Status and text of `/healthz`."""
        async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{self.metrics_port}/healthz") as response:
            return response.status, await response.text()

    async def logged(self, text: str, times: int = 1) -> list[Mapping[str, object]]:
        """Wait until that many log lines contain the text."""
        async with asyncio.timeout(20):
            while len(found := [event for event in self.events if text in str(event["event"])]) < times:  # noqa: ASYNC110 - written by another process
                await asyncio.sleep(0.02)
        return found

    def reload(self) -> None:
        """Let it read its configuration again."""
        os.kill(self.process.pid, signal.SIGHUP)


@asynccontextmanager
async def metrics_page(text: Callable[[], str]) -> AsyncIterator[int]:
    """A model server with nothing but a metrics page, asked for each scrape; yields its port."""

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text=text())

    application = web.Application()
    application.router.add_get("/metrics", metrics)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serving(
    folder: Path, *options: str, python: Path | str = FORKED, path: Sequence[Path] | None = (), exit_code: int = 0
) -> AsyncIterator[Picker]:
    """Serve `config.yaml` of a folder, with these distributions on the path; with `path` None, only what its Python has installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, [*path, *SOURCES]))
    process = await asyncio.create_subprocess_exec(
        *(str(python), "-m", "endpick", "serve", "config.yaml", *OPTIONS, *options),
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    lines: list[str] = []
    try:
        ports = await asyncio.wait_for(_ports(process.stderr, lines), 40)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports['ext_proc_port']}") as channel:
            picker = Picker(process, channel, int(str(ports["metrics_port"])), [json.loads(line) for line in lines if line.startswith("{")])
            reading = asyncio.create_task(_read(process.stderr, picker.events))
            yield picker
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
    await reading
    assert process.returncode == exit_code, picker.events


async def _ports(stream: asyncio.StreamReader, lines: list[str]) -> Mapping[str, object]:
    while line := (await stream.readline()).decode():
        lines.append(line)
        if '"event":"serving"' in line:
            return json.loads(line)
    raise AssertionError("".join(lines))


async def _read(stream: asyncio.StreamReader, events: list[Mapping[str, object]]) -> None:
    while line := (await stream.readline()).decode():
        if line.startswith("{"):
            events.append(json.loads(line))
