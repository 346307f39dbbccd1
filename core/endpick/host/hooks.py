"""Loads and calls hook objects; the failure of one does not affect the others."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import cast

import pluggy

from endpick.api.errors import ConfigurationError, ReloadRejected
from endpick.api.hooks import PROJECT_NAME, Document, HookSpecs, HostServices, HostView, PluginRecord
from endpick.api.plugin import Plugin
from endpick.api.request import shown
from endpick.config.source import SourceMap
from endpick.diagnostics import Code, Diagnostic, DocumentPath, did_you_mean
from endpick.host.discovery import API_MAJOR, Candidate
from endpick.host.environment import LockCheck
from endpick.host.failures import PLUGIN_ERRORS, describe_error, trace_notes
from endpick.host.importing import attributed, import_target
from endpick.host.loader import LoadedPlugin
from endpick.host.resolution import Policy, Reference, check_distribution, from_distribution

DEADLINE_SECONDS = 10.0  # for one asynchronous hook implementation

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HookCall:
    """One hook object's implementation of a hook."""

    hook: str
    reference: Reference
    candidate: Candidate
    implementation: pluggy.HookImpl

    def __call__(self, **offered: object) -> object:
        """Call it with the arguments it asks for."""
        with attributed(f"{self.reference.type} ({self.candidate.origin})"):
            return self.implementation.function(*(offered[name] for name in self.implementation.argnames))

    def failure(self, code: Code, error: BaseException) -> Diagnostic:
        """An exception as a diagnostic; without its class if it is meant for the operator."""
        on_purpose = isinstance(error, ConfigurationError | ReloadRejected)
        return self.fault(code, f"failed in {self.hook}: {error if on_purpose else describe_error(error)}", error)

    def failure_message(self, error: BaseException) -> str:
        """The message of `failure`."""
        return self.failure(Code.E0705, error).message

    def fault(self, code: Code, predicate: str, error: BaseException | None = None) -> Diagnostic:
        """A diagnostic about the hook object."""
        name = self.reference.type
        return self.reference.diagnostic(
            code,
            f"the hook object '{name}' from {self.candidate.origin} {predicate}",
            self.candidate,
            help=f"report it to the author of {self.candidate.distribution}, or remove '{name}' from `hooks:`",
            notes=() if error is None else trace_notes(error),
        )


class HookConfigReport:
    """The `ConfigReport` for one hook object."""

    def __init__(self, call: HookCall, source: SourceMap) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._call = call
        self._source = source

    def error(self, path: DocumentPath, message: str, help: str | None = None) -> None:  # noqa: A002 - see ConfigReport
        """See `ConfigReport`."""
        self._add(Code.E0511, path, message, help)

    def warn(self, path: DocumentPath, message: str, help: str | None = None) -> None:  # noqa: A002 - see ConfigReport
        """See `ConfigReport`."""
        self._add(Code.W0503, path, message, help)

    def position(self, path: DocumentPath) -> tuple[int, int]:
        """See `ConfigReport`."""
        span = self._source.value_span(tuple(path))
        return span.line, span.column

    def _add(self, code: Code, path: DocumentPath, message: str, help_line: str | None) -> None:
        path = tuple(path)
        self.diagnostics.append(
            Diagnostic(
                code,
                message,
                span=self._source.value_span(path),
                labels=self._source.labels_for(path),
                help=help_line,
                notes=(f"said by the hook object '{self._call.reference.type}' from {self._call.candidate.origin}",),
                plugin=self._call.reference.plugin(self._call.candidate),
                path=path,
            )
        )


class HookRegistry:
    """The hook objects of a configuration; see `load_hooks`."""

    def __init__(self) -> None:
        self._pluggy = pluggy.PluginManager(PROJECT_NAME)
        self._pluggy.add_hookspecs(HookSpecs)
        self._known: dict[str, tuple[Reference, Candidate]] = {}
        self._announced: set[type[object]] = set()
        self._logged: set[str] = set()

    def add_first(self, reference: Reference, candidate: Candidate, hook_object: object) -> Diagnostic | None:
        """Put a hook object first; a diagnostic if it is there already."""
        name = f"{reference.type} ({candidate.origin})"
        self._known[name] = (reference, candidate)
        try:
            self._pluggy.register(hook_object, name)  # pluggy calls the last registered first
        except ValueError:
            return reference.diagnostic(Code.E0705, f"the hook object {name} is named twice", candidate, help="remove one of the entries")
        self._pluggy.check_pending()
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """In document order: `audit (acme-audit 1.0)`."""
        return tuple(reversed(self._known))

    @property
    def files(self) -> dict[str, str]:
        """Hook objects by source file; the distribution if they share it."""
        found: dict[str, str] = {}
        for name, hook_object in self._pluggy.list_name_plugin():
            module = hook_object if isinstance(hook_object, ModuleType) else sys.modules.get(type(hook_object).__module__)
            file = getattr(module, "__file__", None)
            if isinstance(file, str):
                found[file] = self._known[name][1].origin if file in found else name
        return found

    def calls(self, hook: str) -> Iterator[HookCall]:
        """Implementations in call order."""
        for implementation in reversed(getattr(self._pluggy.hook, hook).get_hookimpls()):
            reference, candidate = self._known[implementation.plugin_name]
            yield HookCall(hook, reference, candidate, implementation)

    def offered(self) -> tuple[tuple[Candidate, ...], tuple[Diagnostic, ...]]:
        """Plugin types of `endpick_register`, and the failures."""
        candidates: list[Candidate] = []
        faults: list[Diagnostic] = []
        for call in self.calls("endpick_register"):
            try:
                plugins = dict(cast("Mapping[object, object]", call() or {}))
            except PLUGIN_ERRORS as error:
                faults.append(call.failure(Code.E0705, error))
                continue
            for plugin_type, plugin in plugins.items():
                result = _registered(call, plugin_type, plugin)
                (candidates if isinstance(result, Candidate) else faults).append(result)  # type: ignore[arg-type]
        return tuple(candidates), tuple(faults)

    def plugin_loaded(self, loaded: LoadedPlugin) -> None:
        """Announce a plugin type, once per class; failures are logged."""
        if loaded.plugin in self._announced:
            return
        self._announced.add(loaded.plugin)
        origin = loaded.candidate
        kinds = tuple(kind.kind for kind in loaded.kinds)
        record = PluginRecord(loaded.type, kinds, origin.distribution, origin.version, loaded.load_seconds)
        for call in self.calls("endpick_plugin_loaded"):
            try:
                call(record=record)
            except PLUGIN_ERRORS as error:
                message = call.failure_message(error)
                if message not in self._logged:
                    self._logged.add(message)
                    _log.warning(message, exc_info=error)

    def validate(self, source: SourceMap) -> tuple[Diagnostic, ...]:
        """Findings about a document without errors."""
        found: list[Diagnostic] = []
        for call in self.calls("endpick_validate"):
            report = HookConfigReport(call, source)
            try:
                call(config=source.data, report=report)
            except PLUGIN_ERRORS as error:
                found.append(call.failure(Code.E0705, error))
            found.extend(report.diagnostics)
        return tuple(found)

    def configure(self, services: HostServices) -> tuple[Diagnostic, ...]:
        """Let hook objects replace services in place."""
        return self._call_each("endpick_configure", Code.E0706, services=services)

    async def startup(self, host: HostView, deadline_seconds: float = DEADLINE_SECONDS) -> tuple[Diagnostic, ...]:
        """Announce that serving begins; a failure should end the start."""
        return await self._await_each(self.calls("endpick_startup"), Code.E0706, deadline_seconds, host=host)

    async def shutdown(self, host: HostView, deadline_seconds: float = DEADLINE_SECONDS) -> tuple[Diagnostic, ...]:
        """Announce, in reverse order, that serving has ended."""
        calls = reversed(list(self.calls("endpick_shutdown")))
        return await self._await_each(calls, Code.E0704, deadline_seconds, host=host)

    async def reload(self, old: Document, new: Document, deadline_seconds: float = DEADLINE_SECONDS) -> tuple[Diagnostic, ...]:
        """Ask whether a configuration may replace another; any diagnostic refuses it."""
        return await self._await_each(self.calls("endpick_config_reload"), Code.E0707, deadline_seconds, old=old, new=new)

    def _call_each(self, hook: str, code: Code, **offered: object) -> tuple[Diagnostic, ...]:
        faults: list[Diagnostic] = []
        for call in self.calls(hook):
            try:
                call(**offered)
            except PLUGIN_ERRORS as error:
                faults.append(call.failure(code, error))
        return tuple(faults)

    @staticmethod
    async def _await_each(calls: Iterable[HookCall], code: Code, deadline_seconds: float, **offered: object) -> tuple[Diagnostic, ...]:
        faults: list[Diagnostic] = []
        for call in calls:
            deadline = asyncio.timeout(deadline_seconds)
            try:
                async with deadline:
                    result = call(**offered)
                    if inspect.isawaitable(result):
                        await cast("Awaitable[object]", result)
            except PLUGIN_ERRORS as error:
                if deadline.expired():
                    late = Code.E0703 if code is Code.E0706 else code
                    faults.append(call.fault(late, f"did not finish {call.hook} within {deadline_seconds:g} s", error))
                else:
                    faults.append(call.failure(code, error))
        return tuple(faults)


def load_hooks(
    references: Sequence[Reference], candidates: Sequence[Candidate], policy: Policy | None = None, lock: LockCheck | None = None
) -> tuple[HookRegistry, tuple[Diagnostic, ...]]:
    """Load the objects of `hooks:`; faulty ones are reported and left out."""
    registry = HookRegistry()
    faults: list[Diagnostic] = []
    for reference in reversed(references):
        loaded = load_hook_object(reference, candidates, policy or Policy(), lock or LockCheck())
        if isinstance(loaded, Diagnostic):
            faults.append(loaded)
            continue
        wrong = hook_faults(reference, *loaded)
        twice = None if wrong else registry.add_first(reference, *loaded)
        faults.extend(wrong if twice is None else (twice,))
    return registry, tuple(reversed(faults))


def _registered(call: HookCall, plugin_type: object, plugin: object) -> Candidate | Diagnostic:
    if not isinstance(plugin_type, str) or not isinstance(plugin, type) or not issubclass(plugin, Plugin):
        return call.fault(
            Code.E0705, f"registers {shown(plugin)} as {shown(plugin_type)}; it needs a plugin class under the name of its type"
        )
    if "<locals>" in plugin.__qualname__:
        return call.fault(Code.E0705, f"registers {plugin.__qualname__}, which cannot be imported because it is local to a function")
    return replace(call.candidate, type=plugin_type, api_major=API_MAJOR, target=f"{plugin.__module__}:{plugin.__qualname__}")


HOOKS = tuple(name for name in vars(HookSpecs) if name.startswith("endpick_"))
_AWAITED = ("endpick_startup", "endpick_shutdown", "endpick_config_reload")


def load_hook_object(
    reference: Reference, candidates: Sequence[Candidate], policy: Policy, lock: LockCheck
) -> tuple[Candidate, object] | Diagnostic:
    """The object of a `hooks:` entry, with its entry point."""
    candidate = _resolve(reference, candidates)
    if isinstance(candidate, Diagnostic):
        return candidate
    forbidden = check_distribution(reference, candidate, policy) or lock.fault(reference, candidate)
    if forbidden is not None:
        return forbidden
    imported = import_target(reference, candidate)
    if isinstance(imported, Diagnostic):
        return _unloadable(reference, candidate, imported.message, imported.notes)
    try:
        return candidate, imported.value() if inspect.isclass(imported.value) else imported.value
    except PLUGIN_ERRORS as error:
        return _unloadable(reference, candidate, f"its constructor raised {describe_error(error)}", trace_notes(error))


def hook_faults(reference: Reference, candidate: Candidate, hook_object: object) -> tuple[Diagnostic, ...]:
    """A diagnostic per implementation that endpick cannot call, or for an object without any."""
    manager = pluggy.PluginManager(PROJECT_NAME)
    faults: list[Diagnostic] = []
    implemented = False
    for name in dir(hook_object):
        options = manager.parse_hookimpl_opts(hook_object, name)
        if options is not None:
            implemented = True
            hook = options.get("specname") or name
            is_wrapper = bool(options.get("wrapper") or options.get("hookwrapper"))
            faults.extend(_implementation_faults(reference, candidate, hook, getattr(hook_object, name), is_wrapper=is_wrapper))
    if not implemented:
        message = "it implements no hook; its methods need the mark `@hookimpl` from endpick.api"
        return (_unloadable(reference, candidate, message),)
    return tuple(faults)


def _implementation_faults(
    reference: Reference, candidate: Candidate, hook: str, function: object, *, is_wrapper: bool
) -> Iterable[Diagnostic]:
    assert callable(function)
    if hook not in HOOKS:
        yield reference.diagnostic(
            Code.E0701,
            f"the hook object '{reference.type}' from {candidate.origin} implements `{hook}`, which is no hook",
            candidate,
            help=did_you_mean(hook, HOOKS) or f"the hooks are {', '.join(HOOKS)}",
            notes=(_defined_at(function),),
        )
        return
    problem = _signature_problem(hook, function, is_wrapper=is_wrapper)
    if problem is not None:
        wrong, repair = problem
        yield reference.diagnostic(
            Code.E0702,
            f"`{hook}` of the hook object '{reference.type}' from {candidate.origin} {wrong}",
            candidate,
            help=repair,
            notes=(_defined_at(function),),
        )


def _signature_problem(hook: str, function: Callable[..., object], *, is_wrapper: bool) -> tuple[str, str] | None:
    accepted = tuple(inspect.signature(getattr(HookSpecs, hook)).parameters)[1:]
    unknown = [name for name in inspect.signature(function).parameters if name not in accepted]
    possible = f"it may take {', '.join(f'`{name}`' for name in accepted)}" if accepted else "it takes no arguments"
    if unknown:
        return f"asks for {', '.join(f'`{name}`' for name in unknown)}", possible
    if is_wrapper:
        return "is a wrapper, which endpick does not call", possible
    if inspect.iscoroutinefunction(function) and hook not in _AWAITED:
        return "is `async def`, but endpick does not await it", f"write it as a plain `def`; awaited are {', '.join(_AWAITED)}"
    return None


def _defined_at(function: object) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return "defined outside Python code" if code is None else f"defined at {code.co_filename}:{code.co_firstlineno}"


def _resolve(reference: Reference, candidates: Sequence[Candidate]) -> Candidate | Diagnostic:
    offers = from_distribution(reference, [candidate for candidate in candidates if candidate.type == reference.type])
    if len(offers) == 1:
        return offers[0]
    if offers:
        choice = " or ".join(f"`from: {offer.distribution}`" for offer in offers)
        return reference.diagnostic(
            Code.E0705, f"several distributions offer the hook object '{reference.type}'", help=f"say which one you want with {choice}"
        )
    return reference.diagnostic(
        Code.E0705,
        f"no installed distribution offers the hook object '{reference.type}'",
        help=did_you_mean(reference.type, (candidate.type for candidate in candidates)) or "`endpick doctor` lists those installed",
    )


def _unloadable(reference: Reference, candidate: Candidate, reason: str, notes: tuple[str, ...] = ()) -> Diagnostic:
    return reference.diagnostic(
        Code.E0705,
        f"the hook object '{reference.type}' from {candidate.origin} cannot be loaded: {reason}",
        candidate,
        help=f"this is a fault of {candidate.distribution}; report it to its author, or remove the entry from `hooks:`",
        notes=notes,
    )
