"""Listens to the publishers of KV events: dials those of the pool's endpoints, waits for those that dial, and fetches what was missed."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

from endpick.api import ConfigurationError, Endpoint
from endpick_builtin.collection.page_limits import service_size
from endpick_builtin.producers.precise.engine_blocks import EngineBlocks
from endpick_builtin.producers.precise.event_sources import EventSources
from endpick_builtin.producers.precise.kv_events import Batch, TooManyEventsError
from endpick_builtin.producers.precise.kv_replay import fetch
from endpick_builtin.producers.precise.kv_sockets import Sockets, Subscriber
from endpick_builtin.producers.precise.kv_stream import KvStream, Message, Room
from endpick_builtin.producers.precise.kv_turns import Turns
from endpick_builtin.producers.precise.kv_zmtp import Frames
from endpick_builtin.producers.precise.limits import LONG_MESSAGE, MANY_EVENTS, MANY_REPLAYS, MANY_SOCKETS
from endpick_builtin.producers.precise.metrics import KvMetrics, Operation
from endpick_builtin.producers.precise.parameters import KvEventsParameters

REPLAY_SECONDS = 120.0
REPLAY_IDLE_SECONDS = 2.0
REPLAY_PAUSE_SECONDS = 30.0
_LOOK_SECONDS = 1.0
_AT_ONCE = 16
"""Endpoints that are listened to from now on, or no longer, before everything else has a turn."""
_CHANGE_SECONDS = 0.005
_LONGEST_TOPIC = 2048
"""Bytes. What it names is remembered."""
_REPLAYED_AT_ONCE = 32
"""Messages that a replay brought and that are still to be followed."""
_RANK = re.compile(r"-rank-(\d{1,3})$")


@dataclass(slots=True, eq=False)
class _Publisher:
    """One endpoint's."""

    endpoint: Endpoint
    stream: KvStream
    subscriber: Subscriber | None = None
    replay_address: str = ""
    may_replay_at: float = 0.0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class KvIntake:
    """All publishers of one index. Everything runs on the event loop, from `start` to `stop`."""

    def __init__(
        self,
        parameters: KvEventsParameters,
        blocks: Callable[[str], EngineBlocks],
        metrics: Callable[[], KvMetrics],
        logger: logging.Logger,
    ) -> None:
        """`blocks` makes what an endpoint's events are applied to; `metrics` is asked for only later."""
        # Needs an extra that only configurations with KV events do.
        from endpick_builtin.producers.precise.kv_wire import WireReader  # noqa: PLC0415

        self._parameters, self._blocks, self._find_metrics, self._logger = parameters, blocks, metrics, logger
        self._wire = WireReader(lambda reason: self._metrics.bad.labels(reason).inc(), parameters.max_events)
        self._turns = Turns()
        self._room = Room(parameters.max_held_bytes)
        self._publishers: dict[str, _Publisher] = {}
        self._by_address: dict[str, _Publisher] = {}
        self._members: object = None
        self._joining: deque[Endpoint] = deque()
        """Endpoints that are not listened to yet: thousands may join at once."""
        self._leaving: deque[str] = deque()
        self._changing: asyncio.TimerHandle | None = None
        self._central: Subscriber | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = False

    @property
    def subscribers(self) -> int:
        """Publishers dialled, and one for those that dial."""
        return sum(one.subscriber is not None for one in self._publishers.values()) + (self._central is not None)

    @property
    def waiting(self) -> int:
        """Messages that wait until those before them have been fetched."""
        return sum(one.stream.waiting for one in self._publishers.values())

    def blocks_of(self, name: str) -> EngineBlocks | None:
        """What an endpoint's events have said; None for an unknown one."""
        publisher = self._publishers.get(name)
        return None if publisher is None else publisher.stream.blocks

    def all_blocks(self) -> list[EngineBlocks]:
        """Those of every endpoint."""
        return [publisher.stream.blocks for publisher in self._publishers.values()]

    async def start(self, endpoints: Callable[[], Iterable[Endpoint]]) -> None:
        """Listen; `endpoints` gives those of the pool at any time.

        Raises:
            ConfigurationError: `zmqEndpoint` cannot be listened on.
        """
        self._endpoints = endpoints
        self._metrics, self._loop = self._find_metrics(), asyncio.get_running_loop()
        self._sources = EventSources(self._metrics.limits, service_size(self._parameters.pod_discovery.max_answer_bytes))
        self._replays = asyncio.Semaphore(self._parameters.max_replays)
        self._sockets = Sockets(self._parameters.max_sockets, self._parameters.max_message_bytes)
        self._running = True
        if self._parameters.zmq_endpoint:
            topic = self._parameters.topic_filter
            self._central = Subscriber(self._sockets, topic, self._turns, self._from_anyone, lambda: None, self._cut_off_one_that_dialled)
            if not self._bind(self._central):
                self._spawn(self._bind_later(self._central), self._tasks)
        self._spawn(self._follow_pool(), self._tasks)

    async def stop(self) -> None:
        """Listen no more."""
        if not self._running:
            return
        self._running = False
        if self._changing is not None:
            self._changing.cancel()
        for count, name in enumerate(list(self._publishers), 1):
            self._forget(name)
            if not count % _AT_ONCE:
                await asyncio.sleep(0)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._central is not None:
            self._central.close()
        self._turns.close()
        await self._sources.close()

    def follow(self, members: Iterable[Endpoint]) -> None:
        """Listen to the publishers of these endpoints, and to no others; cheap while `members` is the same object."""
        if members is self._members or not self._running:
            return
        self._members = members
        wanted = {one.name: one for one in members}
        self._leaving = deque(name for name in self._publishers if name not in wanted)
        self._joining = deque(endpoint for name, endpoint in wanted.items() if not self._is_followed(name, endpoint))
        if self._changing is None:
            self._change_some()

    def _is_followed(self, name: str, endpoint: Endpoint) -> bool:
        publisher = self._publishers.get(name)
        return publisher is not None and publisher.endpoint is endpoint

    def _change_some(self) -> None:
        """Some at a time; the others when requests have had their turns."""
        is_unfinished = len(self._joining) > _AT_ONCE or len(self._leaving) > _AT_ONCE
        self._changing = self._loop.call_later(_CHANGE_SECONDS, self._change_some) if is_unfinished else None
        for _ in range(min(_AT_ONCE, len(self._leaving))):
            self._forget(self._leaving.popleft())
        for _ in range(min(_AT_ONCE, len(self._joining))):
            endpoint = self._joining.popleft()
            self._forget(endpoint.name)
            self._add(endpoint)

    def remove(self, name: str) -> None:
        """Forget an endpoint and what it held."""
        if self._forget(name):
            self._members = None

    def _forget(self, name: str) -> bool:
        publisher = self._publishers.pop(name, None)
        if publisher is None:
            return False
        self._by_address.pop(publisher.endpoint.address, None)
        if publisher.subscriber is not None:
            publisher.subscriber.close()
        for task in publisher.tasks:
            task.cancel()
        publisher.stream.close()
        self._turns.join(publisher.stream.work())
        self._metrics.forget(publisher.endpoint.address)
        return True

    def _add(self, endpoint: Endpoint) -> None:
        pod, metrics = endpoint.address, self._metrics
        stream = KvStream(
            self._blocks(endpoint.name),
            lambda number: self._begin_replay(publisher, number),
            metrics.applied,
            lambda verdict: metrics.judged(pod, verdict),
            lambda limit: metrics.limits.acted(limit, about=endpoint.name),
            self._room,
            self._parameters.max_held_messages,
        )
        publisher = self._publishers[endpoint.name] = self._by_address[pod] = _Publisher(endpoint, stream)
        discovery = self._parameters.pod_discovery
        rank = _rank(endpoint)
        if discovery.replay_socket_port:
            publisher.replay_address = _tcp(endpoint, discovery.replay_socket_port + rank)
        if discovery.ask_servers:
            self._spawn(self._ask(publisher, rank), publisher.tasks)
        else:
            self._listen(publisher, _tcp(endpoint, discovery.socket_port + rank))

    async def _ask(self, publisher: _Publisher, rank: int) -> None:
        """Learn both addresses from the server; where it does not say, those of the parameters hold."""
        source = await self._sources.find(publisher.endpoint, rank)
        if source is None:
            self._metrics.errors.labels(publisher.endpoint.address, Operation.ASK).inc()
        elif source.replay:
            publisher.replay_address = source.replay
        fallback = _tcp(publisher.endpoint, self._parameters.pod_discovery.socket_port + rank)
        self._listen(publisher, source.events if source is not None else fallback)

    def _listen(self, publisher: _Publisher, address: str) -> None:
        if self._parameters.discover_pods:
            try:
                publisher.subscriber = self._dialled(publisher, address)
            except OSError as problem:
                self._metrics.errors.labels(publisher.endpoint.address, Operation.CONNECT).inc()
                if problem.errno == errno.EMFILE:
                    self._metrics.limits.acted(MANY_SOCKETS, about=publisher.endpoint.name)
                else:
                    self._logger.warning("cannot dial %s for KV events of %s: %s", address, publisher.endpoint.name, problem)
        publisher.stream.begin_replay(0)

    def _dialled(self, publisher: _Publisher, address: str) -> Subscriber:
        """Raises OSError: the address is none, or there are no sockets left."""
        metrics, name = self._metrics, publisher.endpoint.name
        subscriber = Subscriber(
            self._sockets,
            self._parameters.topic_filter,
            self._turns,
            lambda frames: self._received(publisher, frames),
            metrics.reconnections.labels(publisher.endpoint.address).inc,
            lambda: metrics.limits.acted(LONG_MESSAGE, about=name),
        )
        try:
            subscriber.connect(address)
        except OSError:
            subscriber.close()
            raise
        return subscriber

    def _from_anyone(self, frames: Frames) -> Iterator[None]:
        """A message of a publisher that dialled: its topic says whose it is."""
        pod, _ = _topic(frames)
        publisher = self._by_address.get(pod) or self._only_one_at(pod)
        if publisher is None:  # It may have joined since the pool was last looked at.
            self.follow(self._endpoints())
            publisher = self._by_address.get(pod) or self._only_one_at(pod)
        if publisher is None:
            self._metrics.bad.labels("unknown-endpoint").inc()
        else:
            yield from self._received(publisher, frames)

    def _only_one_at(self, host: str) -> _Publisher | None:
        """Some publishers name their host alone, which is enough where one endpoint has it."""
        found = [one for one in self._publishers.values() if one.endpoint.host == host]
        return found[0] if len(found) == 1 else None

    def _received(self, publisher: _Publisher, frames: Frames) -> Iterator[None]:
        message = self._read(frames)
        if message is not None:
            publisher.stream.message(message)
            yield from publisher.stream.work()

    def _read(self, frames: Frames) -> Message | None:
        if len(frames) != 3 or len(frames[1]) != 8 or len(frames[0]) > _LONGEST_TOPIC:
            self._metrics.bad.labels("frames").inc()
            return None
        try:
            batch = self._wire.read(frames[2])
        except self._wire.problems as problem:
            if isinstance(problem, TooManyEventsError):
                self._metrics.limits.acted(MANY_EVENTS, about=_topic(frames)[0])
            self._metrics.bad.labels("garbage").inc()
            batch = Batch(float("-inf"), ())
        return Message(int.from_bytes(frames[1], "big"), batch, _topic(frames)[1], len(frames[2]))

    def _begin_replay(self, publisher: _Publisher, number: int) -> bool:
        if not publisher.replay_address or not self._running or self._loop.time() < publisher.may_replay_at:
            return False
        self._spawn(self._replay(publisher, number), publisher.tasks)
        return True

    async def _replay(self, publisher: _Publisher, number: int) -> None:
        pod, stream, complete = publisher.endpoint.address, publisher.stream, False
        self._metrics.replaying.labels(pod).set(1)
        if self._replays.locked():
            self._metrics.limits.acted(MANY_REPLAYS, about=publisher.endpoint.name)
        try:
            kept = fetch(self._sockets, publisher.replay_address, number, REPLAY_IDLE_SECONDS)
            async with asyncio.timeout(REPLAY_SECONDS), self._replays, aclosing(kept):
                async for frames in kept:
                    message = self._read(frames)
                    if message is not None:
                        self._metrics.replayed.labels(pod).inc()
                        stream.replayed(message)
                    if stream.behind >= _REPLAYED_AT_ONCE:
                        await self._turns.finish(stream.work())
            complete = True
        except (TimeoutError, OSError) as problem:
            self._metrics.errors.labels(pod, Operation.REPLAY).inc()
            self._logger.warning(
                "no replay of KV events of %s from %s (%s): what it holds is unknown until it says more; check replaySocketPort",
                publisher.endpoint.name,
                publisher.replay_address,
                str(problem) or "no answer",
            )
        if complete:
            self._metrics.replays.labels(pod).inc()
            self._metrics.last_replay.labels(pod).set_to_current_time()
        else:
            self._metrics.failed_replays.labels(pod).inc()
            publisher.may_replay_at = self._loop.time() + REPLAY_PAUSE_SECONDS
        self._metrics.replaying.labels(pod).set(0)
        stream.replay_ended(complete)
        await self._turns.finish(stream.work())

    def _cut_off_one_that_dialled(self) -> None:
        self._metrics.limits.acted(LONG_MESSAGE, about=self._parameters.zmq_endpoint)

    def _bind(self, central: Subscriber) -> bool:
        address = self._parameters.zmq_endpoint
        try:
            self._logger.info("listening on %s for KV events", central.bind(address))
        except OSError as problem:
            if problem.errno == errno.EADDRINUSE:
                self._metrics.errors.labels("", Operation.BIND).inc()
                self._logger.warning("zmqEndpoint %s is taken: no KV events until it is free", address)
                return False
            self._running = False
            central.close()
            raise ConfigurationError(f"cannot listen on zmqEndpoint '{address}': {problem}") from problem
        return True

    async def _bind_later(self, central: Subscriber) -> None:
        """A configuration that replaces another one with the same address gets it when the other has ended."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._bind(central):
                return

    async def _follow_pool(self) -> None:
        while True:
            self.follow(self._endpoints())
            await asyncio.sleep(_LOOK_SECONDS)

    def _spawn(self, work: Coroutine[None, None, None], among: set[asyncio.Task[None]]) -> None:
        task = self._loop.create_task(work)
        among.add(task)
        task.add_done_callback(among.discard)


def _topic(frames: Frames) -> tuple[str, str]:
    """Whose message it is and of which model, from `kv@<address>@<model>`; any other topic names the endpoint alone."""
    topic = frames[0].decode("utf-8", "replace") if frames else ""
    _, _, rest = topic.partition("@")
    pod, separator, model = rest.partition("@")
    return (pod, model) if separator else (topic, "")


def _rank(endpoint: Endpoint) -> int:
    """Which of its pod's engines an endpoint is, from its name."""
    found = _RANK.search(endpoint.name)
    return int(found[1]) if found else 0


def _tcp(endpoint: Endpoint, port: int) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"tcp://{host}:{port}"
