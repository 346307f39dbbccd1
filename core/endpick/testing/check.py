"""What a check is: one question about one plugin, answered with findings, within a limit of time."""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import TypeAlias

from endpick.host.kinds import Kind
from endpick.testing.plugin_under_test import PluginUnderTest


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: what the plugin does, and what its author should do about it."""

    message: str
    help: str


class NotApplicable(Exception):  # noqa: N818 - an outcome, not an accident
    """Raised by a check that cannot judge this plugin; the message says what it lacks."""


@dataclass(frozen=True, slots=True)
class Check:
    """One rule that plugins keep.

    Attributes:
        id: The name of the function that judges it; what `expected_failures` and `pytest -k` select by.
        doc: The rule, in one sentence.
        kinds: Which kinds of plugins it is for; empty for all.
        question: Judges; yields nothing when the rule is kept.
    """

    id: str
    doc: str
    kinds: frozenset[Kind]
    question: Question

    def concerns(self, kinds: tuple[Kind, ...]) -> bool:
        """Whether a plugin of these kinds has to keep the rule."""
        return not self.kinds or not self.kinds.isdisjoint(kinds)


def check(*kinds: Kind) -> Callable[[Question], Check]:
    """Make a check of a function, for these kinds; its name becomes the id and its docstring the rule."""

    def make(question: Question) -> Check:
        return Check(question.__name__, inspect.getdoc(question) or "", frozenset(kinds), question)

    return make


def checks_in(module: ModuleType) -> tuple[Check, ...]:
    """All checks of a module, in the order in which they are written."""
    return tuple(value for value in vars(module).values() if isinstance(value, Check))


class TookTooLong(KeyboardInterrupt):
    """The time was up.

    A `KeyboardInterrupt`, because that is what neither plugins nor event loops are used to catch.
    """


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Interrupt what runs in this block after so many seconds, with `TookTooLong`; None: never.

    Works in the main thread only, which is where a signal can interrupt Python; elsewhere there is no limit.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


Question: TypeAlias = Callable[[PluginUnderTest], Iterator[Finding]]
