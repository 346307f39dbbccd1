"""Constructs plugin instances, and holds the data scope and circuit breaker of each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from endpick.api.access import AccessScope
from endpick.api.data import Subscriptions
from endpick.api.errors import ConfigurationError
from endpick.api.plugin import Parameters, Plugin, PluginContext
from endpick.api.request import shown
from endpick.api.scheduling import ProfileHandler
from endpick.diagnostics import Diagnostic
from endpick.host.breaker import DEFAULT_SETTINGS, Breaker, BreakerSettings
from endpick.host.contract import instance_fault
from endpick.host.discovery import Candidate
from endpick.host.failures import PLUGIN_ERRORS, describe_error, trace_notes
from endpick.host.importing import attributed
from endpick.host.kinds import Kind, OnFault, default_on_fault
from endpick.host.loader import LoadedPlugin
from endpick.host.parameters import ParameterSource, refusal
from endpick.host.resolution import Reference

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Instance:
    """A constructed plugin with its name, data scope, circuit breaker and `onFault`."""

    name: str
    type: str
    distribution: str
    version: str
    kinds: tuple[Kind, ...]
    plugin: Plugin[Parameters]
    subscriptions: Subscriptions
    on_fault: OnFault
    scope: AccessScope  # data keys it may access
    registry: CollectorRegistry | None = None  # its own metrics
    place: ParameterSource | None = None  # its entry in the configuration
    breaker: Breaker = field(default_factory=lambda: Breaker(DEFAULT_SETTINGS, time.monotonic), compare=False)
    candidate: Candidate | None = None  # None if it was built from a class directly
    proxy: Plugin[Parameters] | None = field(default=None, compare=False)  # for plugins whose parameters name this instance

    @property
    def origin(self) -> str:
        """The name in logs and diagnostics, such as `queue (queue-scorer, endpick 0.2.0)`."""
        return f"{self.name} ({self.type}, {self.distribution} {self.version})"


def scope_of(name: str, subscriptions: Subscriptions, plugin_type: str = "") -> AccessScope:
    """Return the keys that an instance may read (consumed and produced ones) and write (produced ones)."""
    produced = frozenset(key.name for key in subscriptions.produces)
    consumed = frozenset(key.name for key in (*subscriptions.consumes, *subscriptions.consumes_optional))
    return AccessScope(name, consumed | produced, produced, plugin_type, max_ages=subscriptions.max_ages)


def subscriptions_of(loaded: LoadedPlugin, parameters: Parameters, place: ParameterSource | None = None) -> Subscriptions | Diagnostic:
    """Return the data keys of an instance with these parameters, or a diagnostic."""
    return _guarded(loaded, place or _nowhere(loaded), lambda: loaded.plugin.subscriptions(parameters), Subscriptions)


def profiles_of(loaded: LoadedPlugin, parameters: Parameters, place: ParameterSource) -> tuple[tuple[str, ...] | Diagnostic, ...]:
    """Return the required and the optional scheduling profiles of a profile handler."""
    assert issubclass(loaded.plugin, ProfileHandler)
    handler = loaded.plugin
    return tuple(_guarded(loaded, place, partial(ask, parameters), tuple) for ask in (handler.required_profiles, handler.optional_profiles))


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
    """Construct an instance; returns a diagnostic if the constructor raises. `on_fault` None is the kinds' default."""
    place = place or _nowhere(loaded)
    declared = subscriptions_of(loaded, parameters, place) if subscriptions is None else subscriptions
    if isinstance(declared, Diagnostic):
        return declared
    plugin = _guarded(loaded, place, lambda: loaded.plugin(name, parameters, context), loaded.plugin)
    if isinstance(plugin, Diagnostic):
        return plugin
    wrong = _guarded(loaded, place, lambda: instance_fault(plugin) or "", str)
    if isinstance(wrong, Diagnostic):
        return wrong
    if wrong:
        return refusal(loaded, place, f"cannot be used: {wrong}", _blame(loaded))
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


class _Stamp(logging.Filter):
    def __init__(self, origin: str) -> None:
        super().__init__()
        self._origin = origin

    def filter(self, record: logging.LogRecord) -> bool:
        record.plugin = self._origin
        return True


def instance_logger(loaded: LoadedPlugin, name: str) -> logging.Logger:
    """Return the logger of an instance; its records carry the instance's origin as `plugin`."""
    logger = logging.getLogger(f"endpick.plugin.{name}")
    logger.filters[:] = [_Stamp(f"{name} ({loaded.type}, {loaded.candidate.origin})")]
    return logger


def _nowhere(loaded: LoadedPlugin) -> ParameterSource:
    return ParameterSource(Reference(loaded.type))


def _blame(loaded: LoadedPlugin) -> str:
    return f"this is a fault of {loaded.candidate.distribution}; report it to its author, or install another release"


def _guarded(loaded: LoadedPlugin, place: ParameterSource, call: Callable[[], T], expected: type[T]) -> T | Diagnostic:
    try:
        with attributed(str(place.reference.plugin(loaded.candidate))):
            value = call()
    except ConfigurationError as error:
        return refusal(loaded, place, f"cannot work with its parameters: {error}", error.repair)
    except PLUGIN_ERRORS as error:
        return refusal(loaded, place, f"failed while it was built: {describe_error(error)}", _blame(loaded), trace_notes(error))
    if not isinstance(value, expected):
        return refusal(loaded, place, f"answered {shown(value)}, not {expected.__name__}", _blame(loaded))
    return value
