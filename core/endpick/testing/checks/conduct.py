"""Checks of how a plugin behaves towards the host and the other plugins, whatever it is for."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import thread_time

import numpy as np

from endpick.api import CandidateFilter, DataCollector, DataProducer, Endpoints, Filter, Picker, Scorer
from endpick.api.data import DataKey, Scope
from endpick.testing.bench import Bench, Scene, benches
from endpick.testing.check import Finding, NotApplicable, check
from endpick.testing.exercise import scored, walk, walk_one
from endpick.testing.made_up import varied_requests
from endpick.testing.plugin_under_test import PluginUnderTest


@check()
def reads_only_declared_keys(subject: PluginUnderTest) -> Iterator[Finding]:
    """Every data key that the plugin reads is in `consumes` or `consumes_optional`."""
    yield from _undeclared(subject, "read", "add it to `consumes`, or to `consumes_optional` if the plugin can do without")


@check()
def writes_only_declared_keys(subject: PluginUnderTest) -> Iterator[Finding]:
    """Every data key that the plugin writes is in `produces`."""
    yield from _undeclared(subject, "write", "add it to `produces`: a value under an undeclared key is dropped")


@check()
def reads_every_declared_key(subject: PluginUnderTest) -> Iterator[Finding]:
    """No data key is declared that the plugin never reads: the host would refuse to start without a producer for it."""
    declared = {key.name for bench in benches(subject) for key in bench.consumed}
    read: set[str] = set()
    for bench in _walked(subject):
        read |= bench.accesses.reads
    for key in sorted(declared - read):
        yield Finding(
            f"the data key '{key}' is declared and was never read",
            "remove it from `consumes`, or give the kit `examples=` with parameters that make the plugin read it",
        )


@check(DataCollector, DataProducer)
def writes_every_declared_key(subject: PluginUnderTest) -> Iterator[Finding]:
    """Every data key in `produces` is written, for one request or payload or another: consumers wait for it."""
    if DataCollector in subject.kinds and not subject.material.payloads:
        raise NotApplicable("give the kit `payloads=`, what a source would deliver")
    produced = {key.name for bench in benches(subject) for key in bench.instance.subscriptions.produces}
    written: set[str] = set()
    for bench in _walked(subject):
        written |= bench.accesses.writes
    for key in sorted(produced - written):
        yield Finding(f"the data key '{key}' is in `produces` and was never written", "write it, or remove it from `produces`")


def _undeclared(subject: PluginUnderTest, access: str, advice: str) -> Iterator[Finding]:
    found = dict.fromkeys(key for bench in _walked(subject) for how, key in bench.accesses.undeclared if how == access)
    declared = "consumes" if access == "read" else "produces"
    for key in found:
        yield Finding(f"it {access}s the data key '{key}', which it does not declare in `{declared}`", advice)


def _walked(subject: PluginUnderTest) -> Iterator[Bench]:
    for bench in benches(subject):
        for _ in walk(bench):
            continue  # what is answered concerns other checks; here counts what was touched
        yield bench


MANY_ENDPOINTS = 10_000
BUDGET_IN_LOOPS = 50
"""How many times longer than a plain Python loop over the endpoints a plugin may take; numpy takes a hundredth of such a loop."""
_ATTEMPTS = 3


@check()
def leaves_its_inputs_alone(subject: PluginUnderTest) -> Iterator[Finding]:
    """Request, endpoints, columns and what producers left are as they were after the plugin has seen them: others see them too."""
    for bench in benches(subject):
        for request in varied_requests():
            scene = bench.scene(request=request)
            before = _Snapshot.of(bench, scene)
            for method, _ in walk_one(bench, scene):
                changed = before.differs(bench, scene)
                if changed:
                    yield Finding(
                        f"`{method}` changes {changed}", "work on a copy: `column.copy()`, `dict(request.headers)`, `sorted(...)`"
                    )
                    return


@check(Picker)
def picker_leaves_scores_alone(subject: PluginUnderTest) -> Iterator[Finding]:
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
def does_not_block(subject: PluginUnderTest) -> Iterator[Finding]:
    """Nothing on the request path or in a collector opens files, blocking connections or processes, resolves names or sleeps."""
    found: dict[str, None] = {}
    for bench in benches(subject):
        for request in varied_requests():
            for method, _ in walk_one(bench, bench.scene(request=request)):
                found.update({f"`{method}` {blocking}": None for blocking in bench.watch.found})
                bench.watch.found.clear()
    for deed in found:
        yield Finding(deed, "do it in `start`, in a data source, or in a thread with `asyncio.to_thread`; every request waits for it here")


@check(Filter, Scorer, Picker, CandidateFilter)
def handles_ten_thousand_endpoints(subject: PluginUnderTest) -> Iterator[Finding]:
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
def takes_leave_of_any_endpoint(subject: PluginUnderTest) -> Iterator[Finding]:
    """`endpoint_removed` accepts every name, also of an endpoint the plugin has never met, and twice."""
    for bench in benches(subject):
        for name in ("default/e0", "default/e0", "default/never-seen"):
            answer = bench.call(bench.instance.plugin.endpoint_removed, name)
            if answer is not None:
                yield Finding(
                    f"`endpoint_removed('{name}')` comes to {answer}", "forget the name if it is known: `self._learnt.pop(name, None)`"
                )
                return


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What was given to a plugin, copied."""

    facts: Mapping[str, object]

    @classmethod
    def of(cls, bench: Bench, scene: Scene) -> _Snapshot:
        return cls({name: _copied(fact) for name, fact in _facts(bench, scene)})

    def differs(self, bench: Bench, scene: Scene) -> str | None:
        """What has changed since; the first of several."""
        return next((name for name, fact in _facts(bench, scene) if not _equal(fact, self.facts[name])), None)


def _facts(bench: Bench, scene: Scene) -> Iterator[tuple[str, object]]:
    """Everything a plugin was given and could change, each with what a finding calls it."""
    request, endpoints, state = scene.request, scene.endpoints, scene.state
    yield "the headers of the request", request.headers
    yield "the payload of the request", request.payload
    yield "the labels of an endpoint", [endpoint.labels for endpoint in endpoints._generation.endpoints]
    for name, column in endpoints._generation.columns.items():
        yield f"the column '{name}'", column.values
    for name, value in endpoints._generation.pool.items():
        yield f"the value of '{name}'", value
    for key in bench.consumed:
        assert isinstance(key, DataKey)
        if key.scope is Scope.REQUEST:
            yield f"the value of '{key.name}'", state.get(key)
        elif key.scope is Scope.CANDIDATE:
            yield f"the column '{key.name}'", state.column(key, endpoints)


def _copied(fact: object) -> object:
    """A copy to compare with later; the fact itself where a copy does not equal its original, so that nothing false is said of it."""
    try:
        copied = copy.deepcopy(dict(fact) if isinstance(fact, Mapping) else fact)
        return copied if _equal(fact, copied) else fact
    except Exception:
        return fact


def _equal(one: object, other: object) -> bool:
    """Whether two facts are the same, NaN counting as equal to itself."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.dtype == np.object_:
            return bool(one.tolist() == other.tolist())
        return np.array_equal(one, other, equal_nan=True)
    return bool(one == other)


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
    if isinstance(plugin, CandidateFilter):
        bench.call(plugin.filter_candidates, request, endpoints)
