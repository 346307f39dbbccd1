"""What a plugin may do wrong, by name: throw, answer, or do in passing before it answers what is right.

The files of this folder are copied beside a picker, as modules of a distribution: there they import each other by their plain names.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import itertools
import logging
import mmap
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path

import numpy as np

from endpick.api import ConfigurationError, InferenceRequest, ParsedRequest, Prompt, Rejection, SchedulingResult, Unavailable, Usage

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


class Mute(Exception):
    """Does not say what it is."""

    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class Endless(Exception):
    """Says itself."""

    def __str__(self) -> str:
        return str(self)


class Faceless(Exception):
    """Has no class."""

    @property
    def __class__(self) -> type:
        raise SystemExit(4)


class Closed(Exception):
    """Answers no question."""

    def __getattribute__(self, name: str) -> object:
        raise KeyboardInterrupt(name)


class Unknown(BaseException):
    """Of a kind that nothing expects."""


class Equal(Exception):
    """Cannot be compared or hashed."""

    def __eq__(self, other: object) -> bool:
        raise GeneratorExit

    __hash__ = None  # type: ignore[assignment]


class NamelessKind(type):
    """Of classes whose name is not to be had."""

    def __getattribute__(cls, name: str) -> object:
        raise SystemExit(5)


class Nameless(Exception, metaclass=NamelessKind):
    """Of a class without a name."""


class LongText(str):
    """Is longer than it says."""

    __slots__ = ()

    def __len__(self) -> int:
        return 3

    def __format__(self, spec: str) -> str:
        raise MemoryError

    def __str__(self) -> str:
        raise SystemExit(6)


class Noted(Exception):
    """Has notes that are no texts."""

    __notes__ = [object(), LongText("n"), 7, "\n{}"]


def deep() -> BaseException:
    """What real recursion ends in."""

    def again() -> None:
        again()

    try:
        again()
    except RecursionError as problem:
        return problem
    raise AssertionError


def chain(length: int = 5000) -> BaseException:
    problem: BaseException = Mute("the first")
    for step in range(length):
        later = ValueError(step)
        later.__cause__ = problem
        problem = later
    return problem


def circle() -> BaseException:
    one, other = ValueError("one"), KeyError("other")
    one.__cause__ = one.__context__ = other
    other.__cause__ = other.__context__ = one
    return one


def nested() -> BaseException:
    problem: BaseException = KeyboardInterrupt()
    for _ in range(60):
        problem = BaseExceptionGroup("in", [problem, asyncio.CancelledError()])
    return problem


def wide() -> BaseException:
    return ExceptionGroup("many", [Mute(), Faceless(), *(ValueError("x" * 100) for _ in range(2000))])


def syntax() -> BaseException:
    return SyntaxError("no", ("/dev/tty\n{", -5, 10**12, "\x1b[2J" * 50, 3, -1))


def lists() -> object:
    inner: list[object] = []
    for _ in range(60):
        inner = [inner, inner]
    return inner


def hosts(name: str) -> BaseException:
    """What endpick itself throws, made by a plugin."""
    from endpick.plugins.failures import FaultOfAnother
    from endpick.scheduling.step import Fault, LeftOut

    return {"of-another": FaultOfAnother("x"), "of-another-none": FaultOfAnother(Fault("x", "y", False)), "left-out": LeftOut()}[name]


def cancelled(name: str) -> BaseException:
    problem = asyncio.CancelledError(name)
    problem.__cause__ = SystemExit(9)
    return problem


THROWN: Mapping[str, Callable[[], BaseException]] = {
    **{
        kind.__name__: kind
        for kind in (
            *(ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, StopAsyncIteration, TimeoutError, MemoryError),
            *(BrokenPipeError, AssertionError, ImportError, UserWarning, asyncio.CancelledError, asyncio.InvalidStateError),
            *(concurrent.futures.CancelledError, concurrent.futures.BrokenExecutor, NotImplementedError, EOFError, BlockingIOError),
            *(Mute, Endless, Closed, Unknown, Equal, Noted, ConfigurationError, Unavailable, asyncio.QueueFull, asyncio.QueueEmpty),
        )
    },
    "Faceless": Faceless,
    "Nameless": lambda: type.__call__(Nameless),
    "exit-0": lambda: SystemExit(0),
    "exit-text": lambda: SystemExit("\x1b[2J\n{}"),
    "no-descriptor": lambda: OSError(24, "too many\nopen files", "/\x00"),
    "undecodable": lambda: UnicodeDecodeError("utf-8", b"\xff" * 100_000, 0, 1, LongText("x")),
    "surrogate": lambda: ValueError("\ud800\u2028\x85\x1b[31m"),
    "megabyte": lambda: ValueError("x\n" * 500_000),
    "own-text": lambda: ValueError(LongText("x" * 100_000)),
    "lists-in-lists": lambda: ValueError(lists()),
    "recursion": deep,
    "chain": chain,
    "circle": circle,
    "nested-group": nested,
    "wide-group": wide,
    "syntax": syntax,
    "cancelled-with-cause": lambda: cancelled("x"),
    **{f"hosts-{name}": lambda name=name: hosts(name) for name in ("of-another", "of-another-none", "left-out")},
}


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


def flood_executor() -> None:
    loop = asyncio.get_running_loop()
    for _ in range(100):
        loop.run_in_executor(None, time.sleep, 0.01)


def start_threads() -> None:
    for _ in range(3):
        threading.Thread(target=lambda: sys.exit(Mute()), daemon=True).start()
        threading.Thread(target=chain, daemon=True).start()


def leave_tasks() -> None:
    loop = asyncio.get_running_loop()
    for _ in range(10):
        loop.create_task(never())
        loop.create_task(late())
        loop.call_soon(next, iter(()))
        never()


def print_much() -> None:
    for _ in range(50):
        print('{"level": "critical", "event": "forged"}')
        sys.stderr.write('\r\n{"level":"critical"}')
    sys.__stdout__.write("\x1b[2J")  # type: ignore[union-attr]


def log_much() -> None:
    extra = {"level": "critical", "event": "forged", "\n": object()}
    for name in ("", "endpick.serve", "endpick.plugin.x\n{}", "asyncio"):
        for _ in range(30):
            logging.getLogger(name).error("line\n%s\x1b[2J", Untouchable() if name == "asyncio" else "x", extra=extra)
    logging.getLogger("endpick").error("%d %s", "no number")  # noqa: PLE1206
    logging.getLogger("x").exception(LongText("x"), exc_info=Mute())


def warn_much() -> None:
    for n in range(100):
        warnings.warn(f"\n{n}", DeprecationWarning, stacklevel=2)
    warnings.warn_explicit(Mute(), None, "/dev/tty\n", 10**9)  # type: ignore[call-overload]


def leave_finalizers() -> None:
    circles = [[Untouchable()] for _ in range(100)]
    for one in circles:
        one.append(one)  # type: ignore[arg-type]


def stop_collecting() -> None:
    gc.disable()
    gc.set_threshold(0)


def cancel_itself() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.cancel()


def complain_to_the_loop() -> None:
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": Untouchable(), "exception": Mute(), "x\n": object()})
    loop.call_later(-5, sys.exit, 4)
    loop.call_at(float("-inf"), deep().with_traceback, None)


DONE: Mapping[str, Callable[[], None]] = {
    "flood-executor": flood_executor,
    "start-threads": start_threads,
    "leave-tasks": leave_tasks,
    "print-much": print_much,
    "log-much": log_much,
    "warn-much": warn_much,
    "leave-finalizers": leave_finalizers,
    "stop-collecting": stop_collecting,
    "cancel-itself": cancel_itself,
    "complain-to-the-loop": complain_to_the_loop,
    "block-50ms": lambda: time.sleep(0.05),
    "block-300ms": lambda: time.sleep(0.3),
}
