"""Checks of pickers."""

from __future__ import annotations

from collections.abc import Iterator

from endpick.api.endpoints import Endpoints
from endpick.api.plugin import Kind
from endpick.api.scheduling import Picker
from endpick.scheduling.narrowing import stray
from endpick.testing.bench import Bench, Raised, Reported, Scene, benches
from endpick.testing.check import Finding, check
from endpick.testing.exercise import scored
from endpick.testing.requests import varied_requests
from endpick.testing.subject import Subject

_MANY = 50
_REPEATS = 8


@check(Kind.PICKER)
def picker_answers(subject: Subject) -> Iterator[Finding]:
    """For every request, and for one candidate or many, the answer is a view of endpoints."""
    for bench in benches(subject):
        for scene in _scenes(bench):
            answer = ask(bench, scene)
            if isinstance(answer, Raised):
                yield Finding(f"`pick` raises {answer}", "answer with scored.take(positions), whatever the scores")
                return
            if not isinstance(answer, Endpoints):
                yield Finding(
                    f"`pick` answers {type(answer).__name__}, not Endpoints", "answer with scored.take(positions), also for a single one"
                )
                return


@check(Kind.PICKER)
def picker_picks_somebody(subject: Subject) -> Iterator[Finding]:
    """At least one endpoint is picked."""
    for bench in benches(subject):
        for scene in _scenes(bench):
            answer = ask(bench, scene)
            if isinstance(answer, Endpoints) and not len(answer):
                yield Finding(
                    f"`pick` picks none of {len(scene.endpoints)} candidates", "leaving candidates out is for filters; pick at least one"
                )
                return


@check(Kind.PICKER)
def picker_picks_candidates(subject: Subject) -> Iterator[Finding]:
    """Only candidates are picked, each at most once."""
    for bench in benches(subject):
        for scene in _scenes(bench):
            answer = ask(bench, scene)
            problem = stray(scene.endpoints, answer) if isinstance(answer, Endpoints) else None
            if problem:
                yield Finding(f"`pick` {problem}", "pick from scored.endpoints with scored.take(positions), each position once")
                return


@check(Kind.PICKER)
def picker_is_deterministic_under_a_seed(subject: Subject) -> Iterator[Finding]:
    """Two instances with the same seed pick the same endpoints, again and again."""
    for one, twin in zip(benches(subject), benches(subject), strict=True):
        if _picks(one) != _picks(twin):
            yield Finding("two instances with the same seed pick different endpoints", "draw from `self.context.random`, not from `random`")
            return


@check(Kind.PICKER)
def picker_puts_the_best_first(subject: Subject) -> Iterator[Finding]:
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


def ask(bench: Bench, scene: Scene) -> object:
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
    answers = [ask(bench, bench.scene(reported, size=_MANY)) for _ in range(_REPEATS)]
    return [tuple(endpoint.name for endpoint in answer) for answer in answers if isinstance(answer, Endpoints)] or [()]
