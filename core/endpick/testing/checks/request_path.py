"""Checks of the kinds around scheduling: parsers, screeners, producers, admitters, detectors and observers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from endpick.api.endpoints import Endpoints
from endpick.api.plugin import Kind
from endpick.api.requests import ParsedRequest, Parser, Rejection, SaturationDetector, Screener
from endpick.scheduling.narrowing import narrowed
from endpick.testing.bench import Raised, Reported, benches
from endpick.testing.check import Finding, check
from endpick.testing.exercise import Answer, walk
from endpick.testing.subject import Subject

_BODIES = (b"", b"{", b"null", b"[]", b"{}", b"\xff\xfe\x00", b'{"model": 7}', b'{"messages": "x", "prompt": {}}', b"[" * 100_000)


@check(Kind.PARSER)
def parser_refuses_what_it_cannot_read(subject: Subject) -> Iterator[Finding]:
    """A malformed body is a `Rejection` with status 400, never an exception: clients can send anything."""
    for bench in benches(subject):
        plugin = bench.instance.plugin
        assert isinstance(plugin, Parser)
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
                    return
                if isinstance(answer, Rejection) and answer.status != 400:
                    yield Finding(f"{body[:40]!r} is rejected with status {answer.status}", "the client is to blame: 400")
                    return


@check(Kind.PARSER)
def parser_finds_no_usage_in_garbage(subject: Subject) -> Iterator[Finding]:
    """`usage` answers None for a response body it cannot read, whole or in events."""
    for bench in benches(subject):
        plugin = bench.instance.plugin
        assert isinstance(plugin, Parser)
        for body in (*_BODIES, b"data: {", b"data: [DONE]\n\n", b'{"usage": []}'):
            for streaming in (False, True):
                answer = bench.call(plugin.usage, body, streaming)
                if isinstance(answer, Raised):
                    yield Finding(f"`usage` raises {answer} for {body[:40]!r}", "answer None: model servers, too, can send anything")
                    return


@check(Kind.SCREENER)
def screener_keeps_a_subset(subject: Subject) -> Iterator[Finding]:
    """However little endpoints have reported, the answer is a mask for the candidates or a view of some of them."""
    for bench in benches(subject):
        plugin = bench.instance.plugin
        assert isinstance(plugin, Screener)
        for reported in Reported:
            scene = bench.scene(reported)
            answer = bench.call(plugin.screen, scene.request, scene.endpoints)
            problem = f"raises {answer}" if isinstance(answer, Raised) else narrowed(scene.endpoints, answer)
            if isinstance(problem, str):
                yield Finding(f"`screen` {problem} when {reported.value}", "answer a boolean array, or a view made with endpoints.where")
                return


@check(Kind.SATURATION_DETECTOR)
def detector_answers_a_share(subject: Subject) -> Iterator[Finding]:
    """Saturation is a finite number of 0 or more, and at least 1 when there is no endpoint at all."""
    for bench in benches(subject):
        plugin = bench.instance.plugin
        assert isinstance(plugin, SaturationDetector)
        for reported in Reported:
            for endpoints in (bench.scene(reported).endpoints, bench.scene(reported).endpoints.take([])):
                answer = bench.call(plugin.saturation, endpoints)
                problem = _no_share(answer, endpoints)
                if problem:
                    yield Finding(
                        f"`saturation` {problem} for {len(endpoints)} endpoints when {reported.value}", "0 is idle, 1 and above is full"
                    )
                    return


@check(Kind.DATA_PRODUCER)
def producer_copes_with_every_request(subject: Subject) -> Iterator[Finding]:
    """`produce` never raises, whatever the request, and answers nothing: data goes into the state."""
    yield from _first(subject, "produce", lambda value: value is None, "write with state.put and state.put_column, and return nothing")


@check(Kind.ADMITTER)
def admitter_admits_or_rejects(subject: Subject) -> Iterator[Finding]:
    """`admit` answers None or a `Rejection`, whatever the request."""
    yield from _first(subject, "admit", _is_verdict, "answer None to admit, Rejection(message, status) to refuse")


@check(Kind.PRE_REQUEST)
def pre_request_admits_or_rejects(subject: Subject) -> Iterator[Finding]:
    """`before_request` answers None or a `Rejection`, whatever was decided."""
    yield from _first(subject, "before_request", _is_verdict, "answer None; to add headers, use headers.set")


@check(Kind.RESPONSE_OBSERVER)
def observer_copes_with_every_response(subject: Subject) -> Iterator[Finding]:
    """The three methods of a response observer never raise."""
    for method in ("response_started", "first_chunk", "response_ended"):
        yield from _first(subject, method, lambda value: not isinstance(value, Raised), "what was left in state.private may be missing")


def _first(subject: Subject, method: str, is_right: Callable[[object], bool], advice: str) -> Iterator[Finding]:
    """A finding for the first answer that is not right."""
    wrong = next((answer for answer in _answers(subject, method) if not is_right(answer.value)), None)
    if wrong is not None:
        said = f"raises {wrong.value}" if isinstance(wrong.value, Raised) else f"answers {type(wrong.value).__name__}"
        yield Finding(f"`{method}` {said} for request '{wrong.scene.request.id}'", advice)


def _answers(subject: Subject, method: str) -> Iterator[Answer]:
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
