"""Loads hook objects and calls them through pluggy, so that a failing one affects no other."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from types import CodeType, GeneratorType
from typing import cast

import pluggy

from endpick import __version__
from endpick.api.errors import ConfigurationError
from endpick.api.hooks import PROJECT_NAME, HookSpecs
from endpick.config.source import SourceMap
from endpick.diagnostics import Code, Diagnostic, DocumentPath, did_you_mean
from endpick.host.discovery import API_MAJOR, HOST_DISTRIBUTION, Candidate, discover_hook_objects
from endpick.host.environment import LockCheck
from endpick.host.failures import PLUGIN_ERRORS, describe_error, trace_notes
from endpick.host.importing import attributed, import_target
from endpick.host.resolution import Policy, Reference, check_distribution

DEADLINE_SECONDS = 10.0  # for each asynchronous hook implementation
HOOKS = tuple(name for name in vars(HookSpecs) if name.startswith("endpick_"))
_REVERSED = "endpick_stopping"
_AWAITED = ("endpick_started", "endpick_reloaded", _REVERSED)


@dataclass(frozen=True, slots=True)
class Failure:
    """A hook implementation raised, or did not finish within `late_seconds`."""

    hook: str
    candidate: Candidate
    error: BaseException
    late_seconds: float | None = None

    @property
    def message(self) -> str:
        """The failure in a sentence; a ConfigurationError is shown without the name of its class."""
        if self.late_seconds is not None:
            predicate = f"did not finish {self.hook} within {self.late_seconds:g} s"
        else:
            reason = self.error if isinstance(self.error, ConfigurationError) else describe_error(self.error)
            predicate = f"failed in {self.hook}: {reason}"
        return f"{title(self.candidate)} {predicate}"

    def diagnostic(self, code: Code) -> Diagnostic:
        """Return the failure as a diagnostic, with the hook object's frames as a note."""
        return _diagnostic(code, self.message, self.candidate, help=_way_out(self.candidate), notes=trace_notes(self.error))


@dataclass(frozen=True, slots=True)
class _Awaited:
    hook: str
    candidate: Candidate
    result: Awaitable[object]

    async def failure(self, deadline_seconds: float) -> Failure | None:
        deadline = asyncio.timeout(deadline_seconds)
        try:
            with attributed(_label(self.candidate)):
                async with deadline:
                    await self.result
        except PLUGIN_ERRORS as error:
            return Failure(self.hook, self.candidate, error, deadline_seconds if deadline.expired() else None)
        return None

    def close(self) -> None:
        if inspect.iscoroutine(self.result):
            self.result.close()


@dataclass(slots=True)
class _Call:
    outcomes: list[Failure | _Awaited] = field(default_factory=list)
    running: Candidate | None = None  # the hook object whose implementation runs


_call: ContextVar[_Call] = ContextVar("endpick_hook_call")


def running_hook_object() -> Candidate | None:
    """Return the hook object whose implementation runs; None outside of hooks."""
    call = _call.get(None)
    return None if call is None else call.running


def title(candidate: Candidate | None) -> str:
    """Return the name and origin of a hook object, as they appear in messages."""
    return "a hook object" if candidate is None else f"the hook object '{candidate.type}' from {candidate.origin}"


class _Manager(pluggy.PluginManager):
    """Calls `endpick_stopping` in the order of registration, and other hooks in reverse."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        options = super().parse_hookimpl_opts(plugin, name)
        if options is None or (options["specname"] or name) != _REVERSED or options["tryfirst"]:
            return options
        return {**options, "trylast": True}


class Hooks:
    """The hook objects of a process; see `load_hooks`."""

    def __init__(self) -> None:
        self._manager = _Manager(PROJECT_NAME)
        self._manager.add_hookspecs(HookSpecs)
        self._known: dict[str, Candidate] = {}
        self._running: dict[str, tuple[Candidate, float]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The installed hook objects in call order, such as `audit (acme-audit 1.0)`."""
        return tuple(name for name, candidate in reversed(self._known.items()) if candidate.target)

    def register(self, hook_object: object, name: str) -> None:
        """Add an object of the host, which is called before the objects added so far."""
        self._add(Candidate(name, API_MAJOR, HOST_DISTRIBUTION, __version__, "", "", is_builtin=True), hook_object)

    def load(self, candidate: Candidate) -> tuple[Diagnostic, ...]:
        """Import an installed object and add it; return the reasons if it is left out.

        It is called before the objects added so far.
        """
        imported = import_target(Reference(candidate.type), candidate)
        if isinstance(imported, Diagnostic):
            return (_unloadable(candidate, imported.message, imported.notes),)
        try:
            hook_object = imported.value() if inspect.isclass(imported.value) else imported.value
        except PLUGIN_ERRORS as error:
            return (_unloadable(candidate, f"its constructor raised {describe_error(error)}", trace_notes(error)),)
        faults = hook_faults(candidate, hook_object)
        if not faults:
            try:
                self._add(candidate, hook_object)
            except ValueError:
                return (_unloadable(candidate, "another entry point leads to the same object"),)
        return faults

    def implements(self, hook: str) -> bool:
        """Return True if any object implements the hook."""
        return bool(getattr(self._manager.hook, hook).get_hookimpls())

    def running(self, hook: str) -> tuple[str, float] | None:
        """Return the object whose implementation of a hook runs, and for how many seconds."""
        running = self._running.get(hook)
        return None if running is None else (title(running[0]), time.monotonic() - running[1])

    def call(self, hook: str, **offered: object) -> tuple[Failure, ...]:
        """Call all implementations of a hook, and return the failures."""
        return tuple(outcome for outcome in self._outcomes(hook, offered) if isinstance(outcome, Failure))

    async def call_awaited(self, hook: str, deadline_seconds: float = DEADLINE_SECONDS, **offered: object) -> tuple[Failure, ...]:
        """Call all implementations of a hook, then await each result; return the failures."""
        outcomes = self._outcomes(hook, offered)
        try:
            settled = [item if isinstance(item, Failure) else await item.failure(deadline_seconds) for item in outcomes]
        finally:
            for outcome in outcomes:
                if isinstance(outcome, _Awaited):
                    outcome.close()
        return tuple(failure for failure in settled if failure is not None)

    def validate(self, source: SourceMap) -> tuple[Diagnostic, ...]:
        """Return the findings of hook objects about a document without errors."""
        report = _ConfigFindings(source)
        failures = self.call("endpick_validate", config=source.data, report=report)
        return (*report.diagnostics, *(failure.diagnostic(Code.E0705) for failure in failures))

    def _add(self, candidate: Candidate, hook_object: object) -> None:
        name = f"{candidate.type} ({candidate.origin})"
        self._manager.register(hook_object, name)  # pluggy calls the last registered first
        self._known[name] = candidate
        for caller in self._manager.get_hookcallers(hook_object) or ():
            for implementation in caller.get_hookimpls():
                if implementation.plugin is hook_object:
                    self._contain(caller.name, candidate, implementation)

    def _contain(self, hook: str, candidate: Candidate, implementation: pluggy.HookImpl) -> None:
        """Replace the function by one that records the errors of plugins instead of raising them."""
        function = implementation.function

        def contained(*arguments: object, **named: object) -> None:
            self._run(hook, candidate, partial(function, *arguments, **named))

        def wrapper(*arguments: object, **named: object) -> Generator[None, object, None]:
            wrapped = cast("GeneratorType[None, object, object]", function(*arguments, **named))
            has_started = self._run(hook, candidate, partial(_start_wrapper, wrapped))
            result = yield
            if has_started:
                self._run(hook, candidate, partial(_finish_wrapper, wrapped, result))

        wraps = implementation.wrapper or implementation.hookwrapper
        implementation.function = wrapper if wraps else contained  # type: ignore[misc] # there is no other place for it

    def _run(self, hook: str, candidate: Candidate, part: Callable[[], object]) -> bool:
        """Run an implementation or a part of a wrapper, and return False if it failed.

        Records the outcome in `_Call`, because wrappers may lose results.
        """
        call = _call.get()
        call.running, self._running[hook] = candidate, (candidate, time.monotonic())
        try:
            with attributed(_label(candidate)):
                result = part()
            if hook in _AWAITED and inspect.isawaitable(result):
                call.outcomes.append(_Awaited(hook, candidate, result))
        except PLUGIN_ERRORS as error:
            call.outcomes.append(Failure(hook, candidate, error))
            return False
        finally:
            call.running = None
            self._running.pop(hook, None)
        return True

    def _outcomes(self, hook: str, offered: dict[str, object]) -> list[Failure | _Awaited]:
        call = _Call()
        token = _call.set(call)
        try:
            getattr(self._manager.hook, hook)(**offered)
        finally:
            _call.reset(token)
        return call.outcomes


def _start_wrapper(wrapped: GeneratorType[None, object, object]) -> None:
    try:
        next(wrapped)
    except StopIteration:
        raise RuntimeError(f"the wrapper {_defined_at(wrapped.gi_code)} does not yield") from None


def _finish_wrapper(wrapped: GeneratorType[None, object, object], result: object) -> None:
    with suppress(StopIteration):
        wrapped.send(result)
        raise RuntimeError(f"the wrapper {_defined_at(wrapped.gi_code)} yields twice")


class HookFindings:
    """Collects the diagnostics that hook objects report."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []

    def add(self, code: Code, message: str, help_line: str | None, source: SourceMap | None = None, path: DocumentPath = ()) -> None:
        """Add a diagnostic of the running hook object, about a value of a document or about none."""
        candidate = running_hook_object()
        found = Diagnostic(code, message, help=help_line, notes=(f"said by {title(candidate)}",), path=path)
        if source is not None:
            found = replace(found, span=source.value_span(path), labels=source.labels_for(path))
        self.diagnostics.append(found if candidate is None else replace(found, plugin=Reference(candidate.type).plugin(candidate)))


class _ConfigFindings(HookFindings):
    """The `ConfigReport` of a document."""

    def __init__(self, source: SourceMap) -> None:
        super().__init__()
        self._source = source

    def error(self, path: DocumentPath, message: str, help: str | None = None) -> None:  # noqa: A002 - see ConfigReport
        self.add(Code.E0511, message, help, self._source, tuple(path))

    def warn(self, path: DocumentPath, message: str, help: str | None = None) -> None:  # noqa: A002 - see ConfigReport
        self.add(Code.W0503, message, help, self._source, tuple(path))

    def position(self, path: DocumentPath) -> tuple[int, int]:
        span = self._source.value_span(tuple(path))
        return span.line, span.column


def load_hooks(
    candidates: Sequence[Candidate] | None = None, policy: Policy | None = None, lock: LockCheck | None = None
) -> tuple[Hooks, tuple[Diagnostic, ...]]:
    """Load hook objects, by default the installed ones; faulty and forbidden ones are reported.

    Objects that `pluginPolicy.denyTypes` names are left out without a report.
    """
    policy, lock, hooks = policy or Policy(), lock or LockCheck(), Hooks()
    faults: list[Diagnostic] = []
    for candidate in sorted(discover_hook_objects() if candidates is None else candidates, reverse=True):
        if policy.denied_by(candidate.type) is None:
            reference = Reference(candidate.type)
            forbidden = check_distribution(reference, candidate, policy) or lock.fault(reference, candidate)
            faults += hooks.load(candidate) if forbidden is None else (forbidden,)
    return hooks, tuple(reversed(faults))


def hook_faults(candidate: Candidate, hook_object: object) -> tuple[Diagnostic, ...]:
    """Return a diagnostic for each implementation that endpick cannot call, or if there is none."""
    manager = _Manager(PROJECT_NAME)
    found = {name: options for name in dir(hook_object) if (options := manager.parse_hookimpl_opts(hook_object, name)) is not None}
    if not found:
        return (_unloadable(candidate, "it implements no hook; its methods need the mark `@hookimpl` from endpick.api"),)
    faults = (_implementation_fault(candidate, name, options, getattr(hook_object, name)) for name, options in found.items())
    return tuple(fault for fault in faults if fault is not None)


def _implementation_fault(
    candidate: Candidate, name: str, options: pluggy.HookimplOpts, function: Callable[..., object]
) -> Diagnostic | None:
    hook = options["specname"] or name
    if hook not in HOOKS:
        code, message = Code.E0701, f"{title(candidate)} implements `{hook}`, which is no hook"
        repair = did_you_mean(hook, HOOKS) or f"the hooks are {', '.join(HOOKS)}"
    elif problem := _signature_problem(hook, function, wraps=options["wrapper"] or options["hookwrapper"]):
        code, message, repair = Code.E0702, f"`{hook}` of {title(candidate)} {problem[0]}", problem[1]
    else:
        return None
    return _diagnostic(code, message, candidate, help=repair, notes=(_defined_at(inspect.unwrap(function).__code__),))


def _signature_problem(hook: str, function: Callable[..., object], *, wraps: bool) -> tuple[str, str] | None:
    accepted = tuple(inspect.signature(getattr(HookSpecs, hook)).parameters)[1:]
    asked = inspect.signature(function).parameters.values()
    unknown = [f"`{argument.name}`" for argument in asked if argument.name not in accepted and argument.default is argument.empty]
    if unknown:
        return f"asks for {', '.join(unknown)}", f"it may take {', '.join(f'`{name}`' for name in accepted)}"
    if wraps and not inspect.isgeneratorfunction(function):
        return "is a wrapper without `yield`", "write it as a generator that yields once"
    if inspect.iscoroutinefunction(function) and hook not in _AWAITED:
        return "is `async def`, but endpick does not await it", f"write it as a plain `def`; awaited are {', '.join(_AWAITED)}"
    return None


def _label(candidate: Candidate) -> str:
    """Return the label of log records; empty for the objects of the host."""
    return f"{candidate.type} ({candidate.origin})" if candidate.target else ""


def _defined_at(code: CodeType) -> str:
    return f"defined at {code.co_filename}:{code.co_firstlineno}"


def _diagnostic(code: Code, message: str, candidate: Candidate, *, help: str, notes: tuple[str, ...] = ()) -> Diagnostic:  # noqa: A002
    return Reference(candidate.type).diagnostic(code, message, candidate, help=help, notes=notes)


def _way_out(candidate: Candidate) -> str:
    name, distribution = candidate.type, candidate.distribution
    return f"report it to the author of {distribution}, and uninstall {distribution} or add '{name}' to pluginPolicy.denyTypes"


def _unloadable(candidate: Candidate, reason: str, notes: tuple[str, ...] = ()) -> Diagnostic:
    return _diagnostic(Code.E0705, f"{title(candidate)} cannot be loaded: {reason}", candidate, help=_way_out(candidate), notes=notes)
