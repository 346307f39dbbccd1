"""The plugin class under test, its parameters blocks, and the checks that apply to it."""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from types import FrameType, ModuleType
from typing import TypeAlias

from endpick.api.data import AnyKey
from endpick.api.plugin import Parameters, Plugin
from endpick.diagnostics import Diagnostic
from endpick.host.contract import check_contract
from endpick.host.discovery import API_MAJOR, Candidate, find
from endpick.host.kinds import Kind, kinds_of
from endpick.host.loader import LoadedPlugin
from endpick.host.parameters import check_parameters, parameters_schema
from endpick.host.resolution import Reference
from endpick.host.schema import fault_of_schemas

NOT_INSTALLED = "(not installed)"


@dataclass(frozen=True, slots=True)
class Block:
    """A `parameters:` block that the kit tries, and its origin for messages."""

    origin: str
    raw: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The author's inputs to the kit; see `parametrize_conformance`."""

    parameters: Mapping[str, object] | None = None
    examples: Sequence[Mapping[str, object]] = ()
    payloads: Sequence[object] = ()
    samples: Mapping[AnyKey, Sequence[object]] = field(default_factory=dict)


@dataclass(frozen=True)
class PluginUnderTest:
    """A plugin class that the kit checks, possibly an invalid one.

    Attributes:
        plugin: The class.
        offers: Installed entry points with its target or type.
        inputs: The author's inputs; see `parametrize_conformance`.
    """

    plugin: type[Plugin[Parameters]]
    offers: tuple[Candidate, ...]
    inputs: Inputs = field(default_factory=Inputs)

    @cached_property
    def name(self) -> str:
        """The type from the class's entry point, else the name of the class."""
        aliases = getattr(self.plugin, "aliases", ())
        target = self.target
        return next(
            (offer.type for offer in self.offers if offer.target.replace(" ", "") == target and offer.type not in aliases),
            self.plugin.__qualname__,
        )

    @property
    def target(self) -> str:
        """The class as an entry point names it: `module:Class`."""
        return f"{self.plugin.__module__}:{self.plugin.__qualname__}"

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of the class, such as `Scorer`."""
        return kinds_of(self.plugin)

    @property
    def candidate(self) -> Candidate:
        """The entry point of the class, or a made-up one if it is not installed."""
        usable = [offer for offer in find(self.offers, self.name) if offer.target == self.target]
        return usable[0] if usable else Candidate(self.name, API_MAJOR, NOT_INSTALLED, "", self.target, "")

    @cached_property
    def refusals(self) -> tuple[Diagnostic, ...]:
        """The diagnostics with which the host refuses the class; empty if it loads."""
        reference = Reference(self.name)
        faults = check_contract(reference, self.candidate, self.plugin)
        if faults:
            return faults
        fault = fault_of_schemas(reference, self.candidate, self.plugin)
        return () if fault is None else (fault,)

    @cached_property
    def loaded(self) -> LoadedPlugin:
        """The class as the host loads it; valid only without refusals."""
        return LoadedPlugin(self.candidate, self.plugin, self.name, self.kinds, 0.0, "")

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The `parameters:` blocks to try: the given one or the defaults, then the examples."""
        given = self.inputs.parameters
        first = Block("the defaults", self._defaults()) if given is None else Block("the parameters given to the kit", given)
        in_schema = parameters_schema(self.loaded).get("examples", ())
        written = [raw for raw in in_schema if isinstance(raw, Mapping)] if isinstance(in_schema, Sequence) else []
        return (
            first,
            *(Block(f"example {number} of the schema", raw) for number, raw in enumerate(written, 1)),
            *(Block(f"example {number} given to the kit", raw) for number, raw in enumerate(self.inputs.examples, 1)),
        )

    def judge(self, raw: Mapping[str, object]) -> Parameters | tuple[Diagnostic, ...]:
        """Validate a `parameters:` block as the host does.

        Returns the parameters, or the diagnostics of an invalid block.
        """
        return check_parameters(self.loaded, raw)

    def valid_blocks(self) -> Iterator[tuple[Block, Parameters]]:
        """Iterate over the blocks that the host accepts, each with its parameters."""
        for block in self.blocks:
            parameters = self.judge(block.raw)
            if isinstance(parameters, Parameters):
                yield block, parameters

    def _defaults(self) -> Mapping[str, object]:
        schema = parameters_schema(self.loaded)
        properties, required = schema.get("properties", {}), schema.get("required", ())
        assert isinstance(properties, Mapping)
        assert isinstance(required, Sequence)
        return {name: properties[name]["examples"][0] for name in required if properties.get(name, {}).get("examples")}


def plugin_under_test(plugin: type[Plugin[Parameters]], candidates: Sequence[Candidate], inputs: Inputs | None = None) -> PluginUnderTest:
    """Make the subject of the checks for a plugin class."""
    leading = PluginUnderTest(plugin, tuple(candidates), inputs or Inputs())
    name, target = leading.name, leading.target
    offers = tuple(candidate for candidate in candidates if candidate.target.replace(" ", "") == target or candidate.type == name)
    return PluginUnderTest(plugin, offers, leading.inputs)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a plugin, found by a check.

    Attributes:
        message: The fault, such as "it raises ValueError without data".
        help: The way to correct it.
    """

    message: str
    help: str


class NotApplicable(Exception):  # noqa: N818 - an outcome, not an accident
    """A check cannot judge this plugin; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Check:
    """One rule for plugins. `all_checks` returns them; `conformance` runs them.

    Attributes:
        id: Name of the rule, as in `expected_failures` and `pytest -k`.
        doc: The rule in one sentence.
        bases: Kinds, or other classes of the API, that the rule applies to; empty for all plugins.
        question: Function that takes the plugin under test and yields a `Finding` for each fault.
    """

    id: str  # as in `expected_failures` and `pytest -k`
    doc: str
    bases: tuple[type, ...]  # kinds, or other classes of the API; empty for all plugins
    question: Question

    def concerns(self, plugin: type) -> bool:
        """Return True if the rule applies to this class."""
        return not self.bases or issubclass(plugin, self.bases)


def check(*bases: type, once: bool = False) -> Callable[[Question], Check]:
    """Make a check from a function: its name is the id, its docstring the rule.

    With `once`, the check ends at its first finding: more requests would only repeat it.
    """

    def make(question: Question) -> Check:
        asked: Question = (lambda subject: islice(question(subject), 1)) if once else question
        return Check(question.__name__, inspect.getdoc(question) or "", bases, asked)

    return make


def checks_in(module: ModuleType) -> tuple[Check, ...]:
    """Return the checks of a module, in source order."""
    return tuple(value for value in vars(module).values() if isinstance(value, Check))


class TimeLimitExceeded(KeyboardInterrupt):
    """Derives from `KeyboardInterrupt` because plugins and event loops rarely catch that."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise `TimeLimitExceeded` after `seconds`; only in the main thread, because only there a signal interrupts Python."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise TimeLimitExceeded

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


Question: TypeAlias = Callable[[PluginUnderTest], Iterator[Finding]]
