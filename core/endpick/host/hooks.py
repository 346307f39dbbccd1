"""Calls the hook objects of a configuration at the edges of the host's life; each failure is told, none stops the others."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, cast

import pluggy

from endpick.api.errors import ConfigurationError, ReloadRejected
from endpick.api.hooks import PROJECT_NAME, Document, HookSpecs, HostServices, HostView, PluginRecord
from endpick.api.plugin import Plugin
from endpick.api.request import shown
from endpick.config.source import SourceMap
from endpick.diagnostics import Code, Diagnostic, DocumentPath
from endpick.host.apart import apart
from endpick.host.attempt import LateError, attempt
from endpick.host.discovery import Candidate
from endpick.host.failures import CALL_FAILURES, is_a, is_the_hosts, message_of
from endpick.host.hook_objects import hook_faults, load_hook_object
from endpick.host.importing import attributed, describe, trace_notes
from endpick.host.loader import LoadedPlugin
from endpick.host.resolution import Policy, Reference
from endpick.host.tracebacks import for_log
from endpick.installation import API_MAJOR

if TYPE_CHECKING:
    import click

    from endpick.host.lock_check import LockCheck


@dataclass(frozen=True, slots=True)
class HookCall:
    """A hook object's method, ready to be called with the arguments it asks for."""

    hook: str
    reference: Reference
    candidate: Candidate
    function: Callable[..., object]
    arguments: tuple[str, ...]

    def __call__(self, **offered: object) -> object:
        """Call it with those of the hook's arguments that it asks for. Whatever it raises passes."""
        with attributed(f"{self.reference.type} ({self.candidate.origin})"), apart():
            return self.function(**{name: offered[name] for name in self.arguments})

    async def attempt(self, code: Code, deadline_seconds: float, **offered: object) -> Diagnostic | None:
        """Call it, await it if it is asynchronous, and tell its failure under `code`; None when all is well."""
        try:
            result = self(**offered)
            with apart():
                is_awaitable = inspect.isawaitable(result)
            if is_awaitable:
                awaited = cast("Awaitable[object]", result)
                await attempt(lambda: awaited, deadline_seconds)
        except LateError as error:
            late = Code.E0703 if code is Code.E0706 else code
            return self.fault(late, f"did not finish {self.hook} within {deadline_seconds:g} s", error)
        except CALL_FAILURES as error:
            if is_the_hosts(error):
                raise
            return self.failure(code, error)
        return None

    def failure(self, code: Code, error: BaseException) -> Diagnostic:
        """A diagnostic that says what the implementation raised; in its own words where it raised on purpose."""
        on_purpose = is_a(error, ConfigurationError) or is_a(error, ReloadRejected)
        return self.fault(code, f"failed in {self.hook}: {message_of(error) if on_purpose else describe(error)}", error)

    def failure_message(self, error: BaseException) -> str:
        """`failure` in one sentence."""
        return self.failure(Code.E0705, error).message

    def fault(self, code: Code, what: str, error: BaseException | None = None) -> Diagnostic:
        """A diagnostic that blames this implementation."""
        name = self.reference.type
        return self.reference.diagnostic(
            code,
            f"the hook object '{name}' from {self.candidate.origin} {what}",
            self.candidate,
            help=f"report it to the author of {self.candidate.distribution}, or remove '{name}' from `hooks:`",
            notes=() if error is None else trace_notes(error),
        )


class HookConfigReport:
    """An `endpick.api.hooks.ConfigReport` for one call of one hook object."""

    def __init__(self, call: HookCall, source: SourceMap) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._call = call
        self._source = source

    def error(self, path: DocumentPath, message: str, help: str | None = None) -> None:  # noqa: A002 - see ConfigReport
        """See `endpick.api.hooks.ConfigReport`."""
        self._add(Code.E0511, path, message, help)

    def warn(self, path: DocumentPath, message: str, help: str | None = None) -> None:  # noqa: A002 - see ConfigReport
        """See `endpick.api.hooks.ConfigReport`."""
        self._add(Code.W0503, path, message, help)

    def position(self, path: DocumentPath) -> tuple[int, int]:
        """See `endpick.api.hooks.ConfigReport`."""
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


DEADLINE_SECONDS = 10.0
"""How long one asynchronous hook implementation is awaited."""

_log = logging.getLogger(__name__)


class HookRegistry:
    """The hook objects that one configuration names, loaded and checked. Made by `load_hooks`."""

    def __init__(self) -> None:
        self._pluggy = pluggy.PluginManager(PROJECT_NAME)
        self._pluggy.add_hookspecs(HookSpecs)
        self._known: dict[str, tuple[Reference, Candidate]] = {}
        self._told: set[type[object]] = set()
        self._logged: set[str] = set()

    def add_first(self, reference: Reference, candidate: Candidate, hook_object: object) -> Diagnostic | None:
        """Put a hook object before all others; a diagnostic when it is there already."""
        name = f"{reference.type} ({candidate.origin})"
        self._known[name] = (reference, candidate)
        try:
            # pluggy calls the last registered first.
            self._pluggy.register(hook_object, name)
        except ValueError:
            return reference.diagnostic(Code.E0705, f"the hook object {name} is named twice", candidate, help="remove one of the entries")
        self._pluggy.check_pending()
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """The hook objects, in the order of the configuration: `audit (acme-audit 1.0)`."""
        return tuple(reversed(self._known))

    @property
    def files(self) -> dict[str, str]:
        """The files in which hook objects are written, and whose they are: an object's, or a package's where one has several objects."""
        found: dict[str, str] = {}
        for name, hook_object in self._pluggy.list_name_plugin():
            module = hook_object if isinstance(hook_object, ModuleType) else sys.modules.get(type(hook_object).__module__)
            file = getattr(module, "__file__", None)
            if isinstance(file, str):
                found[file] = self._known[name][1].origin if file in found else name
        return found

    def implements(self, hook: str) -> bool:
        """Whether any hook object implements a hook."""
        return any(True for _ in self.calls(hook))

    def calls(self, hook: str) -> Iterator[HookCall]:
        """The implementations of a hook in the order in which they are to be called."""
        for implementation in reversed(getattr(self._pluggy.hook, hook).get_hookimpls()):
            reference, candidate = self._known[implementation.plugin_name]
            yield HookCall(hook, reference, candidate, implementation.function, tuple(implementation.argnames))

    def offered(self) -> tuple[tuple[Candidate, ...], tuple[Diagnostic, ...]]:
        """Plugin types that hook objects offer without entry points (`endpick_register`), and the failures to do so."""
        candidates: list[Candidate] = []
        faults: list[Diagnostic] = []
        for call in self.calls("endpick_register"):
            try:
                plugins = dict(cast("Mapping[object, object]", call() or {}))
            except CALL_FAILURES as error:
                if is_the_hosts(error):
                    raise
                faults.append(call.failure(Code.E0705, error))
                continue
            for plugin_type, plugin in plugins.items():
                result = _looked_at(call, plugin_type, plugin)
                (candidates if isinstance(result, Candidate) else faults).append(result)  # type: ignore[arg-type]
        return tuple(candidates), tuple(faults)

    def plugin_loaded(self, loaded: LoadedPlugin) -> None:
        """Tell the hook objects of a loaded plugin type; once, however many plans use it."""
        if loaded.plugin not in self._told:
            self._told.add(loaded.plugin)
            origin = loaded.candidate
            record = PluginRecord(
                loaded.type, tuple(kind.kind for kind in loaded.kinds), origin.distribution, origin.version, loaded.load_seconds
            )
            self._notify("endpick_plugin_loaded", record=record)

    def validate(self, source: SourceMap) -> tuple[Diagnostic, ...]:
        """What the hook objects say about a document with which the host itself finds no fault."""
        found: list[Diagnostic] = []
        for call in self.calls("endpick_validate"):
            report = HookConfigReport(call, source)
            try:
                call(config=deepcopy(source.data), report=report)
            except CALL_FAILURES as error:
                if is_the_hosts(error):
                    raise
                found.append(call.failure(Code.E0705, error))
            found.extend(report.diagnostics)
        return tuple(found)

    def configure(self, services: HostServices) -> tuple[Diagnostic, ...]:
        """Let the hook objects replace what plugins are given; `services` is changed in place."""
        return self._attempt("endpick_configure", Code.E0706, services=services)

    def add_commands(self, group: click.Group) -> tuple[Diagnostic, ...]:
        """Let the hook objects add verbs to the command line."""
        return self._attempt("endpick_add_commands", Code.E0705, group=group)

    async def startup(self, host: HostView, deadline_seconds: float = DEADLINE_SECONDS) -> tuple[Diagnostic, ...]:
        """Announce that serving is about to begin. Any failure returned should end the start."""
        return await self._await_each(self.calls("endpick_startup"), Code.E0706, deadline_seconds, partial(_shown, host))

    async def shutdown(self, host: HostView, deadline_seconds: float = DEADLINE_SECONDS) -> tuple[Diagnostic, ...]:
        """Announce that serving has ended, to the last hook object first."""
        calls = reversed(list(self.calls("endpick_shutdown")))
        return await self._await_each(calls, Code.E0704, deadline_seconds, partial(_shown, host))

    async def reload(self, old: Document, new: Document, deadline_seconds: float = DEADLINE_SECONDS) -> tuple[Diagnostic, ...]:
        """Ask whether a new configuration may replace the old one; any diagnostic is a veto, and so is a failure."""
        calls = self.calls("endpick_config_reload")
        return await self._await_each(calls, Code.E0707, deadline_seconds, lambda: {"old": deepcopy(old), "new": deepcopy(new)})

    def _notify(self, hook: str, **offered: object) -> None:
        for call in self.calls(hook):
            try:
                call(**offered)
            except CALL_FAILURES as error:
                if is_the_hosts(error):
                    raise
                self._log_once(call, error)

    def _log_once(self, call: HookCall, error: BaseException) -> None:
        message = call.failure_message(error)
        if message not in self._logged:
            self._logged.add(message)
            _log.warning(message, exc_info=for_log(error))

    def _attempt(self, hook: str, code: Code, **offered: object) -> tuple[Diagnostic, ...]:
        faults: list[Diagnostic] = []
        for call in self.calls(hook):
            try:
                call(**offered)
            except CALL_FAILURES as error:
                if is_the_hosts(error):
                    raise
                faults.append(call.failure(code, error))
        return tuple(faults)

    @staticmethod
    async def _await_each(
        calls: Iterable[HookCall], code: Code, deadline_seconds: float, offered: Callable[[], dict[str, object]]
    ) -> tuple[Diagnostic, ...]:
        """`offered` makes for each what it is shown: what one does to it no other sees. In a thread, as documents may be long."""
        attempts = [await call.attempt(code, deadline_seconds, **await asyncio.to_thread(offered)) for call in calls]
        return tuple(fault for fault in attempts if fault is not None)


def _shown(host: HostView) -> dict[str, object]:
    return {"host": HostView(deepcopy(host.config), {**host.instances})}


def load_hooks(
    references: Sequence[Reference], candidates: Sequence[Candidate], policy: Policy | None = None, lock: LockCheck | None = None
) -> tuple[HookRegistry, tuple[Diagnostic, ...]]:
    """The hook objects of a configuration, and what is wrong with those that are missing from the registry.

    Args:
        references: The `hooks:` entries in their order; `Reference.type` is the hook object's name.
        candidates: What is installed, from `discover_hook_objects`.
        policy: Whose code may be imported.
        lock: What the operator pinned; what differs is not imported.
    """
    registry = HookRegistry()
    faults: list[Diagnostic] = []
    for reference in reversed(references):
        loaded = load_hook_object(reference, candidates, policy or Policy(), lock)
        if isinstance(loaded, Diagnostic):
            faults.append(loaded)
            continue
        wrong = hook_faults(reference, *loaded)
        twice = None if wrong else registry.add_first(reference, *loaded)
        faults.extend(wrong if twice is None else (twice,))
    return registry, tuple(reversed(faults))


def _looked_at(call: HookCall, plugin_type: object, plugin: object) -> Candidate | Diagnostic:
    """`_candidate`; what it looks at may raise as the hook object's call may."""
    try:
        return _candidate(call, plugin_type, plugin)
    except CALL_FAILURES as error:
        if is_the_hosts(error):
            raise
        return call.failure(Code.E0705, error)


def _candidate(call: HookCall, plugin_type: object, plugin: object) -> Candidate | Diagnostic:
    """The plugin type that a registered class offers."""
    if not isinstance(plugin_type, str) or not isinstance(plugin, type) or not issubclass(plugin, Plugin):
        return call.fault(
            Code.E0705, f"registers {shown(plugin)} as {shown(plugin_type)}; it needs a plugin class under the name of its type"
        )
    if "<locals>" in plugin.__qualname__:
        return call.fault(Code.E0705, f"registers {plugin.__qualname__}, which cannot be imported because it is local to a function")
    origin = call.candidate
    target = f"{plugin.__module__}:{plugin.__qualname__}"
    return replace(origin, type=plugin_type, api_major=API_MAJOR, target=target)
