"""A configured plugin object together with what the host knows about it, and how one is built."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from endpick.api.access import AccessScope
from endpick.api.data import Subscriptions
from endpick.api.errors import ConfigurationError
from endpick.api.plugin import Parameters, Plugin, PluginContext
from endpick.api.request import shown
from endpick.api.scheduling import ProfileHandler
from endpick.diagnostics import Code, Diagnostic
from endpick.host.attributes import wrong_in
from endpick.host.breaker import DEFAULT_SETTINGS, Breaker, BreakerSettings
from endpick.host.discovery import Candidate
from endpick.host.elsewhere import GrownMetrics
from endpick.host.failures import CALL_FAILURES, is_the_hosts, message_of
from endpick.host.importing import attributed, describe, trace_notes
from endpick.host.kinds import Kind, OnFault, default_on_fault
from endpick.host.loader import LoadedPlugin
from endpick.host.loggers import logger_for
from endpick.host.parameters import ParameterSource
from endpick.host.resolution import Reference

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry


@dataclass(frozen=True, slots=True)
class Instance:
    """One built plugin.

    Attributes:
        scope: What its views are checked against while it runs.
        registry: The metrics it keeps for itself.
        place: Where the configuration asks for it.
        breaker: Says whether it is called at all; carried over with the instance.
        candidate: What was imported; None for an instance that was not built from an installed plugin.
        elsewhere: What a double of it has counted in another process; carried over with the instance.
        stand_in: What plugins get whose parameters name it; None for an instance of a kind that no other calls.
    """

    name: str
    type: str
    distribution: str
    version: str
    kinds: tuple[Kind, ...]
    plugin: Plugin[Parameters]
    subscriptions: Subscriptions
    on_fault: OnFault
    scope: AccessScope
    registry: CollectorRegistry | None = None
    place: ParameterSource | None = None
    breaker: Breaker = field(default_factory=lambda: Breaker(DEFAULT_SETTINGS, time.monotonic), compare=False)
    candidate: Candidate | None = None
    elsewhere: GrownMetrics = field(default_factory=GrownMetrics, compare=False)
    stand_in: Plugin[Parameters] | None = field(default=None, compare=False)

    @property
    def origin(self) -> str:
        """How logs and diagnostics name it: `queue (queue-scorer, endpick 0.1.0)`."""
        return f"{self.name} ({self.type}, {self.distribution} {self.version})"


def scope_of(name: str, subscriptions: Subscriptions, plugin_type: str = "") -> AccessScope:
    """The keys an instance may touch: it reads what it consumes or produces, and writes what it produces."""
    produced = frozenset(key.name for key in subscriptions.produces)
    consumed = frozenset(key.name for key in (*subscriptions.consumes, *subscriptions.consumes_optional))
    return AccessScope(name, consumed | produced, produced, plugin_type, max_ages=subscriptions.max_ages)


T = TypeVar("T")


def subscriptions_of(loaded: LoadedPlugin, parameters: Parameters, place: ParameterSource | None = None) -> Subscriptions | Diagnostic:
    """The data keys of an instance with these parameters; a diagnostic when the plugin fails to tell."""
    return _guarded(loaded, place or _nowhere(loaded), lambda: loaded.plugin.subscriptions(parameters), Subscriptions)


def required_profiles_of(loaded: LoadedPlugin, parameters: Parameters, place: ParameterSource) -> tuple[str, ...] | Diagnostic:
    """The scheduling profiles without which a profile handler with these parameters cannot do; a diagnostic when it fails to tell."""
    assert issubclass(loaded.plugin, ProfileHandler)
    handler = loaded.plugin
    return _guarded(loaded, place, lambda: handler.required_profiles(parameters), tuple)


def optional_profiles_of(loaded: LoadedPlugin, parameters: Parameters, place: ParameterSource) -> tuple[str, ...] | Diagnostic:
    """The scheduling profiles that it would run and does without where they are not defined; a diagnostic when it fails to tell."""
    assert issubclass(loaded.plugin, ProfileHandler)
    handler = loaded.plugin
    return _guarded(loaded, place, lambda: handler.optional_profiles(parameters), tuple)


def build(
    loaded: LoadedPlugin,
    name: str,
    parameters: Parameters,
    on_fault: OnFault | None,
    context: PluginContext,
    *,
    subscriptions: Subscriptions | None = None,
    place: ParameterSource | None = None,
    breaker: BreakerSettings = DEFAULT_SETTINGS,
) -> Instance | Diagnostic:
    """One instance; `on_fault` None means the default of its kinds. A constructor that raises is a diagnostic at `place`."""
    place = place or _nowhere(loaded)
    declared = subscriptions_of(loaded, parameters, place) if subscriptions is None else subscriptions
    if isinstance(declared, Diagnostic):
        return declared
    plugin = _guarded(loaded, place, lambda: loaded.plugin(name, parameters, context), loaded.plugin)
    if isinstance(plugin, Diagnostic):
        return plugin
    unfit = _attribute_fault(loaded, plugin, place)
    if unfit is not None:
        return unfit
    return Instance(
        name=name,
        type=loaded.type,
        distribution=loaded.candidate.distribution,
        version=loaded.candidate.version,
        kinds=loaded.kinds,
        plugin=plugin,
        subscriptions=declared,
        on_fault=on_fault or default_on_fault(loaded.kinds),
        scope=scope_of(name, declared, loaded.type),
        registry=context.registry,
        place=place,
        breaker=Breaker(breaker, context.clock),
        candidate=loaded.candidate,
    )


def _attribute_fault(loaded: LoadedPlugin, plugin: Plugin[Parameters], place: ParameterSource) -> Diagnostic | None:
    """Why the host cannot work with what it reads of an instance; None when it can."""
    wrong = _guarded(loaded, place, lambda: wrong_in(plugin) or "", str)
    if isinstance(wrong, Diagnostic):
        return wrong
    blamed = place.reference.plugin(loaded.candidate)
    message = f"{blamed} cannot be used: {wrong}"
    help_line = _fault_of(loaded)
    return Diagnostic(Code.E0403, message, place.key_span(()), help=help_line, plugin=blamed, path=place.path) if wrong else None


def instance_logger(loaded: LoadedPlugin, name: str) -> logging.Logger:
    """A logger for `PluginContext` whose records carry the instance's identity, wherever they are written from."""
    return logger_for(name, f"{name} ({loaded.type}, {loaded.candidate.origin})")


def _nowhere(loaded: LoadedPlugin) -> ParameterSource:
    return ParameterSource(Reference(loaded.type))


def _fault_of(loaded: LoadedPlugin) -> str:
    return f"this is a fault of {loaded.candidate.distribution}; report it to its author, or install another release"


def _guarded(loaded: LoadedPlugin, place: ParameterSource, call: Callable[[], T], expected: type[T]) -> T | Diagnostic:
    plugin = place.reference.plugin(loaded.candidate)

    def refused(message: str, help_line: str, notes: tuple[str, ...] = ()) -> Diagnostic:
        return Diagnostic(Code.E0403, message, place.key_span(()), help=help_line, notes=notes, plugin=plugin, path=place.path)

    fault = _fault_of(loaded)
    try:
        with attributed(str(plugin)):
            value = call()
    except ConfigurationError as error:
        return refused(f"{plugin} cannot work with its parameters: {message_of(error)}", "correct the parameters")
    except CALL_FAILURES as error:
        if is_the_hosts(error):
            raise
        return refused(f"{plugin} failed while it was built: {describe(error)}", fault, trace_notes(error))
    return value if isinstance(value, expected) else refused(f"{plugin} answered {shown(value)}, not {expected.__name__}", fault)
