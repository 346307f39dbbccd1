"""What a plugin may do wrong, by name, and who is told to do it: throw, answer, or do in passing before it answers what is right.

The files of this folder are copied beside a picker, as a package of a distribution.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from functools import cache
from pathlib import Path

from .answered import ANSWERED
from .done import DONE
from .thrown import THROWN

Sane = Callable[[], object]


class Orders:
    """What is to be done where, and how often that has been done: in memory that both sides share, because a file has readers wait."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), SHARED_BYTES)

    def give(self, wanted: str) -> None:
        """From now on: `place what`, or nothing at all. Nothing of it has been done."""
        self._shared[:] = wanted.encode().ljust(SHARED_BYTES, b"\0")

    def look(self) -> tuple[str, str]:
        where, _, what = self._shared[: SHARED_BYTES - 8].rstrip(b"\0").decode(errors="replace").partition(" ")
        return where, what

    @property
    def done(self) -> int:
        return int.from_bytes(self._shared[-8:], "little")

    @done.setter
    def done(self, count: int) -> None:
        self._shared[-8:] = count.to_bytes(8, "little")


SHARED_BYTES = 4096


@cache
def _orders() -> Orders:
    return Orders(Path("act"))


def act(place: str, sane: Sane) -> object:
    """Answer what is right, unless the orders say that this place is to do something else."""
    orders = _orders()
    where, what = orders.look()
    if where not in (place, "*"):
        return sane()
    orders.done += 1
    if what in THROWN:
        raise THROWN[what]()
    if what in ANSWERED:
        return ANSWERED[what]()
    if what in DONE:
        DONE[what]()
    return sane()
