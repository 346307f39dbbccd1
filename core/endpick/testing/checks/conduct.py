"""Checks of how a plugin behaves towards the host and the other plugins, whatever it is for."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import thread_time

import numpy as np

from endpick.api import Endpoints, Filter, Picker, Scorer, Screener
from endpick.api.endpoints import Column, Generation
from endpick.api.plugin import Kind
from endpick.testing.bench import Bench, Scene, benches
from endpick.testing.check import Finding, check
from endpick.testing.exercise import scored, walk_one
from endpick.testing.pools import same_values
from endpick.testing.requests import varied_requests
from endpick.testing.subject import Subject

MANY_ENDPOINTS = 10_000
BUDGET_IN_LOOPS = 50
"""How many times longer than a plain Python loop over the endpoints a plugin may take; numpy takes a hundredth of such a loop."""
_ATTEMPTS = 3


@check()
def leaves_its_inputs_alone(subject: Subject) -> Iterator[Finding]:
    """Request, endpoints, columns and scores are as they were after the plugin has seen them: others see them too."""
    for bench in benches(subject):
        for request in varied_requests():
            scene = bench.scene(request=request)
            before = _Snapshot.of(scene)
            for method, _ in walk_one(bench, scene):
                changed = before.differs(scene)
                if changed:
                    yield Finding(
                        f"`{method}` changes {changed}", "work on a copy: `column.copy()`, `dict(request.headers)`, `sorted(...)`"
                    )
                    return


@check(Kind.PICKER)
def picker_leaves_scores_alone(subject: Subject) -> Iterator[Finding]:
    """The totals a picker is given are as they were afterwards: decision records show them."""
    for bench in benches(subject):
        plugin, scene = bench.instance.plugin, bench.scene()
        assert isinstance(plugin, Picker)
        totals = scored(scene.endpoints)
        before = totals.scores.copy()
        bench.call(plugin.pick, scene.request, totals, scene.state)
        if not np.array_equal(before, totals.scores):
            yield Finding("`pick` changes the totals it is given", "work on a copy, for example np.argsort(-scored.scores)")
            return


@check()
def blocks_nobody(subject: Subject) -> Iterator[Finding]:
    """Nothing on the request path or in a collector opens files, blocking connections or processes, resolves names or sleeps."""
    found: dict[str, None] = {}
    for bench in benches(subject):
        for request in varied_requests():
            for method, _ in walk_one(bench, bench.scene(request=request)):
                found.update({f"`{method}` {blocking}": None for blocking in bench.watch.found})
                bench.watch.found.clear()
    for deed in found:
        yield Finding(deed, "do it in `start`, in a data source, or in a thread with `asyncio.to_thread`; every request waits for it here")


@check(Kind.FILTER, Kind.SCORER, Kind.PICKER, Kind.SCREENER)
def handles_ten_thousand_endpoints(subject: Subject) -> Iterator[Finding]:
    """With ten thousand endpoints it takes no longer than fifty plain Python loops over them."""
    for bench in benches(subject):
        scene = bench.scene(size=MANY_ENDPOINTS)
        budget = BUDGET_IN_LOOPS * _loop_seconds(scene.endpoints)
        seconds = _best_of(bench, scene, budget)
        if seconds > budget:
            yield Finding(
                f"it takes {seconds / budget * BUDGET_IN_LOOPS:.0f} times as long as a loop over {MANY_ENDPOINTS} endpoints",
                "work on whole columns with numpy, and do not go through all endpoints for each endpoint",
            )
            return


@check()
def takes_leave_of_any_endpoint(subject: Subject) -> Iterator[Finding]:
    """`endpoint_removed` accepts every name, also of an endpoint the plugin has never met, and twice."""
    for bench in benches(subject):
        for name in ("default/e0", "default/e0", "nobody/knows-it"):
            answer = bench.call(bench.instance.plugin.endpoint_removed, name)
            if answer is not None:
                yield Finding(
                    f"`endpoint_removed('{name}')` comes to {answer}", "forget the name if it is known: `self._learnt.pop(name, None)`"
                )
                return


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What was given to a plugin, copied."""

    request: tuple[object, ...]
    members: tuple[object, ...]
    columns: Mapping[str, Column]

    @classmethod
    def of(cls, scene: Scene) -> _Snapshot:
        generation = scene.endpoints.generation
        columns = {name: Column(column.values.copy(), column.written_at.copy()) for name, column in generation.columns.items()}
        return cls(_request_facts(scene), _endpoint_facts(generation), columns)

    def differs(self, scene: Scene) -> str | None:
        """What has changed since."""
        if self.request != _request_facts(scene):
            return "the request"
        generation = scene.endpoints.generation
        if self.members != _endpoint_facts(generation):
            return "the labels of an endpoint"
        changed = [name for name, column in generation.columns.items() if not same_values(column, self.columns[name])]
        return f"the column '{changed[0]}'" if changed else None


def _request_facts(scene: Scene) -> tuple[object, ...]:
    request = scene.request
    return (copy.deepcopy(request.headers), copy.deepcopy(request.payload), request.model, request.priority)


def _endpoint_facts(generation: Generation) -> tuple[object, ...]:
    return tuple((endpoint.name, dict(endpoint.labels)) for endpoint in generation.endpoints)


def _loop_seconds(endpoints: Endpoints) -> float:
    """Processor time of one pass in plain Python: two look-ups and some arithmetic for each endpoint."""
    best = float("inf")
    for _ in range(_ATTEMPTS):
        started = thread_time()
        scores = {}
        for position, endpoint in enumerate(endpoints.members):
            scores[endpoint.name] = 1.0 - min(position, 128) / 128.0
        best = min(best, thread_time() - started)
    return best


def _best_of(bench: Bench, scene: Scene, budget: float) -> float:
    """Processor time of the fastest attempt: other work on the machine does not count, and neither does the first, cold one."""
    best = float("inf")
    for _ in range(_ATTEMPTS):
        started = thread_time()
        _ask(bench, scene)
        best = min(best, thread_time() - started)
        if best <= budget or best > 4 * budget:
            break
    return best


def _ask(bench: Bench, scene: Scene) -> None:
    plugin, request, endpoints, state = bench.instance.plugin, scene.request, scene.endpoints, scene.state
    if isinstance(plugin, Filter):
        bench.call(plugin.filter, request, endpoints, state)
    if isinstance(plugin, Scorer):
        bench.call(plugin.score, request, endpoints, state)
    if isinstance(plugin, Picker):
        bench.call(plugin.pick, request, scored(endpoints), state)
    if isinstance(plugin, Screener):
        bench.call(plugin.screen, request, endpoints)
