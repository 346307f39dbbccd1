"""An order in which everybody comes after those they wait for, or the circles in which they wait for each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush


@dataclass(frozen=True, slots=True)
class Precedence:
    """All names in order, and the circles that had to be cut to get there.

    A circle `(a, b)` reads: a waits for b, and b for a. It begins with its smallest name. Circles share no member, so a knot of
    several is reported once.
    """

    order: tuple[str, ...]
    circles: tuple[tuple[str, ...], ...] = ()


def precedence(waits_for: Mapping[str, Collection[str]]) -> Precedence:
    """Sort the keys of `waits_for` (Kahn), smaller names first where there is a choice: the same graph always gives the same answer."""
    open_waits = {name: set(others) for name, others in waits_for.items()}
    waited_for_by: dict[str, list[str]] = {name: [] for name in waits_for}
    for name, others in waits_for.items():
        for other in others:
            waited_for_by[other].append(name)
    ready = [name for name, others in open_waits.items() if not others]
    heapify(ready)
    order: list[str] = []
    circles: list[tuple[str, ...]] = []
    while open_waits:
        if not ready:
            circle = _circle(open_waits)
            circles.append(circle)
            for name in circle:
                open_waits[name].clear()
                heappush(ready, name)
        done = heappop(ready)
        order.append(done)
        del open_waits[done]
        for name in waited_for_by[done]:
            waits = open_waits.get(name)
            if waits and done in waits:
                waits.remove(done)
                if not waits:
                    heappush(ready, name)
    return Precedence(tuple(order), tuple(circles))


def _circle(waits_for: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """A circle among names of which each waits for another: walk until somebody is met again."""
    seen: dict[str, int] = {}
    walk: list[str] = []
    name = min(waits_for)
    while name not in seen:
        seen[name] = len(walk)
        walk.append(name)
        name = min(waits_for[name])
    circle = walk[seen[name] :]
    start = circle.index(min(circle))
    return (*circle[start:], *circle[:start])
