"""Takes an instance through everything the host may ask of it, in the host's order."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

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
from endpick.api.flow_control import (
    DispatchedRequest,
    EvictionFilter,
    EvictionOrderingPolicy,
    FairnessPolicy,
    OrderingPolicy,
    UsageLimitPolicy,
)
from endpick.requests.intake import HeadersForUpstream
from endpick.testing.bench import Bench, Raised, Reported, Scene, profiles_of
from endpick.testing.made_up import runs_of, varied_requests
from endpick.testing.source_runner import run
from endpick.testing.waiting import MadeUpBand, MadeUpFlow, make_waiting

CHAT_PATH = "/v1/chat/completions"
CHAT_BODY = b'{"model": "base", "messages": [{"role": "user", "content": "Say something."}], "stream": true, "max_tokens": 8}'
ANSWER = b'{"model": "base", "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}}'


@dataclass(frozen=True, slots=True)
class Answer:
    """What one method said in one scene; `value` may be `Raised`."""

    method: str
    scene: Scene
    value: object


def walk(bench: Bench, requests: tuple[InferenceRequest, ...] = ()) -> Iterator[Answer]:
    """Every method of the request path, for every kind of request and every degree of reporting; answers as they come.

    Sources are not polled and discoveries not run: `endpick.testing.source_runner` does that.
    """
    for request in requests or varied_requests():
        for reported in Reported:
            scene = bench.scene(reported, request=request)
            yield from (Answer(method, scene, value) for method, value in walk_one(bench, scene))


def walk_one(bench: Bench, scene: Scene) -> Iterator[tuple[str, object]]:
    """One request's way past every method that the instance has."""
    plugin, call = bench.instance.plugin, bench.call
    request, endpoints, state = scene.request, scene.endpoints, scene.state
    if isinstance(plugin, Parser):
        parsed = call(plugin.parse, CHAT_PATH, dict(request.headers), CHAT_BODY)
        yield "parse", parsed
        if not isinstance(parsed, Raised):
            yield "rewrite_model", call(plugin.rewrite_model, CHAT_BODY, parsed, "other")
        yield "usage", call(plugin.usage, ANSWER, False)
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
    yield from _after_the_decision(bench, scene, decision(runs))
    if isinstance(plugin, DataCollector):
        for payload in bench.payloads:
            yield "collect", call(plugin.collect, payload, bench.writer(bench.table.generation.endpoints[0]))


def _while_waiting(bench: Bench, scene: Scene) -> Iterator[tuple[str, object]]:
    """The request waits, alone in its flow beside another, and is evicted after it was sent."""
    plugin, call = bench.instance.plugin, bench.call
    waiting = make_waiting(request=scene.request, enqueued_at=bench.clock.now)
    if isinstance(plugin, OrderingPolicy):
        yield "sort_key", call(plugin.sort_key, waiting)
    if isinstance(plugin, FairnessPolicy):
        band = MadeUpBand(plugin, scene.request.priority, call)
        band.add(make_waiting("another-flow", enqueued_at=bench.clock.now))
        band.add(waiting)
        chosen = band.choose()
        yield "choose", chosen
        if isinstance(chosen, MadeUpFlow):
            band.let_go(chosen)
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
    """As `Bench.call`; an awaitable answer is awaited, in an event loop of its own, unless one runs: then the caller awaits it."""
    answer = bench.call(method, *arguments)
    if not inspect.isawaitable(answer) or asyncio._get_running_loop() is not None:
        return answer

    async def wait() -> object:
        return await answer

    return bench.call(run, wait())


def scored(endpoints: Endpoints) -> ScoredEndpoints:
    """Totals that fall from the first candidate to the last, so far apart that no picker takes them for equal."""
    return ScoredEndpoints(endpoints, np.linspace(1.0, 0.1, len(endpoints)))


def decision(runs: Mapping[str, ProfileRunResult]) -> SchedulingResult:
    """The first profile's pick serves."""
    name, run = next(iter(runs.items()))
    assert run.picked is not None
    return SchedulingResult(name, runs, tuple(endpoint.address for endpoint in run.picked))
