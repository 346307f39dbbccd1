"""Checks of plugins with learnt state."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from endpick.api import CandidateFilter, DataProducer, Endpoints, Filter, Scorer
from endpick.api.fleet import LearntState
from endpick.testing.bench import Bench, Raised, benches
from endpick.testing.exercise import finished, walk_scene
from endpick.testing.factories import varied_requests
from endpick.testing.plugin_under_test import Finding, PluginUnderTest, check

_TOLERANCE = 0.01  # relative: moving averages depend a little on the order


@check(LearntState, once=True)
def snapshot_restores_decisions(subject: PluginUnderTest) -> Iterator[Finding]:
    """An instance that got a snapshot decides like the one that made it."""
    for original, replica in _pairs(subject):
        _serve_requests(original)
        parts = original.call(_parts, original.plugin_as(LearntState))
        if not isinstance(parts, list) or not all(isinstance(part, bytes) for part in parts):
            yield Finding(f"`snapshot` comes to {parts}", "yield bytes, for example msgspec.msgpack.encode(...)")
            return
        for part in parts:
            restored = replica.call(replica.plugin_as(LearntState).restore, part)
            if isinstance(restored, Raised):
                yield Finding(f"`restore` raises {restored} for its own snapshot", "read what `snapshot` writes")
        if not _alike(_decisions(original), _decisions(replica)):
            yield Finding("after `restore`, it decides differently", "put everything that a decision depends on into the snapshot")


@check(LearntState, once=True)
def deltas_apply_in_any_order(subject: PluginUnderTest) -> Iterator[Finding]:
    """Deltas of two pickers may come in either order, and each of them twice."""
    for (first_source, second_source), (first, second) in zip(_pairs(subject), _pairs(subject, seed=2), strict=True):
        drained = []
        for bench in (first_source, second_source):
            _serve_requests(bench)
            deltas = bench.call(bench.plugin_as(LearntState).drain_deltas)
            if not isinstance(deltas, bytes):
                yield Finding(f"`drain_deltas` comes to {deltas}", "return bytes; empty bytes if there is nothing to tell")
                return
            drained.append(deltas)
        orders = ((first, (0, 1)), (second, (1, 0, 0)))
        for bench, order in orders:
            for number in order:
                applied = bench.call(bench.plugin_as(LearntState).apply, drained[number], f"picker-{number}") if drained[number] else None
                if isinstance(applied, Raised):
                    yield Finding(f"`apply` raises {applied} for its own deltas", "read what `drain_deltas` writes")
        if not _alike(_decisions(first), _decisions(second)):
            yield Finding(
                "the order or a repetition of deltas changes its decisions",
                "let the later one count, and send totals, not differences",
            )


@check(LearntState, once=True)
def drains_once(subject: PluginUnderTest) -> Iterator[Finding]:
    """A second `drain_deltas` without requests in between returns empty bytes."""
    for bench in benches(subject, is_shared=True):
        _serve_requests(bench)
        bench.call(bench.plugin_as(LearntState).drain_deltas)
        again = bench.call(bench.plugin_as(LearntState).drain_deltas)
        if again != b"":
            yield Finding("`drain_deltas` tells the same again", "forget what was drained: an idle picker sends nothing")


def _pairs(subject: PluginUnderTest, seed: int = 1) -> Iterator[tuple[Bench, Bench]]:
    yield from zip(benches(subject, seed=seed, is_shared=True), benches(subject, seed=seed, is_shared=True), strict=True)


def _parts(state: LearntState) -> list[bytes]:
    return list(state.snapshot())


def _serve_requests(bench: Bench) -> None:
    for request in varied_requests():
        for _ in walk_scene(bench, bench.scene(request=request)):
            continue  # other checks judge the answers


def _decisions(bench: Bench) -> list[object]:
    """Scores, kept endpoints and written data for each request."""
    plugin, answers = bench.instance.plugin, []
    for request in varied_requests():
        scene = bench.scene(request=request)
        arguments = (request, scene.endpoints)
        if isinstance(plugin, CandidateFilter):
            answers.append(bench.call(plugin.filter_candidates, *arguments))
        if isinstance(plugin, DataProducer):
            answers.append(finished(bench, plugin.produce, *arguments, scene.state))
            answers += [scene.state._columns[name][1] for name in sorted(scene.state._columns)]
        if isinstance(plugin, Filter):
            answers.append(bench.call(plugin.filter, *arguments, scene.state))
        if isinstance(plugin, Scorer):
            answers.append(bench.call(plugin.score, *arguments, scene.state))
    return [*answers, *(column.values for _, column in sorted(bench.table.generation.columns.items()))]


def _alike(left: list[object], right: list[object]) -> bool:
    return len(left) == len(right) and all(map(_equal, left, right))


def _equal(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray) and left.dtype != np.object_:
        return left.shape == right.shape and np.allclose(left, right, rtol=_TOLERANCE, equal_nan=True)
    if isinstance(left, Endpoints) and isinstance(right, Endpoints):
        return [endpoint.name for endpoint in left.members] == [endpoint.name for endpoint in right.members]
    return isinstance(left, Raised) == isinstance(right, Raised)
