"""Checks of filters."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from endpick.api.endpoints import Endpoints
from endpick.api.plugin import Kind
from endpick.api.scheduling import Filter
from endpick.scheduling.narrowing import narrowed
from endpick.testing.bench import Bench, Raised, Reported, Scene, benches
from endpick.testing.check import Finding, check
from endpick.testing.requests import varied_requests
from endpick.testing.subject import Subject


@check(Kind.FILTER)
def filter_answers(subject: Subject) -> Iterator[Finding]:
    """For every request, and however little endpoints have reported, the answer is a mask or a view; keeping none is fine."""
    for bench in benches(subject):
        for scene in scenes(bench):
            answer = ask(bench, scene)
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


@check(Kind.FILTER)
def filter_keeps_a_subset(subject: Subject) -> Iterator[Finding]:
    """Only endpoints that the filter was given are kept, each at most once."""
    for bench in benches(subject):
        for scene in narrowed_scenes(bench):
            answer = ask(bench, scene)
            problem = narrowed(scene.endpoints, answer) if isinstance(answer, Endpoints) else None
            if isinstance(problem, str):
                yield Finding(f"`filter` {problem}", "start from `endpoints`, not from endpoints.generation, and keep each once")
                return


@check(Kind.FILTER)
def filter_keeps_the_order(subject: Subject) -> Iterator[Finding]:
    """Endpoints stay in the order in which they came."""
    for bench in benches(subject):
        for scene in scenes(bench):
            kept = _kept(bench, scene)
            if kept is not None and not _in_order(scene.endpoints, kept):
                yield Finding(
                    "`filter` changes the order of the endpoints", "use endpoints.where(mask); putting the best first is for pickers"
                )
                return


@check(Kind.FILTER)
def filter_is_idempotent(subject: Subject) -> Iterator[Finding]:
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
    """Scenes in which somebody has dropped endpoints before."""
    for request in varied_requests():
        scene = bench.scene(request=request)
        yield scene
        yield Scene(scene.request, scene.endpoints.take(range(1, len(scene.endpoints), 2)), scene.state)


def ask(bench: Bench, scene: Scene) -> object:
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
    kept = narrowed(scene.endpoints, ask(bench, scene))
    return kept if isinstance(kept, Endpoints) else None


def _in_order(given: Endpoints, kept: Endpoints) -> bool:
    kept_rows = set(kept.rows.tolist())
    in_order: list[int] = [row for row in given.rows.tolist() if row in kept_rows]
    return in_order == list(kept.rows.tolist())
