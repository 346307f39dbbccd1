"""Errors of plugins and hook objects that the host contains."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Sized
from typing import TypeVar, cast

from typing_extensions import TypeIs

from endpick.host.apart import apart

PLUGIN_ERRORS = (Exception, SystemExit)
"""Errors of a plugin. KeyboardInterrupt, GeneratorExit and CancelledError are the host's and pass."""


def describe_error(error: BaseException) -> str:
    """The class and message of an exception, for logs and diagnostics."""
    return f"{type(error).__name__}: {error}"[:500]


class FaultOfAnother(BaseException):
    """Carries the fault of a nested plugin call, which refuses the request, through the calling plugin.

    No `Exception`, so that the caller does not handle it by accident.
    """

    def __init__(self, fault: object) -> None:
        """`fault` is a `boundary.Fault`, counted and logged already."""
        super().__init__(str(fault))
        self.fault = fault


# Everything below goes with its last user; new code uses the names above.

CALL_FAILURES = BaseException
"""What a plain call of a plugin may throw at the host: `sys.exit()`, or a `CancelledError` that a library raised, must not end the process
or the connection of a gateway."""

AWAIT_FAILURES = (Exception, BaseExceptionGroup, SystemExit, KeyboardInterrupt, asyncio.CancelledError)
"""The same of what is awaited by a coroutine that cannot tell whether it is being closed; see `is_closing`."""

TESTED_FAILURES = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
"""What a plugin under test may throw at the kit; Ctrl-C, a time limit and what pytest raises are for the person who runs the test."""


_name_of = type.__dict__["__name__"].__get__


def kind_of(value: object) -> str:
    """The name of the class of an exception or an answer: asked of Python itself, because a metaclass answers with code of the plugin."""
    name: str = _name_of(type(value))
    return name


E = TypeVar("E", bound=BaseException)


def is_a(problem: BaseException, kind: type[E]) -> TypeIs[E]:
    """What `isinstance` says, asked of Python itself: where the answer is no, `isinstance` asks the exception as well."""
    return issubclass(type(problem), kind)


_LONGEST_MESSAGE = 2000


def message_of(problem: BaseException) -> str:
    """What an exception of a plugin says, or that it does not: `str` of it is the plugin's code as well, and never raises here."""
    try:
        if not _is_short(_arguments_of(problem)):
            return "(its message is too long to be shown)"
        # Of a class of its own a text may do anything when it is measured, cut or written.
        with apart():
            message = str.__getitem__(str(problem), slice(_LONGEST_MESSAGE + 1))
    except CALL_FAILURES:
        return "(its message cannot be shown)"
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"


_arguments_of: Callable[[BaseException], tuple[object, ...]] = BaseException.__dict__["args"].__get__
_MOST_ITEMS = 10_000


def _is_short(arguments: tuple[object, ...]) -> bool:
    """Whether a text of them would be short: lists within lists may be small, and their text gigabytes."""
    items, waiting = 0, [iter(arguments)]
    while waiting:
        for argument in waiting.pop():
            kind = type(argument)
            if kind is dict or kind is list or kind is tuple or kind is set or kind is frozenset:
                items += len(cast("Sized", argument))
                if items > _MOST_ITEMS:
                    return False
                waiting.append(iter(cast("Iterable[object]", argument)))
                if kind is dict:
                    waiting.append(iter(cast("dict[object, object]", argument).values()))
    return True


def is_the_hosts(problem: BaseException) -> bool:
    """Whether an exception only passed through the plugin: the running task was asked to end, or a person pressed Ctrl-C.

    `endpick serve` has a handler of its own for Ctrl-C, which raises nothing, so there a `KeyboardInterrupt` is the plugin's as well.
    """
    kind = type(problem)  # `isinstance` would ask the exception itself, which may answer with another one
    if issubclass(kind, asyncio.CancelledError):
        return _was_cancelled()
    return issubclass(kind, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def is_closing(problem: BaseException, own: asyncio.Task[None] | None) -> bool:
    """Whether Python closes a coroutine of the task `own`, as it does by a `GeneratorExit`; False for one that a plugin raised.

    A coroutine that is closed may not wait any more, and its task does not run: another one does, or none.
    """
    if not issubclass(type(problem), GeneratorExit):
        return False
    try:
        return own is None or asyncio.current_task() is not own
    except RuntimeError:  # no event loop runs
        return True


def _was_cancelled() -> bool:
    """Whether the running task was asked to end; False when a `CancelledError` came out of a plugin instead."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs, so there is no task
        return False
    return task is not None and task.cancelling() > 0
