"""What a plugin may throw, by name."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Mapping

from endpick.api import ConfigurationError, Unavailable


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
