"""What a plugin may answer that is no answer, by name."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

import numpy as np

from endpick.api import InferenceRequest, ParsedRequest, Prompt, Rejection, SchedulingResult, Usage

from .thrown import Faceless, Mute, chain, lists


class Touchy(np.ndarray):
    """Raises when it is computed with, compared or measured."""

    def __array_ufunc__(self, *arguments: object, **keywords: object) -> object:
        raise SystemExit(5)

    def __array_function__(self, *arguments: object, **keywords: object) -> object:
        raise KeyboardInterrupt

    def __len__(self) -> int:
        raise GeneratorExit

    def __getitem__(self, key: object) -> object:
        raise asyncio.CancelledError


class Everything:
    """Has every attribute, and is what it is called."""

    def __getattr__(self, name: str) -> object:
        return self

    def __call__(self, *arguments: object, **keywords: object) -> object:
        return self

    def __iter__(self) -> object:
        return self

    def __next__(self) -> object:
        return self


class Untouchable:
    """Raises whatever is asked of it."""

    def __getattribute__(self, name: str) -> object:
        raise SystemExit(7)

    def _refuse(self, *arguments: object) -> object:
        raise KeyboardInterrupt

    __eq__ = __bool__ = __len__ = __iter__ = __float__ = __int__ = __index__ = __str__ = __repr__ = __hash__ = _refuse  # type: ignore[assignment]
    __lt__ = __gt__ = __await__ = __array__ = __next__ = __contains__ = __getitem__ = __del__ = _refuse  # type: ignore[assignment]


class Endlessly(Sequence, Mapping):  # type: ignore[type-arg]
    """A sequence and a mapping that does not end."""

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, key: object) -> object:
        return key

    def __iter__(self) -> object:  # type: ignore[override]
        return itertools.count()

    def items(self) -> object:  # type: ignore[override]
        return ((f"x-{n}", "v" * 1000) for n in itertools.count())


class OwnText(str):
    """Raises when it is compared or measured."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise SystemExit(8)

    def __len__(self) -> int:
        raise GeneratorExit

    __hash__ = str.__hash__


class OwnNumber(float):
    """Raises when it is computed with."""

    __slots__ = ()

    def _refuse(self, *arguments: object) -> object:
        raise asyncio.CancelledError

    __float__ = __int__ = __lt__ = __gt__ = __le__ = __ge__ = __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = __bool__ = _refuse  # type: ignore[assignment]


async def never() -> None:
    raise SystemExit(10)


async def late() -> None:
    await asyncio.sleep(0.01)
    raise BaseExceptionGroup("late", [KeyboardInterrupt(), GeneratorExit()])


async def stubborn() -> None:
    for _ in range(5):
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            continue


async def several() -> object:
    while True:
        yield 1


def ended(how: str) -> object:
    future = asyncio.get_running_loop().create_future()
    if how == "cancelled":
        future.cancel()
    elif how == "failed":
        future.set_exception(Mute())
    return future


def hollow(kind: type) -> object:
    return object.__new__(kind)


def itself() -> object:
    found: list[object] = []
    found.append(found)
    return found


def tuples() -> object:
    found: object = ()
    for _ in range(20_000):
        found = (found,)
    return found


ANSWERED: Mapping[str, Callable[[], object]] = {
    "nothing": lambda: None,
    **{f"number-{n}": lambda n=n: n for n in (0, -1, 3, 10**400, -0.5)},
    **{f"float-{n}": lambda n=n: float(n) for n in ("nan", "inf", "-inf")},
    "true": lambda: True,
    "own-number": lambda: OwnNumber(0.5),
    "own-text": lambda: OwnText("default"),
    "text": lambda: "x\ny",
    "bytes": lambda: b"\xff\x00" * 100,
    "empty-tuple": tuple,
    "empty-mapping": dict,
    "mapping": lambda: {1: 2, None: object(), "x-a\r\nb": "c\n", "host": b"x", ":path": "/", OwnText("x"): OwnText("y")},
    "many-headers": lambda: {f"x-{n}": "v" * 100 for n in range(5000)},
    "object": object,
    "class": lambda: SystemExit,
    "generator": lambda: (n for n in itertools.count()),
    "range": lambda: range(10**12),
    "endless": Endlessly,
    "everything": Everything,
    "untouchable": Untouchable,
    "faceless": Faceless,
    "decimal": lambda: Decimal("sNaN"),
    "itself": itself,
    "deep": tuples,
    "lists": lists,
    "exception": chain,
    "wrong-shape": lambda: np.ones(3),
    "two-dimensions": lambda: np.ones((12, 2)),
    "no-dimension": lambda: np.array(1.0),
    "of-nan": lambda: np.full(12, np.nan),
    "of-inf": lambda: np.full(12, np.inf),
    "of-minus-inf": lambda: np.full(12, -np.inf),
    "of-objects": lambda: np.array([Untouchable() for _ in range(12)], dtype=object),
    "of-texts": lambda: np.array(["1"] * 12),
    "of-complex": lambda: np.ones(12, dtype=np.complex128),
    "of-records": lambda: np.zeros(12, dtype=[("a", "f8"), ("b", "O")]),
    "of-dates": lambda: np.zeros(12, dtype="datetime64[s]"),
    "of-ints": lambda: np.full(12, 2**63, dtype=np.uint64),
    "of-halves": lambda: np.full(12, 6e4, dtype=np.float16),
    "strided": lambda: np.broadcast_to(np.float64(1.0), (12,)),
    "reversed": lambda: np.ones(24)[::-2],
    "masked": lambda: np.ma.array(np.ones(12), mask=[True] * 12),
    "touchy": lambda: np.ones(12).view(Touchy),
    "never-awaited": never,
    "late-failure": late,
    "stubborn": stubborn,
    "several": several,
    **{f"future-{how}": lambda how=how: ended(how) for how in ("pending", "cancelled", "failed")},
    "task": lambda: asyncio.get_running_loop().create_task(never()),
    **{f"hollow-{kind.__name__}": lambda kind=kind: hollow(kind) for kind in (ParsedRequest, Rejection, Usage, SchedulingResult)},
    "hollow-InferenceRequest": lambda: hollow(InferenceRequest),
    "prompt": lambda: ParsedRequest("m", Prompt(lambda: (yield))),  # type: ignore[arg-type,misc]
    "prompt-that-raises": lambda: ParsedRequest("m", Prompt(lambda: sys.exit(3))),
}
