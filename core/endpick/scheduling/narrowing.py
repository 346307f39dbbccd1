"""Whether what a plugin kept or picked is really a part of what it was given."""

from __future__ import annotations

import numpy as np

from endpick.api.endpoints import Endpoints


def narrowed(given: Endpoints, answer: object) -> Endpoints | str:
    """The view that a filter's or screener's answer stands for, or what is wrong with the answer.

    Args:
        given: What the plugin was asked about.
        answer: A boolean mask for `given`, or a view of some of its endpoints in any order.
    """
    if isinstance(answer, np.ndarray):
        try:
            return given.where(answer)
        except ValueError as problem:
            return str(problem)
    if not isinstance(answer, Endpoints):
        return f"answered {type(answer).__name__}, not a mask or Endpoints"
    return stray(given, answer) or answer


def stray(given: Endpoints, kept: Endpoints) -> str | None:
    """Why `kept` is not a part of `given`, without repetitions; None when it is."""
    if kept is given:
        return None
    if kept.generation is not given.generation:
        return "answered endpoints of another pool than it was given"
    if len(kept) <= 1 and given.is_whole:
        return None
    unused = np.zeros(len(given.generation.endpoints), dtype=np.bool_)
    unused[given.rows] = True
    rows = kept.rows
    if not unused[rows].all():
        return "answered endpoints that it was not given"
    unused[rows] = False
    if np.count_nonzero(unused) != len(given) - len(kept):
        return "answered the same endpoint more than once"
    return None
