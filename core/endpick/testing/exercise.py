"""Calls an instance as the host does, and sources against faulty servers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np

from endpick.api import (
    Admitter,
    CandidateFilter,
    DataCollector,
    DataProducer,
    DisaggregationDecider,
    Endpoints,
    Filter,
    InferenceRequest,
    Parser,
    Picker,
    PreRequest,
    ProfileHandler,
    ProfileRunResult,
    RequestHeaderProcessor,
    Responder,
    ResponseEnd,
    ResponseHead,
    ResponseObserver,
    SaturationDetector,
    SchedulingResult,
    ScoredEndpoints,
    Scorer,
    TerminationCause,
    Usage,
)
from endpick.api.datalayer import (
    EndpointChange,
    EndpointEvent,
    EndpointEventSource,
    PollingPoolSource,
    PollingSource,
    PoolSource,
    StreamSource,
)
from endpick.api.discovery import EndpointDiscovery, EndpointRegistry
from endpick.api.endpoint import Endpoint
from endpick.api.flow_control import (
    DispatchedRequest,
    EvictionFilter,
    EvictionOrderingPolicy,
    FairnessPolicy,
    OrderingPolicy,
    UsageLimitPolicy,
)
from endpick.host.failures import PLUGIN_ERRORS
from endpick.requests.headers import HeadersForUpstream
from endpick.testing.bench import Bench, Raised, Reported, Scene, profiles_of
from endpick.testing.factories import FakeBand, FakeFlow, make_waiting, runs_of, varied_requests
from endpick.testing.side_effects import watched

CHAT_PATH = "/v1/chat/completions"
CHAT_BODY = b'{"model": "base", "messages": [{"role": "user", "content": "Say something."}], "stream": true, "max_tokens": 8}'
ANSWER = b'{"model": "base", "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}}'


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a method in a scene; its value may be `Raised`."""

    method: str
    scene: Scene
    value: object


def walk(bench: Bench, requests: tuple[InferenceRequest, ...] = ()) -> Iterator[Answer]:
    """Call every method of the request path, for each request and amount of data."""
    for request in requests or varied_requests():
        for reported in Reported:
            scene = bench.scene(reported, request=request)
            yield from (Answer(method, scene, value) for method, value in walk_scene(bench, scene))


def walk_scene(bench: Bench, scene: Scene) -> Iterator[tuple[str, object]]:
    """Call the methods of the instance in the order of the host; yields the name and answer of each."""
    plugin, call = bench.instance.plugin, bench.call
    request, endpoints, state = scene.request, scene.endpoints, scene.state
    if isinstance(plugin, Parser):
        parsed = call(plugin.parse, CHAT_PATH, dict(request.headers), CHAT_BODY)
        yield "parse", parsed
        if not isinstance(parsed, Raised):
            yield "rewrite_model", call(plugin.rewrite_model, CHAT_BODY, parsed, "other")
            yield "rewrite_priority", call(plugin.rewrite_priority, CHAT_BODY, parsed, 1)
        yield "usage", call(plugin.usage, ANSWER, False)
    if isinstance(plugin, Responder):
        yield "respond", call(plugin.respond, request, endpoints, state)
    if isinstance(plugin, RequestHeaderProcessor):
        yield "request_headers", call(plugin.request_headers, request, state)
    yield from _while_waiting(bench, scene)
    if isinstance(plugin, SaturationDetector):
        yield "saturation", call(plugin.saturation, endpoints)
    if isinstance(plugin, CandidateFilter):
        yield "screen", call(plugin.filter_candidates, request, endpoints)
    if isinstance(plugin, DataProducer):
        yield "produce", finished(bench, plugin.produce, request, endpoints, state)
    if isinstance(plugin, Admitter):
        yield "admit", call(plugin.admit, request, endpoints, state)
    if isinstance(plugin, Filter):
        yield "filter", call(plugin.filter, request, endpoints, state)
    if isinstance(plugin, Scorer):
        yield "score", call(plugin.score, request, endpoints, state)
    if isinstance(plugin, Picker):
        yield "pick", call(plugin.pick, request, scored(endpoints), state)
    if isinstance(plugin, DisaggregationDecider):
        yield "disaggregate", call(plugin.disaggregate, request, endpoints.take([0]), state)
    runs = runs_of(profiles_of(bench), endpoints)
    if isinstance(plugin, ProfileHandler):
        for count in range(len(runs) + 1):
            so_far = dict(islice(runs.items(), count))
            yield "pick_profiles", call(plugin.pick_profiles, request, tuple(runs), so_far, state)
        yield "process_results", call(plugin.process_results, request, runs, state)
    yield from _after_the_decision(bench, scene, _decision(runs))
    if isinstance(plugin, DataCollector):
        for payload in bench.payloads:
            yield "collect", call(plugin.collect, payload, bench.writer(bench.table.generation.endpoints[0]))


def _while_waiting(bench: Bench, scene: Scene) -> Iterator[tuple[str, object]]:
    plugin, call = bench.instance.plugin, bench.call
    waiting = make_waiting(request=scene.request, enqueued_at=bench.clock.now)
    if isinstance(plugin, OrderingPolicy):
        yield "sort_key", call(plugin.sort_key, waiting)
    if isinstance(plugin, FairnessPolicy):
        band = FakeBand(plugin, scene.request.priority, call)
        band.add(make_waiting("another-flow", enqueued_at=bench.clock.now))
        band.add(waiting)
        chosen = band.choose()
        yield "choose", chosen
        if isinstance(chosen, FakeFlow):
            band.dispatch_head(chosen)
    if isinstance(plugin, UsageLimitPolicy):
        yield "ceilings", call(plugin.ceilings, 0.5, (1, 0, -1))
    dispatched = DispatchedRequest(scene.request, scene.endpoints.members[0], bench.clock.now)
    if isinstance(plugin, EvictionFilter):
        yield "is_evictable", call(plugin.is_evictable, dispatched)
    if isinstance(plugin, EvictionOrderingPolicy):
        yield "sort_key", call(plugin.sort_key, dispatched)


def _after_the_decision(bench: Bench, scene: Scene, result: SchedulingResult) -> Iterator[tuple[str, object]]:
    plugin, call, request, state = bench.instance.plugin, bench.call, scene.request, scene.state
    if isinstance(plugin, PreRequest):
        yield "before_request", call(plugin.before_request, request, result, HeadersForUpstream(result.headers), state)
    if isinstance(plugin, ResponseObserver):
        head = ResponseHead(200, {"content-type": "application/json"}, scene.endpoints.members[0])
        yield "response_started", call(plugin.response_started, request, head, state)
        yield "first_chunk", call(plugin.first_chunk, request, state)
        end = ResponseEnd(TerminationCause.NATURAL, 200, Usage(3, 5), 64, 1.5, 0.5)
        yield "response_ended", call(plugin.response_ended, request, end, state)


def finished(bench: Bench, method: Callable[..., object], *arguments: object) -> object:
    """Call a method like `Bench.call`, and await the answer unless an event loop runs."""
    answer = bench.call(method, *arguments)
    if not inspect.isawaitable(answer) or asyncio._get_running_loop() is not None:
        return answer

    async def wait() -> object:
        return await answer

    return bench.call(run, wait())


def scored(endpoints: Endpoints) -> ScoredEndpoints:
    """Return candidates whose totals fall from the first to the last."""
    return ScoredEndpoints(endpoints, np.linspace(1.0, 0.1, len(endpoints)))


def _decision(runs: Mapping[str, ProfileRunResult]) -> SchedulingResult:
    name, run = next(iter(runs.items()))
    assert run.picked is not None
    return SchedulingResult(name, runs, tuple(endpoint.address for endpoint in run.picked))


LONGEST_SECONDS = 0.25

CANCEL_SECONDS = 1.0


class IgnoredCancellation(Exception):  # noqa: N818 - an outcome, not an accident
    """Raised for a plugin that keeps running after its cancellation."""


@asynccontextmanager
async def started(bench: Bench) -> AsyncIterator[None]:
    """Start the instance, and stop it when the block ends."""
    await bench.instance.plugin.start()
    try:
        yield
    finally:
        await bench.instance.plugin.stop()


async def payloads_from(bench: Bench, endpoint: Endpoint) -> list[object] | Raised:
    """Return the payloads of a source for one endpoint, or its first exception."""
    plugin = bench.instance.plugin
    found: list[object] = []
    if isinstance(plugin, PollingSource | PollingPoolSource):
        poll = plugin.poll(endpoint) if isinstance(plugin, PollingSource) else plugin.poll_pool()
        payload = await _run_briefly(bench, poll)
        found = [payload] if payload is not None else []
    elif isinstance(plugin, StreamSource | PoolSource):
        watch = plugin.watch(endpoint, found.append) if isinstance(plugin, StreamSource) else plugin.watch_pool(found.append)
        outcome = await _run_briefly(bench, watch)
        found += [outcome] if isinstance(outcome, Raised) else []
    elif isinstance(plugin, EndpointEventSource):
        payloads = [bench.call(plugin.notify, EndpointEvent(change, endpoint)) for change in EndpointChange]
        found.extend(payload for payload in payloads if payload is not None)
    return next((payload for payload in found if isinstance(payload, Raised)), None) or found


async def run_discovery(bench: Bench, registry: EndpointRegistry) -> object:
    """Run a discovery for a moment; returns None or `Raised`."""
    return await _run_briefly(bench, bench.plugin_as(EndpointDiscovery).run(registry))


async def _run_briefly(bench: Bench, work: Awaitable[object]) -> object:
    """Returns the result, `Raised`, or None if cancelled after a moment. Raises IgnoredCancellation."""

    async def guarded() -> object:
        try:
            return await work
        except PLUGIN_ERRORS as problem:  # an event loop would let SystemExit end the process
            return Raised(problem)

    with watched(bench.watch):
        task = asyncio.ensure_future(guarded())
    done, _ = await asyncio.wait({task}, timeout=LONGEST_SECONDS)
    if not done:
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=CANCEL_SECONDS)
    if not done:
        raise IgnoredCancellation
    return None if task.cancelled() else task.result()


LOOPBACK = "127.0.0.1"

ANSWERS: dict[str, bytes] = {
    "an empty page": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "garbage": b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n\x00\xff{{\xfe\n",
    "status 500": b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\noops",
    "no HTTP": b"SSH-2.0-OpenSSH_9.9\r\n",
    "half an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
}

_LOOP_ITERATIONS = 10
_KEEPS_OPEN = ("an empty page", "garbage", "status 500")


@asynccontextmanager
async def answering(kind: str) -> AsyncIterator[Endpoint]:
    """Yield an endpoint whose server sends this response of `ANSWERS`."""
    open_connections: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.add(writer)
        try:
            while await _request_came(reader):
                writer.write(ANSWERS[kind])
                await writer.drain()
                if kind not in _KEEPS_OPEN:
                    break
        except ConnectionError:
            return  # clients may disconnect
        finally:
            open_connections.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0)
    try:
        yield Endpoint("default/server", LOOPBACK, server.sockets[0].getsockname()[1])
    finally:
        await _settle()  # accept pending connections first, so they can be closed
        server.close()
        for writer in tuple(open_connections):
            writer.close()
        await server.wait_closed()
        await _settle()


@asynccontextmanager
async def no_server() -> AsyncIterator[Endpoint]:
    """Yield an endpoint whose port is closed."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), LOOPBACK, 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    yield Endpoint("default/no-server", LOOPBACK, port)


async def _settle() -> None:
    for _ in range(_LOOP_ITERATIONS):
        await asyncio.sleep(0)


async def _request_came(reader: asyncio.StreamReader) -> bool:
    try:
        await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return False
    return True


T = TypeVar("T")

GRACE_SECONDS = 0.5


def run(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine like `asyncio.run`, without waiting for tasks that ignore their cancellation."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _context: None)  # leftovers are reported as findings
    try:
        return loop.run_until_complete(work)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=GRACE_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
