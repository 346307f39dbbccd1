"""Times the stretches for which something that is awaited holds the event loop: between two of its waits no other task has a turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator
from time import perf_counter
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Timed(Generic[T]):
    """Awaits the same and comes to the same, in the same task."""

    __slots__ = ("_awaited", "_budget_seconds", "_held")

    def __init__(self, awaited: Awaitable[T], budget_seconds: float, held: Callable[[float], None]) -> None:
        """`held` is told how long a stretch took that was longer than the budget."""
        self._awaited = awaited
        self._budget_seconds = budget_seconds
        self._held = held

    def __await__(self) -> Generator[object, None, T]:
        steps = self._awaited.__await__()
        thrown: BaseException | None = None
        while True:
            began = perf_counter()
            try:
                waits_for = next(steps) if thrown is None else _thrown_into(steps, thrown)
            except StopIteration as end:
                return cast("T", end.value)
            finally:
                seconds = perf_counter() - began
                if seconds > self._budget_seconds:
                    self._held(seconds)
            thrown = None
            try:
                yield waits_for
            except BaseException as problem:  # a cancellation, or the end of the coroutine: for what is awaited to take
                thrown = problem


def _thrown_into(steps: Iterator[object], problem: BaseException) -> object:
    """What it waits for next; an iterator that takes no exceptions lets them pass."""
    throw: Callable[[BaseException], object] | None = getattr(steps, "throw", None)
    if throw is None:
        raise problem
    return throw(problem)
