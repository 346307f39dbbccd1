"""Checks of scorers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

import numpy as np

from endpick.api import Scorer
from endpick.api.endpoints import FloatArray
from endpick.testing.bench import TYPICAL_SIZE, Bench, Raised, Reported, Scene, benches
from endpick.testing.check import Finding, check
from endpick.testing.made_up import varied_requests
from endpick.testing.plugin_under_test import PluginUnderTest

_REPEATS = 4


@check(Scorer)
def scorer_rates_every_endpoint(subject: PluginUnderTest) -> Iterator[Finding]:
    """When every endpoint has reported, the answer is an array with one number per candidate, for every request."""
    for bench in benches(subject):
        for request in varied_requests():
            scene = bench.scene(request=request)
            problem = _malformed(ask(bench, scene), len(scene.endpoints))
            if problem:
                yield Finding(f"`score` {problem}", "answer a numpy array of shape (len(endpoints),), in the order of the endpoints")
                return


@check(Scorer)
def scorer_tolerates_missing_data(subject: PluginUnderTest) -> Iterator[Finding]:
    """Endpoints that have reported nothing, all of them or some, get a finite score."""
    for bench in benches(subject):
        for reported in (Reported.NOTHING, Reported.SOME):
            scene = bench.scene(reported)
            answer = ask(bench, scene)
            problem = _malformed(answer, len(scene.endpoints)) or _not_finite(answer)
            if problem and not _malformed(ask(bench, bench.scene()), TYPICAL_SIZE):
                yield Finding(
                    f"`score` {problem} when {reported.value}",
                    "give missing data an answer: numbers are NaN and objects None until reported, so use np.nan_to_num or np.fmax",
                )
                return


@check(Scorer)
def scorer_answers_finite_numbers(subject: PluginUnderTest) -> Iterator[Finding]:
    """No score is NaN or infinite, neither for plausible data nor when every reported number is 0."""
    for bench in benches(subject):
        for reported in (Reported.EVERYTHING, Reported.ZEROS):
            problem = _not_finite(ask(bench, bench.scene(reported)))
            if problem:
                yield Finding(f"`score` {problem} when {reported.value}", "look for a division by zero")
                return


@check(Scorer)
def scorer_stays_in_range(subject: PluginUnderTest) -> Iterator[Finding]:
    """Scores are between 0 and 1, where 1 is best; the host would cut off the rest, and endpoints would look alike."""
    for bench in benches(subject):
        for reported in Reported:
            for request in varied_requests():
                answer = ask(bench, bench.scene(reported, request=request))
                outside = _outside(answer)
                if outside is not None:
                    yield Finding(
                        f"`score` answers {outside:g} when {reported.value}", "scale scores to 0..1; weights belong into the profile"
                    )
                    return


@check(Scorer)
def scorer_follows_the_candidates(subject: PluginUnderTest) -> Iterator[Finding]:
    """Scores belong to the candidates in their order, also when filters have dropped some or the order is another."""
    for bench, twin in zip(benches(subject, seed=1), benches(subject, seed=2), strict=True):
        scene = bench.scene()
        candidates = scene.endpoints
        some = Scene(scene.request, candidates.take(range(1, len(candidates), 2)), scene.state)
        problem = _malformed(ask(bench, some), len(some.endpoints))
        if problem and not _malformed(ask(bench, scene), len(candidates)):
            yield Finding(
                f"`score` {problem} after a filter has dropped some",
                "rate `endpoints` as given, not endpoints.pool_members or what was remembered of an earlier request",
            )
            return
        first, other = ask(bench, bench.scene()), ask(twin, twin.scene())
        backwards = ask(bench, _backwards(bench.scene()))
        if _is_scores(first) and _is_scores(backwards) and _equal(first, other) and not _equal(first[::-1], backwards):
            yield Finding(
                "the same endpoints in reverse order get other scores", "a score belongs to an endpoint, not to its place in the list"
            )
            return


@check(Scorer)
def scorer_is_deterministic(subject: PluginUnderTest) -> Iterator[Finding]:
    """Two instances with the same seed give the same scores: simulations and tests can be repeated."""
    for one, twin in zip(benches(subject), benches(subject), strict=True):
        for _ in range(_REPEATS):
            first, second = ask(one, one.scene()), ask(twin, twin.scene())
            if _is_scores(first) and _is_scores(second) and not _equal(first, second):
                yield Finding(
                    "two instances with the same seed give different scores", "draw from `self.context.random`, read `self.context.clock`"
                )
                return


@check(Scorer)
def scorer_rates_a_single_endpoint(subject: PluginUnderTest) -> Iterator[Finding]:
    """One candidate alone is rated like any other, whether it has reported or not."""
    for bench in benches(subject):
        for reported in (Reported.EVERYTHING, Reported.ZEROS):
            answer = ask(bench, bench.scene(reported, size=1))
            problem = _malformed(answer, 1) or _not_finite(answer)
            if problem and not _malformed(ask(bench, bench.scene(reported)), TYPICAL_SIZE):
                yield Finding(f"`score` {problem} for a single endpoint", "look for a spread or a deviation that is 0 or NaN then")
                return


def ask(bench: Bench, scene: Scene) -> object:
    """What the scorer says."""
    plugin = bench.instance.plugin
    assert isinstance(plugin, Scorer)
    return bench.call(plugin.score, scene.request, scene.endpoints, scene.state)


def _backwards(scene: Scene) -> Scene:
    """The same candidates, last to first."""
    candidates = scene.endpoints
    return Scene(scene.request, candidates.take(range(len(candidates))[::-1]), scene.state)


def _malformed(answer: object, size: int) -> str | None:
    if isinstance(answer, Raised):
        return f"raises {answer}"
    if not isinstance(answer, np.ndarray):
        return f"answers {type(answer).__name__}, not an array"
    if answer.shape != (size,):
        return f"answers {answer.shape} scores for {size} endpoints"
    return None if answer.dtype.kind in "fiub" else f"answers scores of type {answer.dtype}"


def _is_scores(answer: object) -> TypeGuard[FloatArray]:
    return isinstance(answer, np.ndarray) and answer.dtype.kind in "fiub"


def _not_finite(answer: object) -> str | None:
    if not _is_scores(answer) or np.isfinite(answer).all():
        return None
    wrong = answer[~np.isfinite(answer)]
    return f"answers {wrong[0]} for {len(wrong)} of {len(answer)} endpoints"


def _outside(answer: object) -> float | None:
    """A finite score that is not between 0 and 1, the farthest."""
    if not _is_scores(answer):
        return None
    finite = answer[np.isfinite(answer)]
    wrong = finite[(finite < 0.0) | (finite > 1.0)]
    return float(wrong[np.abs(wrong).argmax()]) if len(wrong) else None


def _equal(one: object, other: object) -> bool:
    return _is_scores(one) and _is_scores(other) and one.shape == other.shape and np.allclose(one, other, rtol=1e-9, equal_nan=True)
