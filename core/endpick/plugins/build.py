"""Builds instances: constructs plugin objects with their parameters, and says whose fault a failure is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from endpick.api.data import Subscriptions
from endpick.api.errors import ConfigurationError
from endpick.api.plugin import Parameters, PluginContext
from endpick.diagnostics import Code, Diagnostic
from endpick.plugins.attribution import attributed
from endpick.plugins.frames import describe, trace_notes
from endpick.plugins.instance import Instance, OnFault, default_on_fault, scope_of
from endpick.plugins.loader import LoadedPlugin
from endpick.plugins.placing import Place
from endpick.plugins.reference import Reference

T = TypeVar("T")


def subscriptions_of(loaded: LoadedPlugin, parameters: Parameters, place: Place | None = None) -> Subscriptions | Diagnostic:
    """The data keys of an instance with these parameters; a diagnostic when the plugin fails to tell."""
    return _guarded(loaded, place or _nowhere(loaded), lambda: loaded.plugin.subscriptions(parameters), Subscriptions)


def build(
    loaded: LoadedPlugin,
    name: str,
    parameters: Parameters,
    on_fault: OnFault | None,
    context: PluginContext,
    *,
    subscriptions: Subscriptions | None = None,
    place: Place | None = None,
) -> Instance | Diagnostic:
    """One instance; `on_fault` None means the default of its kinds. A constructor that raises is a diagnostic at `place`."""
    place = place or _nowhere(loaded)
    declared = subscriptions_of(loaded, parameters, place) if subscriptions is None else subscriptions
    if isinstance(declared, Diagnostic):
        return declared
    plugin = _guarded(loaded, place, lambda: loaded.plugin(name, parameters, context), loaded.plugin)
    if isinstance(plugin, Diagnostic):
        return plugin
    return Instance(
        name=name,
        type=loaded.type,
        distribution=loaded.candidate.distribution,
        version=loaded.candidate.version,
        kinds=loaded.kinds,
        plugin=plugin,
        subscriptions=declared,
        on_fault=on_fault or default_on_fault(loaded.kinds),
        scope=scope_of(name, declared),
        registry=context.registry,
        place=place,
    )


def instance_logger(loaded: LoadedPlugin, name: str) -> logging.Logger:
    """A logger for `PluginContext` whose records carry the instance's identity, wherever they are written from."""
    origin = f"{name} ({loaded.type}, {loaded.candidate.origin})"
    logger = logging.getLogger(f"endpick.plugin.{name}")
    logger.filters = [_Stamp(origin)]
    return logger


class _Stamp(logging.Filter):
    def __init__(self, origin: str) -> None:
        super().__init__()
        self.origin = origin

    def filter(self, record: logging.LogRecord) -> bool:
        record.plugin = self.origin
        return True


def _nowhere(loaded: LoadedPlugin) -> Place:
    return Place(Reference(loaded.type))


def _guarded(loaded: LoadedPlugin, place: Place, call: Callable[[], T], expected: type[T]) -> T | Diagnostic:
    plugin = place.reference.plugin(loaded.candidate)

    def refused(message: str, help_line: str, notes: tuple[str, ...] = ()) -> Diagnostic:
        return Diagnostic(Code.E0403, message, place.key_span(()), help=help_line, notes=notes, plugin=plugin, path=place.path)

    fault = f"this is a fault of {loaded.candidate.distribution}; report it to its author, or install another release"
    try:
        with attributed(str(plugin)):
            value = call()
    except ConfigurationError as error:
        return refused(f"{plugin} cannot work with its parameters: {error}", "correct the parameters")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return refused(f"{plugin} failed while it was built: {describe(error)}", fault, trace_notes(error))
    return value if isinstance(value, expected) else refused(f"{plugin} answered {value!r}, not {expected.__name__}", fault)
