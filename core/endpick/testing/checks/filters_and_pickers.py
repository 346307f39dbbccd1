"""Checks of filters and pickers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from endpick.api import Filter, Picker
from endpick.api.endpoints import Endpoints
from endpick.scheduling.profile import as_view, validate_subset
from endpick.testing.bench import Bench, Raised, Reported, Scene, benches
from endpick.testing.check import Finding, check
from endpick.testing.exercise import scored
from endpick.testing.made_up import varied_requests
from endpick.testing.plugin_under_test import PluginUnderTest


@check(Filter)
def filter_answers(subject: PluginUnderTest) -> Iterator[Finding]:
    """For every request, and however little endpoints have reported, the answer is a mask or a view; keeping none is fine."""
    for bench in benches(subject):
        for scene in scenes(bench):
            answer = ask_filter(bench, scene)
            if isinstance(answer, Raised):
                yield Finding(f"`filter` raises {answer}", "answer all False instead: the profile run then fails and the handler decides")
                return
            if not _is_well_formed(answer, len(scene.endpoints)):
                described = f"{answer.dtype} array of shape {answer.shape}" if isinstance(answer, np.ndarray) else type(answer).__name__
                yield Finding(
                    f"`filter` answers {described} for {len(scene.endpoints)} endpoints",
                    "answer a boolean array with one entry per endpoint, or a view made with endpoints.where, .only or .take",
                )
                return


@check(Filter)
def filter_keeps_a_subset(subject: PluginUnderTest) -> Iterator[Finding]:
    """Only endpoints that the filter was given are kept, each at most once."""
    for bench in benches(subject):
        for scene in narrowed_scenes(bench):
            answer = ask_filter(bench, scene)
            problem = as_view(scene.endpoints, answer) if isinstance(answer, Endpoints) else None
            if isinstance(problem, str):
                yield Finding(f"`filter` {problem}", "start from `endpoints`, not from endpoints._generation, and keep each once")
                return


@check(Filter)
def filter_keeps_the_order(subject: PluginUnderTest) -> Iterator[Finding]:
    """Endpoints stay in the order in which they came."""
    for bench in benches(subject):
        for scene in scenes(bench):
            kept = _kept(bench, scene)
            if kept is not None and not _in_order(scene.endpoints, kept):
                yield Finding(
                    "`filter` changes the order of the endpoints", "use endpoints.where(mask); putting the best first is for pickers"
                )
                return


@check(Filter)
def filter_is_idempotent(subject: PluginUnderTest) -> Iterator[Finding]:
    """What was kept once is kept again: whether an endpoint may serve does not depend on who else may."""
    for bench in benches(subject):
        for scene in scenes(bench):
            kept = _kept(bench, scene)
            if kept is None or not len(kept):
                continue
            again = _kept(bench, Scene(scene.request, kept, scene.state))
            if again is not None and set(again.members) != set(kept.members):
                lost = len(kept) - len(again)
                yield Finding(
                    f"asked about the {len(kept)} endpoints it has just kept, `filter` drops {lost} of them",
                    "judge each endpoint by itself; to keep the best few, write a scorer or a picker",
                )
                return


def scenes(bench: Bench) -> Iterator[Scene]:
    """Every kind of request and every degree of reporting, with eight endpoints and with one."""
    for request in varied_requests():
        for reported in Reported:
            yield bench.scene(reported, request=request)
    yield bench.scene(size=1)


def narrowed_scenes(bench: Bench) -> Iterator[Scene]:
    """Scenes in which an earlier filter has dropped endpoints."""
    for request in varied_requests():
        scene = bench.scene(request=request)
        yield scene
        yield Scene(scene.request, scene.endpoints.take(range(1, len(scene.endpoints), 2)), scene.state)


def ask_filter(bench: Bench, scene: Scene) -> object:
    """What the filter says."""
    plugin = bench.instance.plugin
    assert isinstance(plugin, Filter)
    return bench.call(plugin.filter, scene.request, scene.endpoints, scene.state)


def _is_well_formed(answer: object, size: int) -> bool:
    if isinstance(answer, np.ndarray):
        is_mask: bool = answer.shape == (size,) and answer.dtype.kind == "b"
        return is_mask
    return isinstance(answer, Endpoints)


def _kept(bench: Bench, scene: Scene) -> Endpoints | None:
    """The endpoints kept; None when the answer is none, which other checks say."""
    kept = as_view(scene.endpoints, ask_filter(bench, scene))
    return kept if isinstance(kept, Endpoints) else None


def _in_order(given: Endpoints, kept: Endpoints) -> bool:
    kept_rows = set(kept._row_numbers().tolist())
    in_order: list[int] = [row for row in given._row_numbers().tolist() if row in kept_rows]
    return in_order == list(kept._row_numbers().tolist())


_MANY = 50
_REPEATS = 8


@check(Picker)
def picker_answers(subject: PluginUnderTest) -> Iterator[Finding]:
    """For every request, and for one candidate or many, the answer is a view of endpoints."""
    for bench in benches(subject):
        for scene in _scenes(bench):
            answer = ask_picker(bench, scene)
            if isinstance(answer, Raised):
                yield Finding(f"`pick` raises {answer}", "answer with scored.take(positions), whatever the scores")
                return
            if not isinstance(answer, Endpoints):
                yield Finding(
                    f"`pick` answers {type(answer).__name__}, not Endpoints", "answer with scored.take(positions), also for a single one"
                )
                return


@check(Picker)
def picker_picks_an_endpoint(subject: PluginUnderTest) -> Iterator[Finding]:
    """At least one endpoint is picked."""
    for bench in benches(subject):
        for scene in _scenes(bench):
            answer = ask_picker(bench, scene)
            if isinstance(answer, Endpoints) and not len(answer):
                yield Finding(
                    f"`pick` picks none of {len(scene.endpoints)} candidates", "leaving candidates out is for filters; pick at least one"
                )
                return


@check(Picker)
def picker_picks_candidates(subject: PluginUnderTest) -> Iterator[Finding]:
    """Only candidates are picked, each at most once."""
    for bench in benches(subject):
        for scene in _scenes(bench):
            answer = ask_picker(bench, scene)
            problem = validate_subset(scene.endpoints, answer) if isinstance(answer, Endpoints) else None
            if problem:
                yield Finding(f"`pick` {problem}", "pick from scored.endpoints with scored.take(positions), each position once")
                return


@check(Picker)
def picker_is_deterministic_under_a_seed(subject: PluginUnderTest) -> Iterator[Finding]:
    """Two instances with the same seed pick the same endpoints, again and again."""
    for one, twin in zip(benches(subject), benches(subject), strict=True):
        if _picks(one) != _picks(twin):
            yield Finding("two instances with the same seed pick different endpoints", "draw from `self.context.random`, not from `random`")
            return


@check(Picker)
def picker_puts_the_best_first(subject: PluginUnderTest) -> Iterator[Finding]:
    """When only the scores tell endpoints apart, a picker that leaves nothing to chance puts higher totals first."""
    for one, other in zip(benches(subject, seed=1), benches(subject, seed=2), strict=True):
        picks = _picks(one, Reported.NOTHING)
        if len({*picks, *_picks(other, Reported.NOTHING)}) > 1:
            continue  # it draws lots or takes turns, and the scores are only part of that
        # Totals fall from the first candidate to the last, so names in order of rank are in order of score.
        ranks = [int(name.removeprefix("default/e")) for name in picks[0]]
        if ranks != sorted(ranks) or (ranks and ranks[0] != 0):
            yield Finding(
                f"of candidates rated best to worst it picks number {', '.join(str(rank + 1) for rank in ranks)}, in this order",
                "put the best first: the gateway tries the others only when the first fails",
            )
            return


def ask_picker(bench: Bench, scene: Scene) -> object:
    """What the picker says of candidates whose totals fall from first to last."""
    plugin = bench.instance.plugin
    assert isinstance(plugin, Picker)
    return bench.call(plugin.pick, scene.request, scored(scene.endpoints), scene.state)


def _scenes(bench: Bench) -> Iterator[Scene]:
    for request in varied_requests():
        scene = bench.scene(request=request)
        yield scene
        yield Scene(scene.request, scene.endpoints.take(range(1, len(scene.endpoints), 2)), scene.state)
        yield bench.scene(Reported.NOTHING, size=1, request=request)


def _picks(bench: Bench, reported: Reported = Reported.EVERYTHING) -> list[tuple[str, ...]]:
    answers = [ask_picker(bench, bench.scene(reported, size=_MANY)) for _ in range(_REPEATS)]
    return [tuple(endpoint.name for endpoint in answer) for answer in answers if isinstance(answer, Endpoints)] or [()]
