"""Receives KV events: subscribes, accepts connections, and replays gaps."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field

import aiohttp
import msgspec
import zmq
import zmq.asyncio

from endpick.api import ConfigurationError, Endpoint
from endpick_kv_events.engine_blocks import EngineBlocks
from endpick_kv_events.messages import Batch, bracketed, decode, find_source
from endpick_kv_events.parameters import KvEventsParameters
from endpick_kv_events.stream import KvMetrics, KvStream, Message, Operation

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
MAX_SOCKETS = 16_384
MAX_REPLAYS = 8
REPLAY_SECONDS = 120.0
REPLAY_IDLE_SECONDS = 2.0
REPLAY_PAUSE_SECONDS = 30.0
_QUEUED_MESSAGES = 10_000
_RECONNECT_MS, _RECONNECT_MAX_MS = 200, 5000
_HEARTBEAT_MS = 5000
_POOL_SECONDS = 1.0
_LOG_SECONDS = 60.0
_END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_RANK = re.compile(r"-rank-(\d{1,3})$")


@dataclass(slots=True, eq=False)
class _Publisher:
    endpoint: Endpoint
    stream: KvStream
    is_subscribed: bool = False
    replay_address: str = ""
    no_replay_before: float = 0.0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class KvIntake:
    """Receives the events of all publishers of one index."""

    def __init__(
        self, parameters: KvEventsParameters, new_blocks: Callable[[str], EngineBlocks], metrics: KvMetrics, logger: logging.Logger
    ) -> None:
        self._parameters, self._new_blocks, self._metrics, self._logger = parameters, new_blocks, metrics, logger
        self._publishers: dict[str, _Publisher] = {}
        self._by_address: dict[str, _Publisher] = {}
        self._members: object = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_running = self._is_bound = False
        self._log_after = 0.0

    @property
    def subscribers(self) -> int:
        return sum(publisher.is_subscribed for publisher in self._publishers.values()) + self._is_bound

    @property
    def held(self) -> int:
        return sum(publisher.stream.held for publisher in self._publishers.values())

    def blocks_of(self, name: str) -> EngineBlocks | None:
        publisher = self._publishers.get(name)
        return None if publisher is None else publisher.stream.blocks

    async def start(self, endpoints: Callable[[], Iterable[Endpoint]]) -> None:
        """Subscribe and accept connections; raises ConfigurationError if `zmqEndpoint` cannot be bound."""
        self._endpoints, self._loop = endpoints, asyncio.get_running_loop()
        self._context = zmq.asyncio.Context()
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._session = aiohttp.ClientSession()
        self._replays = asyncio.Semaphore(MAX_REPLAYS)
        self._is_running = True
        if self._parameters.zmq_endpoint:
            socket = self._subscriber()
            try:
                is_free = self._bind(socket)
            except ConfigurationError:
                await self.stop()
                raise
            self._spawn(self._accept(socket, is_free), self._tasks)
        self._spawn(self._follow_pool(), self._tasks)

    async def stop(self) -> None:
        if not self._is_running:
            return
        self._is_running = False
        tasks = [*self._tasks, *(task for publisher in self._publishers.values() for task in publisher.tasks)]
        for name in list(self._publishers):
            self.remove(name)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._context.destroy(linger=0)
        await self._session.close()

    def follow(self, members: Iterable[Endpoint]) -> None:
        """Subscribe to these endpoints only; cheap if unchanged."""
        if members is self._members or not self._is_running:
            return
        self._members = members
        wanted = {endpoint.name: endpoint for endpoint in members}
        for name, publisher in list(self._publishers.items()):
            if wanted.get(name) is not publisher.endpoint:
                self.remove(name)
        for name, endpoint in wanted.items():
            if name not in self._publishers:
                self._add(endpoint)

    def remove(self, name: str) -> None:
        publisher = self._publishers.pop(name, None)
        if publisher is None:
            return
        self._members = None
        self._by_address.pop(publisher.endpoint.address, None)
        for task in publisher.tasks:
            task.cancel()
        publisher.stream.blocks.clear()
        self._metrics.forget(publisher.endpoint.address)

    def _add(self, endpoint: Endpoint) -> None:
        pod, metrics = endpoint.address, self._metrics
        stream = KvStream(
            self._new_blocks(endpoint.name),
            lambda number: self._start_replay(publisher, number),
            metrics.applied,
            lambda verdict: metrics.judged(pod, verdict),
        )
        publisher = self._publishers[endpoint.name] = self._by_address[pod] = _Publisher(endpoint, stream)
        self._spawn(self._subscribe(publisher), publisher.tasks)

    async def _follow_pool(self) -> None:
        while True:
            self.follow(self._endpoints())
            await asyncio.sleep(_POOL_SECONDS)

    async def _subscribe(self, publisher: _Publisher) -> None:
        address, publisher.replay_address = await self._addresses(publisher.endpoint)
        if not self._parameters.discover_pods:
            publisher.stream.begin_replay(0)
            return
        pod = publisher.endpoint.address
        try:
            with self._subscriber() as socket, socket.get_monitor_socket(zmq.EVENT_CONNECT_RETRIED) as monitor:
                socket.connect(address)
                publisher.is_subscribed = True
                publisher.stream.begin_replay(0)
                self._spawn(self._count_retries(monitor, pod), publisher.tasks)
                while True:
                    self._receive(publisher, await socket.recv_multipart())
                    await asyncio.sleep(0)  # receiving does not yield while messages are queued
        except zmq.ZMQError as problem:
            publisher.is_subscribed = False
            self._metrics.errors.labels(pod, Operation.CONNECT).inc()
            self._logger.warning("cannot subscribe to %s for KV events of %s: %s", address, publisher.endpoint.name, problem)

    async def _addresses(self, endpoint: Endpoint) -> tuple[str, str]:
        discovery, rank = self._parameters.pod_discovery, _rank(endpoint)
        host = bracketed(endpoint.host)
        events = f"tcp://{host}:{discovery.socket_port + rank}"
        replay = f"tcp://{host}:{discovery.replay_socket_port + rank}" if discovery.replay_socket_port else ""
        if not discovery.ask_servers:
            return events, replay
        source = await find_source(self._session, endpoint, rank)
        if source is None:
            self._metrics.errors.labels(endpoint.address, Operation.ASK).inc()
            return events, replay
        return source.events, source.replay or replay

    async def _count_retries(self, monitor: zmq.asyncio.Socket, pod: str) -> None:
        while True:
            await monitor.recv_multipart()
            self._metrics.reconnections.labels(pod).inc()

    async def _accept(self, socket: zmq.asyncio.Socket, is_bound: bool) -> None:
        with socket:
            while not is_bound:  # after a reload the previous instance may hold the address
                await asyncio.sleep(_POOL_SECONDS)
                is_bound = self._bind(socket)
            self._is_bound = True
            while True:
                self._receive_from_anyone(await socket.recv_multipart())
                await asyncio.sleep(0)

    def _bind(self, socket: zmq.asyncio.Socket) -> bool:
        address = self._parameters.zmq_endpoint
        try:
            socket.bind(address)
        except zmq.ZMQError as problem:
            if problem.errno == errno.EADDRINUSE:
                self._metrics.errors.labels("", Operation.BIND).inc()
                self._logger.warning("zmqEndpoint %s is taken: no KV events until it is free", address)
                return False
            socket.close()
            raise ConfigurationError(f"cannot listen on zmqEndpoint '{address}': {problem}") from problem
        self._logger.info("listening on %s for KV events", address)
        return True

    def _receive_from_anyone(self, frames: Sequence[bytes]) -> None:
        pod, _ = _topic(frames)
        publisher = self._find(pod)
        if publisher is None:  # it may have joined since the pool was last read
            self.follow(self._endpoints())
            publisher = self._find(pod)
        if publisher is None:
            self._bad("unknown-endpoint", pod, "the topic names no endpoint of the pool")
        else:
            self._receive(publisher, frames)

    def _find(self, pod: str) -> _Publisher | None:
        if pod in self._by_address:
            return self._by_address[pod]
        found = [publisher for publisher in self._publishers.values() if publisher.endpoint.host == pod]
        return found[0] if len(found) == 1 else None

    def _receive(self, publisher: _Publisher, frames: Sequence[bytes]) -> None:
        message = self._decoded(publisher, frames)
        if message is not None:
            publisher.stream.published(message)

    def _decoded(self, publisher: _Publisher, frames: Sequence[bytes]) -> Message | None:
        """A malformed message counts as empty, so that it is not taken for a gap."""
        pod = publisher.endpoint.address
        if len(frames) != 3 or len(frames[1]) != 8:
            self._bad("frames", pod, "expected topic, sequence number of 8 bytes, and payload")
            return None
        try:
            batch = decode(frames[2])
        except (msgspec.DecodeError, RecursionError) as problem:
            self._bad("message", pod, str(problem))
            batch = Batch(float("-inf"), ())
        if batch.undecodable:
            self._bad("event", pod, "unknown or malformed events", batch.undecodable)
        return Message(int.from_bytes(frames[1], "big"), batch, _topic(frames)[1])

    def _bad(self, reason: str, pod: str, problem: str, times: int = 1) -> None:
        self._metrics.bad.labels(reason).inc(times)
        now = self._loop.time()
        if now >= self._log_after:
            self._log_after = now + _LOG_SECONDS
            self._logger.warning("skipped KV events of %s: %s; endpick_kv_events_bad_total counts all", pod, problem)

    def _start_replay(self, publisher: _Publisher, number: int) -> bool:
        if not publisher.replay_address or self._loop.time() < publisher.no_replay_before:
            return False
        self._spawn(self._replay(publisher, number), publisher.tasks)
        return True

    async def _replay(self, publisher: _Publisher, number: int) -> None:
        pod, metrics = publisher.endpoint.address, self._metrics
        metrics.replaying.labels(pod).set(1)
        try:
            async with self._replays, asyncio.timeout(REPLAY_SECONDS):
                await self._fetch(publisher, number)
        except (TimeoutError, zmq.ZMQError) as problem:
            is_complete = False
            publisher.no_replay_before = self._loop.time() + REPLAY_PAUSE_SECONDS
            metrics.errors.labels(pod, Operation.REPLAY).inc()
            metrics.failed_replays.labels(pod).inc()
            self._logger.warning(
                "no replay of KV events of %s from %s (%s): its cached blocks are unknown until it reports more; check replaySocketPort",
                publisher.endpoint.name,
                publisher.replay_address,
                str(problem) or "no answer",
            )
        else:
            is_complete = True
            metrics.replays.labels(pod).inc()
            metrics.last_replay.labels(pod).set_to_current_time()
        metrics.replaying.labels(pod).set(0)
        publisher.stream.replay_ended(is_complete)

    async def _fetch(self, publisher: _Publisher, number: int) -> None:
        with self._context.socket(zmq.DEALER) as socket:
            _configure(socket)
            socket.connect(publisher.replay_address)
            await socket.send_multipart([b"", number.to_bytes(8, "big")])
            while True:
                async with asyncio.timeout(REPLAY_IDLE_SECONDS):
                    frames = (await socket.recv_multipart())[-3:]
                if len(frames) == 3 and frames[1] == _END_OF_REPLAY:
                    return
                message = self._decoded(publisher, frames)
                if message is not None:
                    self._metrics.replayed.labels(publisher.endpoint.address).inc()
                    publisher.stream.replayed(message)
                await asyncio.sleep(0)

    def _subscriber(self) -> zmq.asyncio.Socket:
        socket = self._context.socket(zmq.SUB)
        _configure(socket)
        socket.subscribe(self._parameters.topic_filter)
        return socket

    def _spawn(self, work: Coroutine[None, None, None], among: set[asyncio.Task[None]]) -> None:
        task = self._loop.create_task(work)
        among.add(task)
        task.add_done_callback(among.discard)


def _configure(socket: zmq.asyncio.Socket) -> None:
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, _QUEUED_MESSAGES)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)


def _topic(frames: Sequence[bytes]) -> tuple[str, str]:
    """Endpoint and model from `kv@<address>@<model>`, or only an endpoint."""
    topic = frames[0].decode("utf-8", "replace") if frames else ""
    _, _, rest = topic.partition("@")
    pod, separator, model = rest.partition("@")
    return (pod, model) if separator else (topic, "")


def _rank(endpoint: Endpoint) -> int:
    found = _RANK.search(endpoint.name)
    return int(found[1]) if found else 0
