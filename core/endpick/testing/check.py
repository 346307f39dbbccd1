"""What a check is: one question about one plugin, answered with findings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TypeAlias

from endpick.api.plugin import Kind
from endpick.testing.subject import Subject


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: what the plugin does, and what its author should do about it."""

    message: str
    help: str


class NotApplicable(Exception):  # noqa: N818 - an outcome, not an accident
    """Raised by a check that cannot judge this plugin; the message says what it lacks."""


Question: TypeAlias = Callable[[Subject], Iterator[Finding]]


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
