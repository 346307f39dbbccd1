"""Checks for plugins of every kind: data access, side effects, speed and lifecycle."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from time import thread_time

import numpy as np

from endpick.api import CandidateFilter, DataCollector, DataProducer, Endpoints, Filter, Picker, Scorer
from endpick.api.data import DataKey, Scope
from endpick.api.datalayer import DataSource
from endpick.api.errors import ConfigurationError
from endpick.diagnostics import Diagnostic
from endpick.host.failures import PLUGIN_ERRORS
from endpick.testing.bench import Bench, Raised, Scene, benches, instances, make_bench
from endpick.testing.exercise import IgnoredCancellation, answering, payloads_from, run, scored, started, walk, walk_scene
from endpick.testing.factories import varied_requests
from endpick.testing.plugin_under_test import Finding, NotApplicable, PluginUnderTest, check
from endpick.testing.side_effects import Running, tasks_left


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
    """Every declared data key is read: the host refuses to start without a producer for it."""
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
    """Every data key in `produces` is written for some request or payload: consumers wait for it."""
    if DataCollector in subject.kinds and not subject.inputs.payloads:
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
            continue  # other checks judge the answers
        yield bench


MANY_ENDPOINTS = 10_000
BUDGET_IN_LOOPS = 50  # plain Python loops over the endpoints; numpy takes a hundredth of one
_ATTEMPTS = 3


@check(once=True)
def does_not_change_its_inputs(subject: PluginUnderTest) -> Iterator[Finding]:
    """The plugin does not change the request, endpoints, columns or produced data: other plugins see them too."""
    for bench in benches(subject):
        for request in varied_requests():
            scene = bench.scene(request=request)
            before = _Snapshot.of(bench, scene)
            for method, _ in walk_scene(bench, scene):
                changed = before.differs(bench, scene)
                if changed:
                    yield Finding(
                        f"`{method}` changes {changed}", "work on a copy: `column.copy()`, `dict(request.headers)`, `sorted(...)`"
                    )


@check(Picker, once=True)
def picker_does_not_change_scores(subject: PluginUnderTest) -> Iterator[Finding]:
    """A picker does not change the totals it receives: decision records show them."""
    for bench, plugin in instances(subject, Picker):
        scene = bench.scene()
        totals = scored(scene.endpoints)
        before = totals.scores.copy()
        bench.call(plugin.pick, scene.request, totals, scene.state)
        if not np.array_equal(before, totals.scores):
            yield Finding("`pick` changes the totals it is given", "work on a copy, for example np.argsort(-scored.scores)")


@check()
def does_not_block(subject: PluginUnderTest) -> Iterator[Finding]:
    """The request path and collectors open no files, blocking connections or processes, resolve no names and do not sleep."""
    found: dict[str, None] = {}
    for bench in benches(subject):
        for request in varied_requests():
            for method, _ in walk_scene(bench, bench.scene(request=request)):
                found.update({f"`{method}` {blocking}": None for blocking in bench.watch.found})
                bench.watch.found.clear()
    for action in found:
        yield Finding(
            action, "do it in `start`, in a data source, or in a thread with `asyncio.to_thread`; every request waits for it here"
        )


@check(Filter, Scorer, Picker, CandidateFilter, once=True)
def handles_ten_thousand_endpoints(subject: PluginUnderTest) -> Iterator[Finding]:
    """With ten thousand endpoints it takes at most as long as fifty plain Python loops over them."""
    for bench in benches(subject):
        scene = bench.scene(size=MANY_ENDPOINTS)
        budget = BUDGET_IN_LOOPS * _loop_seconds(scene.endpoints)
        seconds = _best_of(bench, scene, budget)
        if seconds > budget:
            yield Finding(
                f"it takes {seconds / budget * BUDGET_IN_LOOPS:.0f} times as long as a loop over {MANY_ENDPOINTS} endpoints",
                "work on whole columns with numpy, and do not go through all endpoints for each endpoint",
            )


@check(once=True)
def accepts_removal_of_any_endpoint(subject: PluginUnderTest) -> Iterator[Finding]:
    """`endpoint_removed` accepts any name: unknown endpoints, and the same one twice."""
    for bench in benches(subject):
        for name in ("default/e0", "default/e0", "default/never-seen"):
            answer = bench.call(bench.instance.plugin.endpoint_removed, name)
            if answer is not None:
                yield Finding(
                    f"`endpoint_removed('{name}')` comes to {answer}", "forget the name if it is known: `self._learnt.pop(name, None)`"
                )


@dataclass(frozen=True, slots=True)
class _Snapshot:
    facts: Mapping[str, object]

    @classmethod
    def of(cls, bench: Bench, scene: Scene) -> _Snapshot:
        return cls({name: _copied(fact) for name, fact in _facts(bench, scene)})

    def differs(self, bench: Bench, scene: Scene) -> str | None:
        return next((name for name, fact in _facts(bench, scene) if not _equal(fact, self.facts[name])), None)


def _facts(bench: Bench, scene: Scene) -> Iterator[tuple[str, object]]:
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
    """The original if a copy would not equal it."""
    try:
        copied = copy.deepcopy(dict(fact) if isinstance(fact, Mapping) else fact)
        return copied if _equal(fact, copied) else fact
    except Exception:
        return fact


def _equal(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        if left.dtype == np.object_:
            return bool(left.tolist() == right.tolist())
        return np.array_equal(left, right, equal_nan=True)
    return bool(left == right)


def _loop_seconds(endpoints: Endpoints) -> float:
    best = float("inf")
    for _ in range(_ATTEMPTS):
        started = thread_time()
        scores = {}
        for position, endpoint in enumerate(endpoints.members):
            scores[endpoint.name] = 1.0 - min(position, 128) / 128.0
        best = min(best, thread_time() - started)
    return best


def _best_of(bench: Bench, scene: Scene, budget: float) -> float:
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


@check(once=True)
def starts_and_stops(subject: PluginUnderTest) -> Iterator[Finding]:
    """`start` and `stop` work; `start` may refuse with `ConfigurationError`."""
    for bench in benches(subject):
        try:
            run(_only_start(bench))
        except PLUGIN_ERRORS as problem:
            if not isinstance(problem, ConfigurationError):
                advice = "raise ConfigurationError from `start`, and nothing from `stop`"
                yield Finding(f"`start` or `stop` raises {Raised(problem)}", advice)


@check(once=True)
def leaves_nothing_running(subject: PluginUnderTest) -> Iterator[Finding]:
    """After `stop`, no task, thread or socket of the plugin is left."""
    for bench in benches(subject):
        before = Running.now()
        try:
            left = run(tasks_left(partial(_use, bench)))
        except IgnoredCancellation:
            return  # reported by `source_ends_when_cancelled`
        left = (*left, *before.added(Running.now()))
        if left:
            yield Finding(f"after `stop`, it leaves {' and '.join(left)}", "cancel tasks and close sessions in `stop`, and await both")


@check(once=True)
def works_after_a_reload(subject: PluginUnderTest) -> Iterator[Finding]:
    """A second instance works after the first, built before it, has stopped."""
    for block, parameters in subject.valid_blocks():
        first, second, alone = (make_bench(subject, block.origin, parameters) for _ in range(3))
        if isinstance(first, Diagnostic) or isinstance(second, Diagnostic) or isinstance(alone, Diagnostic):
            continue  # reported by `can_be_built`
        failing, failing_alone = run(_failing_after(first, second)), run(_failing_after(None, alone))
        new = {method: raised for method, raised in failing.items() if method not in failing_alone}
        for method, raised in new.items():
            yield Finding(f"once another instance has stopped, `{method}` raises {raised}", "share nothing between instances")


async def _use(bench: Bench) -> None:
    try:
        async with answering("an empty page") as endpoint, started(bench):
            if isinstance(bench.instance.plugin, DataSource):
                await payloads_from(bench, endpoint)
            for _, value in walk_scene(bench, bench.scene()):
                await _settled(value)
    except IgnoredCancellation:
        raise
    except PLUGIN_ERRORS:
        return


async def _only_start(bench: Bench) -> None:
    async with started(bench):
        await asyncio.sleep(0)


async def _failing_after(first: Bench | None, second: Bench) -> dict[str, Raised]:
    try:
        if first is not None:
            await first.instance.plugin.start()
        async with started(second):
            if first is not None:
                await first.instance.plugin.stop()
            answers = [(method, await _settled(value)) for method, value in walk_scene(second, second.scene())]
            return {method: value for method, value in answers if isinstance(value, Raised)}
    except PLUGIN_ERRORS as problem:
        return {"start": Raised(problem)}


async def _settled(value: object) -> object:
    if not inspect.isawaitable(value):
        await asyncio.sleep(0)
        return value
    try:
        return await value
    except PLUGIN_ERRORS as problem:
        return Raised(problem)
