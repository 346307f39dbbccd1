"""Checks of parsers, candidate filters, producers, admitters, detectors, observers and profile handlers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from endpick.api import (
    Admitter,
    CandidateFilter,
    DataProducer,
    DisaggregationDecider,
    Parser,
    PreRequest,
    ProfileHandler,
    RequestHeaderProcessor,
    Responder,
    ResponseObserver,
    SaturationDetector,
)
from endpick.api.endpoints import Endpoints
from endpick.api.request import DirectResponse, ParsedRequest, Rejection
from endpick.api.scheduling import ProfileRunResult, SchedulingResult
from endpick.host.methods import FILTER_CANDIDATES
from endpick.scheduling.scheduler import as_view
from endpick.testing.bench import Bench, Raised, Reported, Scene, benches, instances, profiles_of
from endpick.testing.exercise import Answer, walk
from endpick.testing.factories import runs_of, varied_requests
from endpick.testing.plugin_under_test import Finding, PluginUnderTest, check

_BODIES = (b"", b"{", b"null", b"[]", b"{}", b"\xff\xfe\x00", b'{"model": 7}', b'{"messages": "x", "prompt": {}}', b"[" * 100_000)


@check(Parser, once=True)
def parser_refuses_what_it_cannot_read(subject: PluginUnderTest) -> Iterator[Finding]:
    """A malformed body gives a `Rejection` with status 400, not an exception: clients can send anything."""
    for bench, plugin in instances(subject, Parser):
        for path in (*plugin.claims, "/v1/unheard-of"):
            for body in _BODIES:
                answer = bench.call(plugin.parse, path, {}, body)
                if isinstance(answer, ParsedRequest):
                    answer = bench.call(lambda parsed=answer: parsed.prompt.texts)
                    what = "rendering the prompt of"
                else:
                    what = "parsing"
                if isinstance(answer, Raised):
                    yield Finding(f"{what} {body[:40]!r} for {path} raises {answer}", "answer Rejection(message, status=400)")
                if isinstance(answer, Rejection) and answer.status != 400:
                    yield Finding(f"{body[:40]!r} is rejected with status {answer.status}", "the client is to blame: 400")


@check(Parser, once=True)
def parser_finds_no_usage_in_garbage(subject: PluginUnderTest) -> Iterator[Finding]:
    """`usage` returns None for a response body it cannot read, whole or in events."""
    for bench, plugin in instances(subject, Parser):
        for body in (*_BODIES, b"data: {", b"data: [DONE]\n\n", b'{"usage": []}'):
            for streaming in (False, True):
                answer = bench.call(plugin.usage, body, streaming)
                if isinstance(answer, Raised):
                    yield Finding(f"`usage` raises {answer} for {body[:40]!r}", "answer None: model servers, too, can send anything")


@check(Responder)
def responder_answers_or_declines(subject: PluginUnderTest) -> Iterator[Finding]:
    """`respond` returns None or a `DirectResponse`, for any request."""
    advice = "answer None to route the request, DirectResponse(status, body, headers) to answer it"
    yield from _first(subject, "respond", lambda value: value is None or isinstance(value, DirectResponse), advice)


@check(RequestHeaderProcessor)
def header_processor_admits_or_rejects(subject: PluginUnderTest) -> Iterator[Finding]:
    """`request_headers` returns None or a `Rejection`, for any headers."""
    yield from _first(subject, "request_headers", _is_verdict, "answer None to go on, Rejection(message, status) to refuse")


@check(CandidateFilter, once=True)
def candidate_filter_keeps_a_subset(subject: PluginUnderTest) -> Iterator[Finding]:
    """For any amount of reported data, the answer is a mask of the candidates or a view of some of them."""
    for bench, plugin in instances(subject, CandidateFilter):
        for reported in Reported:
            scene = bench.scene(reported)
            answer = bench.call(plugin.filter_candidates, scene.request, scene.endpoints)
            problem: object = f"raises {answer}" if isinstance(answer, Raised) else FILTER_CANDIDATES.complaint(answer)
            if not problem and isinstance(answer, np.ndarray | Endpoints):
                problem = as_view(scene.endpoints, answer)
            if problem and isinstance(problem, str):
                yield Finding(
                    f"`filter_candidates` {problem} when {reported.value}", "answer a boolean array, or a view made with endpoints.where"
                )


@check(SaturationDetector, once=True)
def detector_answers_a_share(subject: PluginUnderTest) -> Iterator[Finding]:
    """Saturation is a finite number of 0 or more, and at least 1 without endpoints."""
    for bench, plugin in instances(subject, SaturationDetector):
        for reported in Reported:
            for endpoints in (bench.scene(reported).endpoints, bench.scene(reported).endpoints.take([])):
                answer = bench.call(plugin.saturation, endpoints)
                problem = _no_share(answer, endpoints)
                if problem:
                    yield Finding(
                        f"`saturation` {problem} for {len(endpoints)} endpoints when {reported.value}", "0 is idle, 1 and above is full"
                    )


@check(DataProducer)
def producer_copes_with_every_request(subject: PluginUnderTest) -> Iterator[Finding]:
    """`produce` does not raise for any request, and returns None: data goes into the state."""
    yield from _first(subject, "produce", lambda value: value is None, "write with state.put and state.put_column, and return nothing")


@check(Admitter)
def admitter_admits_or_rejects(subject: PluginUnderTest) -> Iterator[Finding]:
    """`admit` returns None or a `Rejection`, for any request."""
    yield from _first(subject, "admit", _is_verdict, "answer None to admit, Rejection(message, status) to refuse")


@check(DisaggregationDecider)
def decider_answers_yes_or_no(subject: PluginUnderTest) -> Iterator[Finding]:
    """`disaggregate` returns a bool, for any request and any amount of reported data."""
    yield from _first(subject, "disaggregate", lambda value: isinstance(value, bool | np.bool_), "answer True or False")


@check(PreRequest)
def pre_request_admits_or_rejects(subject: PluginUnderTest) -> Iterator[Finding]:
    """`before_request` returns None, a `Rejection` or a `DirectResponse`, for any decision."""
    advice = "answer None; to add headers, use headers.set"
    yield from _first(subject, "before_request", lambda value: _is_verdict(value) or isinstance(value, DirectResponse), advice)


@check(ResponseObserver)
def observer_copes_with_every_response(subject: PluginUnderTest) -> Iterator[Finding]:
    """The three methods of a response observer never raise."""
    for method in ("response_started", "first_chunk", "response_ended"):
        yield from _first(subject, method, lambda value: not isinstance(value, Raised), "what was left in state.private may be missing")


def _first(subject: PluginUnderTest, method: str, is_right: Callable[[object], bool], advice: str) -> Iterator[Finding]:
    wrong = next((answer for answer in _answers(subject, method) if not is_right(answer.value)), None)
    if wrong is not None:
        problem = f"raises {wrong.value}" if isinstance(wrong.value, Raised) else f"answers {type(wrong.value).__name__}"
        yield Finding(f"`{method}` {problem} for request '{wrong.scene.request.id}'", advice)


def _answers(subject: PluginUnderTest, method: str) -> Iterator[Answer]:
    for bench in benches(subject):
        yield from (answer for answer in walk(bench) if answer.method == method)


def _is_verdict(value: object) -> bool:
    return value is None or isinstance(value, Rejection)


def _no_share(answer: object, endpoints: Endpoints) -> str | None:
    if isinstance(answer, Raised):
        return f"raises {answer}"
    if not isinstance(answer, int | float) or not math.isfinite(answer) or answer < 0:
        return f"answers {answer!r}"
    return f"answers {answer:g}, less than 1," if not len(endpoints) and answer < 1 else None


_LOOP_HELP = "name each profile once, only from `profiles`, and answer () when there is nothing left to run"


@check(ProfileHandler, once=True)
def handler_ends_its_loop(subject: PluginUnderTest) -> Iterator[Finding]:
    """`pick_profiles` names existing profiles, each once, and finally none, whether runs succeed or fail."""
    for bench in benches(subject):
        for scene, failed in _scenes(bench):
            outcome = _loop(bench, scene, failed)
            if isinstance(outcome, str):
                yield Finding(f"`pick_profiles` {outcome}", _LOOP_HELP)


@check(ProfileHandler, once=True)
def handler_decides(subject: PluginUnderTest) -> Iterator[Finding]:
    """`process_results` returns a decision for a profile that picked an endpoint, or the reason why there is none."""
    for bench, plugin in instances(subject, ProfileHandler):
        for scene, failed in _scenes(bench):
            runs = _loop(bench, scene, failed)
            if isinstance(runs, str) or not runs:
                continue
            answer = bench.call(plugin.process_results, scene.request, runs, scene.state)
            problem = _undecided(answer, runs)
            if problem:
                outcomes = ", ".join(f"'{name}' {'failed' if run.picked is None else 'picked'}" for name, run in runs.items())
                yield Finding(
                    f"`process_results` {problem}, where {outcomes}",
                    "answer SchedulingResult(primary, results, destinations), or SchedulingResult.failed(sentence) when there is none",
                )


def _scenes(bench: Bench) -> Iterator[tuple[Scene, frozenset[str]]]:
    profiles = profiles_of(bench)
    outcomes = [frozenset[str](), frozenset(profiles), *(frozenset((name,)) for name in profiles)]
    for request in varied_requests():
        for failed in dict.fromkeys(outcomes):
            yield bench.scene(request=request), failed


def _loop(bench: Bench, scene: Scene, failed: frozenset[str]) -> dict[str, ProfileRunResult] | str:
    plugin, profiles = bench.plugin_as(ProfileHandler), profiles_of(bench)
    runs: dict[str, ProfileRunResult] = {}
    while True:
        answer = bench.call(plugin.pick_profiles, scene.request, profiles, dict(runs), scene.state)
        if isinstance(answer, Raised):
            return f"raises {answer}"
        if isinstance(answer, str) or not isinstance(answer, Sequence):
            return f"answers {type(answer).__name__}, not a sequence of profile names"
        if not answer:
            return runs
        unknown = [name for name in answer if name not in profiles]
        if unknown:
            return f"names a profile that does not exist: '{unknown[0]}', of {', '.join(profiles)}"
        if len(set(answer)) != len(answer) or not runs.keys().isdisjoint(answer):
            return f"names a profile again that has run: {', '.join(answer)}"
        runs |= runs_of(answer, scene.endpoints, failed)


def _undecided(answer: object, runs: dict[str, ProfileRunResult]) -> str | None:
    if isinstance(answer, Raised):
        return f"raises {answer}"
    if not isinstance(answer, SchedulingResult):
        return f"answers {type(answer).__name__}, not a SchedulingResult"
    if answer.failure:
        return None
    primary = runs.get(answer.primary)
    if primary is None or primary.picked is None:
        return f"decides for profile '{answer.primary}', which picked nothing"
    if not answer.destinations or not all(":" in place for place in answer.destinations):
        return f"decides for the destinations {answer.destinations!r}, not for `host:port`"
    return None
