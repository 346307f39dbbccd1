"""The order of producers, on every small graph hypothesis can think of."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.host.planning.subscriptions import toposort

NAMES = st.sampled_from([f"n{number}" for number in range(8)])


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, set[str]]:
    names = draw(st.sets(NAMES))
    others = st.sets(st.sampled_from(sorted(names))) if names else st.just(set())
    return {name: draw(others) for name in names}


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for other in graph[waiting.pop()] - found:
            found.add(other)
            waiting.append(other)
    return found


@given(graphs())
def test_cycles_are_found_exactly_when_a_node_waits_for_itself(graph: dict[str, set[str]]) -> None:
    circular = {name for name in graph if name in reachable(graph, name)}

    cycles = toposort(graph).cycles

    assert bool(cycles) == bool(circular)
    assert {name for cycle in cycles for name in cycle} <= circular


@given(graphs())
def test_node_comes_after_those_it_waits_for(graph: dict[str, set[str]]) -> None:
    result = toposort(graph)

    assert sorted(result.order) == sorted(graph)
    if not result.cycles:
        place = {name: position for position, name in enumerate(result.order)}
        assert all(place[other] < place[name] for name, others in graph.items() for other in others)


@given(graphs())
def test_each_cycle_is_real_and_starts_with_its_smallest_name(graph: dict[str, set[str]]) -> None:
    for cycle in toposort(graph).cycles:
        assert cycle[0] == min(cycle)
        assert len(set(cycle)) == len(cycle)
        assert all(following in graph[name] for name, following in zip(cycle, (*cycle[1:], cycle[0]), strict=True))


@given(graphs())
def test_every_knot_is_reported(graph: dict[str, set[str]]) -> None:
    """Cutting the reported cycles leaves a graph that has an order."""
    cut = {name for cycle in toposort(graph).cycles for name in cycle}

    rest = {name: others - cut for name, others in graph.items() if name not in cut}

    assert toposort(rest).cycles == ()


@given(graphs(), st.randoms(use_true_random=False))
def test_the_answer_does_not_depend_on_the_order_of_the_input(graph: dict[str, set[str]], random: object) -> None:
    names = list(graph)
    random.shuffle(names)

    assert toposort({name: graph[name] for name in names}) == toposort(graph)


@pytest.mark.parametrize(
    ("graph", "cycles"),
    [
        ({"a": {"a"}}, (("a",),)),
        ({"b": {"a"}, "a": {"b"}}, (("a", "b"),)),
        ({"c": {"a"}, "a": {"b"}, "b": {"c"}, "d": {"c"}}, (("a", "b", "c"),)),
        ({"a": {"b"}, "b": {"a"}, "x": {"y"}, "y": {"x"}}, (("a", "b"), ("x", "y"))),
        ({"p": {"a"}, "a": {"b"}, "b": {"a"}}, (("a", "b"),)),
    ],
)
def test_cycles_read_in_the_direction_of_waiting(graph: dict[str, set[str]], cycles: tuple[tuple[str, ...], ...]) -> None:
    assert toposort(graph).cycles == cycles
