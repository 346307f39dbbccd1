"""Requests through `endpick serve`, as a gateway would send them."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc.aio
from prometheus_client.parser import text_string_to_metric_families

from endpick._proto.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from endpick.extproc.messages import DESTINATION_HEADER
from endpick.transport.methods import EXT_PROC_PATH
from endpick_lab.demo.processes import Child, Children

READY_SECONDS = 60.0
LISTEN = (
    *("--host", "127.0.0.1", "--secure-serving=false", "--log-format", "json"),
    *("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"),
)


@dataclass(frozen=True)
class Picker:
    """A serving endpick, as its gateway sees it."""

    channel: grpc.aio.Channel
    metrics_port: int

    async def ask(self, headers: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Where a chat completion with these headers goes: `host:port`, best first; none when it is refused."""
        call = self.channel.stream_stream(EXT_PROC_PATH)(iter(_chat(headers or {})))
        return _destinations([ProcessingResponse.FromString(reply) async for reply in call])

    async def runs(self) -> dict[str, int]:
        """How often each plugin type was called."""
        async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{self.metrics_port}/metrics") as response:
            families = text_string_to_metric_families(await response.text())
        counted: dict[str, int] = {}
        for sample in (sample for family in families for sample in family.samples):
            if sample.name.endswith("plugin_duration_seconds_count"):
                plugin_type = sample.labels["plugin_type"]
                counted[plugin_type] = counted.get(plugin_type, 0) + int(sample.value)
        return counted


@asynccontextmanager
async def serving(python: Path, project: Path, installed: Sequence[Path] = ()) -> AsyncIterator[Picker]:
    """Serve a project's configuration with its own Python; `installed` are directories of further distributions."""
    search_path = f"PYTHONPATH={os.pathsep.join(map(str, installed))}"
    async with Children(project) as children:
        child = await children.start("serve", ("env", search_path, python, "-m", "endpick", "serve", "examples/config.yaml", *LISTEN))

        async def ports() -> tuple[int, int] | None:
            return _ports(child)

        grpc_port, metrics_port = await child.wait_until_ready(ports, READY_SECONDS)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            yield Picker(channel, metrics_port)


def _ports(picker: Child) -> tuple[int, int] | None:
    complete = picker.output().rpartition("\n")[0].splitlines()
    events = [json.loads(line) for line in complete if line.startswith("{")]
    return next(((event["ext_proc_port"], event["metrics_port"]) for event in events if event.get("event") == "serving"), None)


def _chat(headers: Mapping[str, str]) -> list[bytes]:
    head, body = ProcessingRequest(), ProcessingRequest()
    named = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json", **headers}
    for name, value in named.items():
        head.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    body.request_body.body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello"}]}).encode()
    body.request_body.end_of_stream = True
    return [head.SerializeToString(), body.SerializeToString()]


def _destinations(replies: list[ProcessingResponse]) -> tuple[str, ...]:
    for reply in replies:
        for common in (reply.request_headers.response, reply.request_body.response):
            for option in common.header_mutation.set_headers:
                if option.header.key == DESTINATION_HEADER:
                    return tuple(option.header.raw_value.decode().split(","))
    return ()
