"""Checks that an imported class can serve as a plugin."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from types import NoneType
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from endpick.api.data import DataKey
from endpick.api.datalayer import DataCollector, DataSource, EndpointEventSource, PollingPoolSource, PollingSource, PoolSource, StreamSource
from endpick.api.discovery import EndpointDiscovery
from endpick.api.plugin import Parameters, Plugin, RefersTo, Stability
from endpick.api.request import shown
from endpick.api.request_control import DataProducer, Parser
from endpick.api.scheduling import Picker, ProfileHandler
from endpick.diagnostics import Code, Diagnostic
from endpick.host.discovery import Candidate
from endpick.host.kinds import KINDS, kinds_of, parameters_model
from endpick.host.resolution import Reference


@dataclass(frozen=True, slots=True)
class _Attribute:
    kind: type[Plugin[Any]]
    name: str
    wanted: str
    fits: Callable[[object], bool]


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _is_interval(value: object) -> bool:
    return value is None or value == 0 or _is_positive(value)


def _is_instance(*types: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, types)


def _are_names(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(name, str) for name in value)


_ATTRIBUTES = (
    _Attribute(Plugin, "tolerated_age_seconds", "a number of seconds or None", _is_interval),
    _Attribute(PollingSource, "interval_seconds", "a number of seconds or None", _is_interval),
    _Attribute(PollingSource, "timeout_seconds", "a number of seconds above 0", _is_positive),
    _Attribute(PollingSource, "repeats_payload", "True or False", _is_instance(bool)),
    _Attribute(PollingPoolSource, "interval_seconds", "a number of seconds above 0", _is_positive),
    _Attribute(PollingPoolSource, "timeout_seconds", "a number of seconds above 0", _is_positive),
    _Attribute(DataSource, "default_collectors", "a tuple of names", _are_names),
    _Attribute(DataCollector, "default_source", "a name or None", _is_instance(str, NoneType)),
    _Attribute(EndpointDiscovery, "publishes_objectives", "True or False", _is_instance(bool)),
    _Attribute(DataProducer, "timeout_seconds", "a number of seconds above 0", _is_positive),
    _Attribute(Parser, "claims", "a tuple of names", _are_names),
    _Attribute(Parser, "reads_usage", "True or False", _is_instance(bool)),
    _Attribute(Parser, "usage_mark", "bytes", _is_instance(bytes)),
    _Attribute(Picker, "uses_scores", "True or False", _is_instance(bool)),
    _Attribute(ProfileHandler, "most_profiles", "a number above 0 or None", lambda value: value is None or _is_positive(value)),
)


def instance_fault(plugin: Plugin[Any]) -> str | None:
    """Return a message about the first invalid attribute of an instance, or None."""
    for attribute in _ATTRIBUTES:
        if isinstance(plugin, attribute.kind):
            value: object = getattr(plugin, attribute.name)
            if not attribute.fits(value):
                return f"its `{attribute.name}` is {shown(value)}, not {attribute.wanted}"
    return None


_API_PACKAGE = "endpick.api."
_SHAPES_OF_SOURCES = (PollingSource, StreamSource, PollingPoolSource, PoolSource, EndpointEventSource)
_SYNC_OR_ASYNC = frozenset({"produce"})

# From here a name is misspelt: `first_chunck` for `first_chunk`, but not `restart` for `start`.
_METHOD_SIMILARITY = 0.85
_ATTRIBUTE_SIMILARITY = 0.8


def signature_faults(plugin: type) -> tuple[tuple[str, str], ...]:
    """Return misspelt methods and methods that the host cannot call, each with the reason."""
    unfit = ((name, reason) for name, base in _contract(plugin) for reason in _method_faults(plugin, name, base))
    return (*unfit, *_misspelt_methods(plugin))


def _contract(plugin: type) -> Iterator[tuple[str, type]]:
    seen: set[str] = set()
    for base in plugin.__mro__:
        if not base.__module__.startswith(_API_PACKAGE):
            continue
        for name, member in vars(base).items():
            is_method = inspect.isfunction(member) or isinstance(member, classmethod | staticmethod)
            if is_method and name not in seen and (name == "__init__" or not name.startswith("_")):
                seen.add(name)
                yield name, base


def _misspelt_methods(plugin: type) -> Iterator[tuple[str, str]]:
    contract = dict(_contract(plugin))
    missing = [name for name, base in contract.items() if getattr(plugin, name) is getattr(base, name) and name != "__init__"]
    for klass in plugin.__mro__:
        if not issubclass(klass, Plugin) or klass.__module__.startswith(_API_PACKAGE):
            continue
        for name, member in vars(klass).items():
            if name in contract or name.startswith("_") or not inspect.isfunction(member):
                continue
            meant = _meant(name, [method for method in missing if _is_called_alike(member, getattr(plugin, method))], _METHOD_SIMILARITY)
            if meant is not None:
                yield name, f"is called by no part of endpick: did you mean '{meant}'?"


def _is_called_alike(method: object, other: object) -> bool:
    assert callable(method)
    assert callable(other)
    same_count = len(inspect.signature(method).parameters) == len(inspect.signature(other).parameters)
    return same_count and inspect.iscoroutinefunction(method) == inspect.iscoroutinefunction(other)


def _meant(name: str, known: Iterable[str], similarity: float) -> str | None:
    return next(iter(get_close_matches(name, sorted(known), n=1, cutoff=similarity)), None)


def _misspelt_attributes(plugin: type) -> Iterator[tuple[str, str]]:
    bases = [base for base in plugin.__mro__ if base.__module__.startswith(_API_PACKAGE)]
    known = {name for base in bases for name in getattr(base, "__annotations__", {})} - {"kind"}
    for klass in plugin.__mro__:
        if not issubclass(klass, Plugin) or klass.__module__.startswith(_API_PACKAGE):
            continue
        for name, value in vars(klass).items():
            if name.startswith("_") or name in known or callable(value) or isinstance(value, property | classmethod | staticmethod):
                continue
            meant = _meant(name, known, _ATTRIBUTE_SIMILARITY)
            if meant is not None:
                yield name, meant


def _method_faults(plugin: type, name: str, base: type) -> Iterator[str]:
    owner = next(klass for klass in plugin.__mro__ if name in vars(klass))
    if owner.__module__.startswith(_API_PACKAGE):
        return
    member, expected = inspect.getattr_static(plugin, name), getattr(base, name)
    if not callable(getattr(plugin, name)):
        yield "is not a method"
        return
    arguments = _arguments(expected, is_bound=isinstance(vars(base)[name], classmethod))
    problem = _cannot_take(getattr(plugin, name), arguments, is_bound=isinstance(member, classmethod | staticmethod))
    if problem:
        yield f"is called with ({', '.join(arguments)}), but {problem}"
    is_async = inspect.iscoroutinefunction(getattr(plugin, name))
    if name not in _SYNC_OR_ASYNC and is_async != inspect.iscoroutinefunction(expected):
        yield "must not be `async def`: the host does not await it" if is_async else "must be `async def`"


@cache
def _arguments(method: object, *, is_bound: bool) -> tuple[str, ...]:
    assert callable(method)
    names = tuple(inspect.signature(method).parameters)
    return names if is_bound else names[1:]


def _cannot_take(method: object, arguments: tuple[str, ...], *, is_bound: bool) -> str | None:
    assert callable(method)
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # functions written in C have no signature
        return None
    values = [None] * (len(arguments) + (0 if is_bound else 1))
    try:
        signature.bind(*values)
    except TypeError as error:
        return str(error)
    return None


def check_contract(reference: Reference, candidate: Candidate, value: object) -> tuple[Diagnostic, ...]:
    """Return every reason why an object cannot serve as a plugin."""
    if not isinstance(value, type) or not issubclass(value, Plugin):
        return (_not_a_plugin_class(reference, candidate, value),)
    return (*_declaration_faults(reference, candidate, value), *_class_faults(reference, candidate, value))


def _blame(candidate: Candidate) -> str:
    return f"this has to be corrected in {candidate.distribution}; report it to its author, or install another release"


def _not_a_plugin_class(reference: Reference, candidate: Candidate, value: object) -> Diagnostic:
    found = f"the class {value.__qualname__}" if isinstance(value, type) else f"an object of type {type(value).__qualname__}"
    if inspect.ismodule(value):
        found = f"the module {value.__name__}"
    return reference.diagnostic(
        Code.E0309,
        f"the entry point of '{candidate.type}' in {candidate.origin} leads to {found}, not to a plugin class",
        candidate,
        annotation=f"leads to {candidate.target}",
        help=_blame(candidate),
        notes=("a plugin is a class that derives from a kind of endpick.api, such as Scorer",),
    )


def _class_faults(reference: Reference, candidate: Candidate, plugin: type[Plugin[Parameters]]) -> Iterable[Diagnostic]:
    name = f"{plugin.__qualname__} in {candidate.origin}"
    if not kinds_of(plugin):
        kinds = ", ".join(kind.kind for kind in KINDS)
        yield reference.diagnostic(
            Code.E0310,
            f"the plugin class {name} is of no kind",
            candidate,
            help=_blame(candidate),
            notes=(f"it derives from Plugin only; the kinds are {kinds}",),
        )
    if issubclass(plugin, DataSource) and not issubclass(plugin, _SHAPES_OF_SOURCES):
        names = [shape.__name__ for shape in _SHAPES_OF_SOURCES]
        yield reference.diagnostic(
            Code.E0310,
            f"the data source {name} does not say how it delivers",
            candidate,
            help=_blame(candidate),
            notes=(f"it derives from DataSource only, not from {', '.join(names[:-1])} or {names[-1]}",),
        )
    missing = _unimplemented(plugin)
    if missing:
        yield reference.diagnostic(
            Code.E0311,
            f"the plugin class {name} does not implement {', '.join(f'`{method}`' for method in missing)}",
            candidate,
            help=_blame(candidate),
        )
    for method, reason in signature_faults(plugin):
        yield reference.diagnostic(Code.E0313, f"`{method}` of the plugin class {name} {reason}", candidate, help=_blame(candidate))


def _unimplemented(plugin: type) -> list[str]:
    members: dict[str, object] = {}
    for klass in reversed(plugin.__mro__):
        members.update(vars(klass))
    return sorted(name for name, member in members.items() if getattr(member, "__isabstractmethod__", False))


def _declaration_faults(reference: Reference, candidate: Candidate, plugin: type[Plugin[Parameters]]) -> Iterable[Diagnostic]:
    whose = f"of '{candidate.type}' in {candidate.origin}"
    messages = []
    model = parameters_model(plugin)
    if not isinstance(model, type) or not issubclass(model, Parameters):
        messages.append(f"the parameters {whose} are {shown(model)}, not a subclass of endpick.api.Parameters")
    else:
        messages += [
            f"the parameter '{name}' {whose} refers to {shown(mark.kind)}, which is no kind whose instances other plugins call"
            for name, mark in _marks(model, set())
            if mark.kind not in KINDS or not KINDS[mark.kind].by_reference
        ]
    for attribute in ("consumes", "consumes_optional", "produces"):
        keys: object = getattr(plugin, attribute)
        if not isinstance(keys, tuple) or not all(isinstance(key, DataKey) for key in keys):
            messages.append(f"`{attribute}` {whose} is not a tuple of data keys")
    stability: object = plugin.stability
    if not isinstance(stability, Stability):
        messages.append(f"`stability` {whose} is {shown(stability)}, not a Stability")
    aliases: object = plugin.aliases
    if not isinstance(aliases, tuple) or not all(isinstance(alias, str) for alias in aliases):
        messages.append(f"`aliases` {whose} is not a tuple of names")
    for declared in _ATTRIBUTES:
        value: object = getattr(plugin, declared.name) if issubclass(plugin, declared.kind) else None
        is_property = hasattr(type(value), "__get__")  # checked on the instance
        if issubclass(plugin, declared.kind) and not is_property and not declared.fits(value):
            messages.append(f"`{declared.name}` {whose} is {shown(value)}, not {declared.wanted}")
    messages += [f"`{name}` {whose} is read by no part of endpick: did you mean '{meant}'?" for name, meant in _misspelt_attributes(plugin)]
    for message in messages:
        yield reference.diagnostic(Code.E0318, message, candidate, help=_blame(candidate))


def mark_of(field: FieldInfo) -> RefersTo | None:
    """Return the `RefersTo` annotation of a parameter, or None."""
    return next((mark for mark in field.metadata if isinstance(mark, RefersTo)), None)


def _marks(model: type[BaseModel], seen: set[type]) -> Iterator[tuple[str, RefersTo]]:
    if model in seen:
        return
    seen.add(model)
    for name, field in model.model_fields.items():
        mark = mark_of(field)
        if mark is not None:
            yield name, mark
        for inner in _models_of(field.annotation):
            yield from _marks(inner, seen)


def _models_of(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_of(argument)
