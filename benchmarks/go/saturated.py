"""A full pool and its gateway in one process: python -m benchmarks.go.saturated, told on its input which picker to ask.

Slow model servers with a fixed number of places, each under a loopback address of its own with a page of metrics that is true; and clients
that come whether or not others are served, of several tenants. The first line of output is the port of the servers; the input is a line
with the picker's port; the lines that follow say when the window begins and when it is over; the last is what was seen, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import uvloop

from benchmarks.extproc.messages import answered, chat, request
from benchmarks.extproc.phased import Gateway, Phase, Stream, cut
from benchmarks.model_server import Answering
from endpick._proto.ext_proc_pb2 import ProcessingResponse
from endpick.transport.h2.frames import END_STREAM, FrameType
from endpick.transport.h2.stream import MESSAGE_HEAD, MESSAGE_HEAD_BYTES

TENANTS = {"flood": 0.6, "steady": 0.3, "trickle": 0.1}
"""What part of all requests each tenant sends."""
OBJECTIVES = {"flood": "low", "trickle": "high"}
"""What tenants ask for where there are objectives; steady asks for none."""
DESTINATION = "x-gateway-destination-endpoint"
DROPPED = "x-llm-d-request-dropped-reason"
PAGE = """\
vllm:num_requests_waiting{{model_name="llama"}} {waiting}
vllm:num_requests_running{{model_name="llama"}} {running}
vllm:kv_cache_usage_perc{{model_name="llama"}} {usage}
vllm:cache_config_info{{block_size="16",num_gpu_blocks="4096"}} 1
"""
_CONNECTIONS = 4
_ROUTED, _OVER = 1, 2
"""Replies of a stream that is with its model server, and of one that is complete."""


@dataclass
class Asked(Stream):
    """A request under way."""

    tenant: str = ""


@dataclass
class Tenant:
    """What became of the requests of one tenant in the window, by when that was decided."""

    offered: int = 0
    held_ms: list[float] = field(default_factory=list)
    """How long the picker had each that it let go."""
    waits_ms: list[float] = field(default_factory=list)
    """How long each that was served waited for its place, in the picker and at the server."""
    refused: Counter[str] = field(default_factory=Counter)


class ModelServer:
    """Places, and a queue before them."""

    def __init__(self, places: int) -> None:
        self._places = places
        self.running = 0
        self.queue: deque[asyncio.Future[None]] = deque()

    async def place(self) -> None:
        """Wait for a place."""
        if self.running >= self._places:
            turn = asyncio.get_running_loop().create_future()
            self.queue.append(turn)
            await turn
        else:
            self.running += 1

    def leave(self) -> None:
        """Make room for the next."""
        if self.queue:
            self.queue.popleft().set_result(None)
        else:
            self.running -= 1

    @property
    def page(self) -> bytes:
        """Its metrics as they are now."""
        return PAGE.format(waiting=len(self.queue), running=self.running, usage=self.running / self._places / 2).encode()


class World:
    """Servers, clients, and what is seen of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.has_objectives = options.objectives
        self._servers: dict[str, ModelServer] = {}
        self._random = Random(7)
        self._tasks: set[asyncio.Task[None]] = set()
        self.tenants = {name: Tenant() for name in TENANTS}
        self.counting = False
        self.broken = 0
        self.longest_queue = 0

    def server(self, address: str) -> ModelServer:
        """The model server at an address."""
        if address not in self._servers:
            self._servers[address] = ModelServer(self._options.places)
        return self._servers[address]

    def routed(self, gateway: Clients, stream_id: int, stream: Asked, destination: str) -> None:
        """A picker sends a request to a server."""
        if self.counting:
            self.tenants[stream.tenant].held_ms.append((time.perf_counter() - stream.opened_at) * 1000)
        task = asyncio.get_running_loop().create_task(self._serve(gateway, stream_id, stream, destination))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, gateway: Clients, stream_id: int, stream: Asked, destination: str) -> None:
        server = self.server(destination.split(",", maxsplit=1)[0].rpartition(":")[0])
        seconds = self._options.service_seconds * self._random.uniform(0.5, 1.5)
        if self.counting:
            self.longest_queue = max(self.longest_queue, len(server.queue) + (server.running >= self._options.places))
        await server.place()
        if self.counting:
            self.tenants[stream.tenant].waits_ms.append((time.perf_counter() - stream.opened_at) * 1000)
        await asyncio.sleep(seconds)
        server.leave()
        gateway.answer(stream_id)

    @property
    def running(self) -> int:
        """Requests in places of all servers."""
        return sum(server.running for server in self._servers.values())

    async def drive(self, port: int) -> dict[str, object]:
        """Have clients come for the time of the warm-up and of the window."""
        options, loop = self._options, asyncio.get_running_loop()
        made = [loop.create_connection(lambda: Clients(self), "127.0.0.1", port) for _ in range(_CONNECTIONS)]
        gateways = [gateway for _, gateway in await asyncio.gather(*made)]
        await asyncio.gather(*(gateway.ready.wait() for gateway in gateways))
        began, busy = loop.time(), list[int]()
        for number, (at, tenant) in enumerate(arrivals(options.rate, options.warm_seconds + options.seconds)):
            await asyncio.sleep(began + at - loop.time())
            if not self.counting and at >= options.warm_seconds:
                self.counting = True
                print("window", flush=True)
            if self.counting:
                busy.append(self.running)
                self.tenants[tenant].offered += 1
            gateways[number % _CONNECTIONS].ask(tenant, number)
        self.counting = False
        print("over", flush=True)
        for task in self._tasks:
            task.cancel()
        for gateway in gateways:
            gateway.transport.abort()
        return {
            "tenants": {name: vars(tenant) for name, tenant in self.tenants.items()},
            "broken": self.broken + sum(gateway.lost for gateway in gateways),
            "busy": sum(busy) / len(busy),
            "longest_queue": self.longest_queue,
        }


class Clients(Gateway):
    """One connection of the gateway; the requests on it come when clients ask."""

    def __init__(self, world: World) -> None:
        super().__init__(_no_script, 0, [])
        self._world = world
        self.ready = asyncio.Event()

    def frame_received(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Streams may be ended by the picker after it has refused a request."""
        if kind == FrameType.RST_STREAM or (kind == FrameType.HEADERS and flags & END_STREAM):
            if self.streams.pop(stream_id, None) is not None:
                self._world.broken += 1
            return
        super().frame_received(kind, flags, stream_id, payload)
        if kind == FrameType.SETTINGS:
            self.ready.set()

    def ask(self, tenant: str, number: int) -> None:
        """Begin a request."""
        headers = {"x-llm-d-inference-fairness-id": tenant, "x-request-id": f"{tenant}-{number}"}
        if self._world.has_objectives and tenant in OBJECTIVES:
            headers["x-llm-d-inference-objective"] = OBJECTIVES[tenant]
        script = tuple(
            Phase(tuple(piece for message in messages for piece in cut(MESSAGE_HEAD.pack(0, len(message)) + message)), reached)
            for messages, reached in ((request(chat(1024, about=f"sea {number}"), headers), _ROUTED), (answered(), _OVER))
        )
        self._next_script = lambda: script
        self.open()
        stream_id, stream = next(reversed(self.streams.items()))
        self.streams[stream_id] = Asked(**vars(stream), tenant=tenant)
        self.flush()

    def answer(self, stream_id: int) -> None:
        """The model server has answered."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.replies = _ROUTED
            self._advance(stream_id, stream)
            self.flush()

    def reply_received(self, stream_id: int, stream: Stream, payload: bytes) -> None:
        """Take complete messages out of what came."""
        assert isinstance(stream, Asked)
        for reply in replies_in(stream, payload):
            if reply.HasField("immediate_response"):
                self._refused(stream_id, stream, reply)
                return
            if reply.HasField("request_headers"):
                destination = header_in(reply.request_headers.response.header_mutation.set_headers, DESTINATION)
                self._world.routed(self, stream_id, stream, destination)
            elif reply.HasField("response_body") and reply.response_body.response.body_mutation.streamed_response.end_of_stream:
                stream.replies = _OVER

    def _refused(self, stream_id: int, stream: Asked, reply: ProcessingResponse) -> None:
        del self.streams[stream_id]
        if self._world.counting:
            said = reply.immediate_response
            reason = header_in(said.headers.set_headers, DROPPED)
            self._world.tenants[stream.tenant].refused[f"{said.status.code} {reason}".strip()] += 1

    def proceed(self) -> None:
        """The next request comes when a client asks."""


def _no_script() -> Sequence[Phase]:
    raise AssertionError("only `ask` opens a stream")


def replies_in(stream: Stream, payload: bytes) -> Iterator[ProcessingResponse]:
    """The complete replies; the rest is kept with the stream."""
    whole, position = stream.partial + payload, 0
    while len(whole) - position >= MESSAGE_HEAD_BYTES:
        end = position + MESSAGE_HEAD_BYTES + MESSAGE_HEAD.unpack_from(whole, position)[1]
        if end > len(whole):
            break
        yield ProcessingResponse.FromString(whole[position + MESSAGE_HEAD_BYTES : end])
        position = end
    stream.partial = whole[position:]


def header_in(options: object, name: str) -> str:
    """The value of a header that a reply sets; empty for none."""
    return next((each.header.raw_value.decode() or each.header.value for each in options if each.header.key == name), "")  # type: ignore[attr-defined]


def arrivals(rate: float, seconds: float) -> Iterator[tuple[float, str]]:
    """When who asks: at random moments, the same for every picker."""
    random, at = Random(1), 0.0
    names, parts = list(TENANTS), list(TENANTS.values())
    while at < seconds:
        yield at, random.choices(names, parts)[0]
        at += random.expovariate(rate)


async def serve(options: argparse.Namespace) -> dict[str, object]:
    """Servers, and clients once the picker's port is known."""
    world, loop = World(options), asyncio.get_running_loop()

    class Metrics(Answering):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self._server = world.server(transport.get_extra_info("sockname")[0])

        def _answer(self, head: bytes, body: bytes) -> None:
            self.page = self._server.page
            super()._answer(head, body)

    server = await loop.create_server(Metrics, "0.0.0.0", options.port)
    print(server.sockets[0].getsockname()[1], flush=True)
    port = await loop.run_in_executor(None, sys.stdin.readline)
    found = await world.drive(int(port))
    server.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, required=True, help="requests a second")
    parser.add_argument("--warm-seconds", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--places", type=int, required=True, help="of each server")
    parser.add_argument("--service-seconds", type=float, required=True, help="mean time in a place")
    parser.add_argument("--port", type=int, default=0, help="of the servers; 0 for any")
    parser.add_argument("--objectives", action="store_true", help="tenants name one, and so have priorities")
    parser.add_argument("--core", type=int, required=True)
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    print(json.dumps(uvloop.run(serve(options))))


if __name__ == "__main__":
    main()
