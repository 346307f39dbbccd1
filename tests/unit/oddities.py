"""What hostile code throws and answers: exceptions of every kind, and objects that raise when they are looked at."""

from __future__ import annotations

import asyncio


class Own(BaseException):
    """No subclass of `Exception`."""


THROWN = (
    ValueError("x"),
    ExceptionGroup("g", [ValueError("x")]),
    BaseExceptionGroup("g", [Own()]),
    Own("x"),
    SystemExit(3),
    GeneratorExit(),
    asyncio.CancelledError(),
    StopAsyncIteration(),
    MemoryError(),
)
"""What may leave a coroutine; a function may throw more."""


def odd(*_arguments, **_keywords):
    raise Own("do not look")


class OddText(str):
    """Raises wherever it is looked at; no code needs more than these of a header, a name or a message."""

    __eq__ = __len__ = __bool__ = __hash__ = __str__ = encode = lower = isascii = isprintable = odd


class Unfriendly(float):
    """Raises where it is compared or made a plain number."""

    __float__ = __ge__ = odd


def half(kind):
    """One that was never made."""
    return object.__new__(kind)


def sly(kind, *names):
    """Of a subclass whose attributes raise."""
    return object.__new__(type("Sly", (kind,), {name: property(odd) for name in names}))


def spoilt(value, **fields):
    """Changed after it was made, though it is frozen."""
    for name, field in fields.items():
        object.__setattr__(value, name, field)
    return value
