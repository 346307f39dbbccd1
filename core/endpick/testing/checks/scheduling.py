"""Checks of filters, scorers and pickers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeGuard

import numpy as np

from endpick.api import Filter, Picker, Scorer
from endpick.api.endpoints import Endpoints, FloatArray
from endpick.scheduling.scheduler import as_view, validate_subset
from endpick.testing.bench import TYPICAL_SIZE, Bench, Raised, Reported, Scene, benches
from endpick.testing.exercise import scored
from endpick.testing.factories import varied_requests
from endpick.testing.plugin_under_test import Finding, PluginUnderTest, check


@check(Filter, once=True)
def filter_answers(subject: PluginUnderTest) -> Iterator[Finding]:
    """For every request and any amount of reported data, the answer is a mask or a view; it may be empty."""
    for _, scene, answer in _filtered(subject):
        if isinstance(answer, Raised):
            yield Finding(f"`filter` raises {answer}", "answer all False instead: the profile run then fails and the handler decides")
        elif not _is_well_formed(answer, len(scene.endpoints)):
            described = f"{answer.dtype} array of shape {answer.shape}" if isinstance(answer, np.ndarray) else type(answer).__name__
            yield Finding(
                f"`filter` answers {described} for {len(scene.endpoints)} endpoints",
                "answer a boolean array with one entry per endpoint, or a view made with endpoints.where, .only or .take",
            )


@check(Filter, once=True)
def filter_keeps_a_subset(subject: PluginUnderTest) -> Iterator[Finding]:
    """The filter keeps only endpoints it was given, each at most once."""
    for _, scene, answer in _filtered(subject, _narrowed_scenes):
        problem = as_view(scene.endpoints, answer) if isinstance(answer, Endpoints) else None
        if isinstance(problem, str):
            yield Finding(f"`filter` {problem}", "start from `endpoints`, not from endpoints._generation, and keep each once")


@check(Filter, once=True)
def filter_keeps_the_order(subject: PluginUnderTest) -> Iterator[Finding]:
    """Endpoints keep their order."""
    for _, scene, answer in _filtered(subject):
        kept = _kept(scene, answer)
        if kept is not None and not _in_order(scene.endpoints, kept):
            yield Finding("`filter` changes the order of the endpoints", "use endpoints.where(mask); putting the best first is for pickers")


@check(Filter, once=True)
def filter_is_idempotent(subject: PluginUnderTest) -> Iterator[Finding]:
    """Filtering twice keeps the same endpoints: a decision about one does not depend on the others."""
    for bench, scene, answer in _filtered(subject):
        kept = _kept(scene, answer)
        if kept is None or not len(kept):
            continue
        second = Scene(scene.request, kept, scene.state)
        again = _kept(second, _ask_filter(bench, second))
        if again is not None and set(again.members) != set(kept.members):
            yield Finding(
                f"asked about the {len(kept)} endpoints it has just kept, `filter` drops {len(kept) - len(again)} of them",
                "judge each endpoint by itself; to keep the best few, write a scorer or a picker",
            )


def _filter_scenes(bench: Bench) -> Iterator[Scene]:
    for request in varied_requests():
        for reported in Reported:
            yield bench.scene(reported, request=request)
    yield bench.scene(size=1)


def _narrowed_scenes(bench: Bench) -> Iterator[Scene]:
    for request in varied_requests():
        scene = bench.scene(request=request)
        yield from (scene, _every_second(scene))


def _every_second(scene: Scene) -> Scene:
    return Scene(scene.request, scene.endpoints.take(range(1, len(scene.endpoints), 2)), scene.state)


def _filtered(
    subject: PluginUnderTest, scenes: Callable[[Bench], Iterator[Scene]] = _filter_scenes
) -> Iterator[tuple[Bench, Scene, object]]:
    for bench in benches(subject):
        yield from ((bench, scene, _ask_filter(bench, scene)) for scene in scenes(bench))


def _ask_filter(bench: Bench, scene: Scene) -> object:
    return bench.call(bench.plugin_as(Filter).filter, scene.request, scene.endpoints, scene.state)


def _is_well_formed(answer: object, size: int) -> bool:
    if isinstance(answer, np.ndarray):
        is_mask: bool = answer.shape == (size,) and answer.dtype.kind == "b"
        return is_mask
    return isinstance(answer, Endpoints)


def _kept(scene: Scene, answer: object) -> Endpoints | None:
    kept = as_view(scene.endpoints, answer) if isinstance(answer, np.ndarray | Endpoints) else None
    return kept if isinstance(kept, Endpoints) else None


def _in_order(given: Endpoints, kept: Endpoints) -> bool:
    kept_rows = set(kept._row_numbers().tolist())
    in_order: list[int] = [row for row in given._row_numbers().tolist() if row in kept_rows]
    return in_order == list(kept._row_numbers().tolist())


_MANY = 50
_REPEATS = 8


@check(Picker, once=True)
def picker_answers(subject: PluginUnderTest) -> Iterator[Finding]:
    """For every request, and for one candidate or many, the answer is a view of endpoints."""
    for _, answer in _picked(subject):
        if isinstance(answer, Raised):
            yield Finding(f"`pick` raises {answer}", "answer with scored.take(positions), whatever the scores")
        elif not isinstance(answer, Endpoints):
            problem = f"`pick` answers {type(answer).__name__}, not Endpoints"
            yield Finding(problem, "answer with scored.take(positions), also for a single one")


@check(Picker, once=True)
def picker_picks_an_endpoint(subject: PluginUnderTest) -> Iterator[Finding]:
    """At least one endpoint is picked."""
    for scene, answer in _picked(subject):
        if isinstance(answer, Endpoints) and not len(answer):
            problem = f"`pick` picks none of {len(scene.endpoints)} candidates"
            yield Finding(problem, "leaving candidates out is for filters; pick at least one")


@check(Picker, once=True)
def picker_picks_candidates(subject: PluginUnderTest) -> Iterator[Finding]:
    """Only candidates are picked, each at most once."""
    for scene, answer in _picked(subject):
        problem = validate_subset(scene.endpoints, answer) if isinstance(answer, Endpoints) else None
        if problem:
            yield Finding(f"`pick` {problem}", "pick from scored.endpoints with scored.take(positions), each position once")


@check(Picker, once=True)
def picker_is_deterministic_under_a_seed(subject: PluginUnderTest) -> Iterator[Finding]:
    """Two instances with the same seed pick the same endpoints every time."""
    for first, second in zip(benches(subject), benches(subject), strict=True):
        if _picks(first) != _picks(second):
            yield Finding("two instances with the same seed pick different endpoints", "draw from `self.context.random`, not from `random`")


@check(Picker, once=True)
def picker_puts_the_best_first(subject: PluginUnderTest) -> Iterator[Finding]:
    """A picker that does not draw at random puts higher totals first when endpoints differ only in score."""
    for bench, other in zip(benches(subject, seed=1), benches(subject, seed=2), strict=True):
        picks = _picks(bench, Reported.NOTHING)
        if len({*picks, *_picks(other, Reported.NOTHING)}) > 1:
            continue  # random or round robin
        # Totals fall from first to last, so the order of rank is the order of score.
        ranks = [int(name.removeprefix("default/e")) for name in picks[0]]
        if ranks != sorted(ranks) or (ranks and ranks[0] != 0):
            yield Finding(
                f"of candidates rated best to worst it picks number {', '.join(str(rank + 1) for rank in ranks)}, in this order",
                "put the best first: the gateway tries the others only when the first fails",
            )


def _ask_picker(bench: Bench, scene: Scene) -> object:
    return bench.call(bench.plugin_as(Picker).pick, scene.request, scored(scene.endpoints), scene.state)


def _picked(subject: PluginUnderTest) -> Iterator[tuple[Scene, object]]:
    for bench in benches(subject):
        for request in varied_requests():
            scene = bench.scene(request=request)
            for asked in (scene, _every_second(scene), bench.scene(Reported.NOTHING, size=1, request=request)):
                yield asked, _ask_picker(bench, asked)


def _picks(bench: Bench, reported: Reported = Reported.EVERYTHING) -> list[tuple[str, ...]]:
    answers = [_ask_picker(bench, bench.scene(reported, size=_MANY)) for _ in range(_REPEATS)]
    return [tuple(endpoint.name for endpoint in answer) for answer in answers if isinstance(answer, Endpoints)] or [()]


_SCORER_REPEATS = 4


@check(Scorer, once=True)
def scorer_rates_every_endpoint(subject: PluginUnderTest) -> Iterator[Finding]:
    """When every endpoint has reported, the answer has one number per candidate, for every request."""
    for bench in benches(subject):
        for request in varied_requests():
            scene = bench.scene(request=request)
            problem = _malformed(_ask_scorer(bench, scene), len(scene.endpoints))
            if problem:
                yield Finding(f"`score` {problem}", "answer a numpy array of shape (len(endpoints),), in the order of the endpoints")


@check(Scorer, once=True)
def scorer_tolerates_missing_data(subject: PluginUnderTest) -> Iterator[Finding]:
    """Scores are finite even if some or all endpoints have reported nothing."""
    for bench in benches(subject):
        for reported in (Reported.NOTHING, Reported.SOME):
            scene = bench.scene(reported)
            answer = _ask_scorer(bench, scene)
            problem = _malformed(answer, len(scene.endpoints)) or _not_finite(answer)
            if problem and not _malformed(_ask_scorer(bench, bench.scene()), TYPICAL_SIZE):
                yield Finding(
                    f"`score` {problem} when {reported.value}",
                    "give missing data an answer: numbers are NaN and objects None until reported, so use np.nan_to_num or np.fmax",
                )


@check(Scorer, once=True)
def scorer_answers_finite_numbers(subject: PluginUnderTest) -> Iterator[Finding]:
    """No score is NaN or infinite, for plausible data and when every reported number is 0."""
    for bench in benches(subject):
        for reported in (Reported.EVERYTHING, Reported.ZEROS):
            problem = _not_finite(_ask_scorer(bench, bench.scene(reported)))
            if problem:
                yield Finding(f"`score` {problem} when {reported.value}", "look for a division by zero")


@check(Scorer, once=True)
def scorer_stays_in_range(subject: PluginUnderTest) -> Iterator[Finding]:
    """Scores are between 0 and 1 (best): the host clamps others, which hides differences."""
    for bench in benches(subject):
        for reported in Reported:
            for request in varied_requests():
                answer = _ask_scorer(bench, bench.scene(reported, request=request))
                outside = _outside(answer)
                if outside is not None:
                    yield Finding(
                        f"`score` answers {outside:g} when {reported.value}", "scale scores to 0..1; weights belong into the profile"
                    )


@check(Scorer, once=True)
def scorer_follows_the_candidates(subject: PluginUnderTest) -> Iterator[Finding]:
    """Scores follow the order of the candidates, also after filters have dropped or reordered some."""
    for bench, second in zip(benches(subject, seed=1), benches(subject, seed=2), strict=True):
        scene = bench.scene()
        some = _every_second(scene)
        problem = _malformed(_ask_scorer(bench, some), len(some.endpoints))
        if problem and not _malformed(_ask_scorer(bench, scene), len(scene.endpoints)):
            yield Finding(
                f"`score` {problem} after a filter has dropped some",
                "rate `endpoints` as given, not endpoints.pool_members or what was remembered of an earlier request",
            )
        first, other = _ask_scorer(bench, bench.scene()), _ask_scorer(second, second.scene())
        backwards = _ask_scorer(bench, _backwards(bench.scene()))
        if _is_scores(first) and _is_scores(backwards) and _equal(first, other) and not _equal(first[::-1], backwards):
            yield Finding(
                "the same endpoints in reverse order get other scores", "a score belongs to an endpoint, not to its place in the list"
            )


@check(Scorer, once=True)
def scorer_is_deterministic(subject: PluginUnderTest) -> Iterator[Finding]:
    """Two instances with the same seed give the same scores, so simulations and tests are repeatable."""
    for bench, other in zip(benches(subject), benches(subject), strict=True):
        for _ in range(_SCORER_REPEATS):
            first, second = _ask_scorer(bench, bench.scene()), _ask_scorer(other, other.scene())
            if _is_scores(first) and _is_scores(second) and not _equal(first, second):
                yield Finding(
                    "two instances with the same seed give different scores", "draw from `self.context.random`, read `self.context.clock`"
                )


@check(Scorer, once=True)
def scorer_rates_a_single_endpoint(subject: PluginUnderTest) -> Iterator[Finding]:
    """A single candidate is rated like any other, with and without reported data."""
    for bench in benches(subject):
        for reported in (Reported.EVERYTHING, Reported.ZEROS):
            answer = _ask_scorer(bench, bench.scene(reported, size=1))
            problem = _malformed(answer, 1) or _not_finite(answer)
            if problem and not _malformed(_ask_scorer(bench, bench.scene(reported)), TYPICAL_SIZE):
                yield Finding(f"`score` {problem} for a single endpoint", "look for a spread or a deviation that is 0 or NaN then")


def _ask_scorer(bench: Bench, scene: Scene) -> object:
    return bench.call(bench.plugin_as(Scorer).score, scene.request, scene.endpoints, scene.state)


def _backwards(scene: Scene) -> Scene:
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
    if not _is_scores(answer):
        return None
    finite = answer[np.isfinite(answer)]
    wrong = finite[(finite < 0.0) | (finite > 1.0)]
    return float(wrong[np.abs(wrong).argmax()]) if len(wrong) else None


def _equal(left: object, right: object) -> bool:
    return _is_scores(left) and _is_scores(right) and left.shape == right.shape and np.allclose(left, right, rtol=1e-9, equal_nan=True)
