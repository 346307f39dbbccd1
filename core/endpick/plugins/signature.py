"""Whether a plugin's methods can be called as the host will call them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

_API_PACKAGE = "endpick.api."
_EITHER_WAY = frozenset({"produce"})
"""Methods that may be plain or `async def`, at the author's choice."""


@dataclass(frozen=True, slots=True)
class SignatureFault:
    """A method that the host could not call."""

    method: str
    reason: str


def signature_faults(plugin: type) -> tuple[SignatureFault, ...]:
    """Every method of a kind that `plugin` overrides in a way that does not fit."""
    return tuple(fault for name, base in _contract(plugin) for fault in _method_faults(plugin, name, base))


def _contract(plugin: type) -> Iterator[tuple[str, type]]:
    """Public methods, and the constructor, of the plugin's bases in `endpick.api`, each with the base that defines it."""
    seen: set[str] = set()
    for base in plugin.__mro__:
        if not base.__module__.startswith(_API_PACKAGE):
            continue
        for name, member in vars(base).items():
            is_method = inspect.isfunction(member) or isinstance(member, classmethod | staticmethod)
            if is_method and name not in seen and (name == "__init__" or not name.startswith("_")):
                seen.add(name)
                yield name, base


def _method_faults(plugin: type, name: str, base: type) -> Iterator[SignatureFault]:
    owner = next(klass for klass in plugin.__mro__ if name in vars(klass))
    if owner.__module__.startswith(_API_PACKAGE):
        return
    member, expected = inspect.getattr_static(plugin, name), getattr(base, name)
    if not callable(getattr(plugin, name)):
        yield SignatureFault(name, "is not a method")
        return
    arguments = _arguments(expected, is_bound=isinstance(vars(base)[name], classmethod))
    problem = _cannot_take(getattr(plugin, name), arguments, is_bound=isinstance(member, classmethod | staticmethod))
    if problem:
        yield SignatureFault(name, f"is called with ({', '.join(arguments)}), but {problem}")
    is_async = inspect.iscoroutinefunction(getattr(plugin, name))
    if name not in _EITHER_WAY and is_async != inspect.iscoroutinefunction(expected):
        yield SignatureFault(name, "must not be `async def`: the host does not await it" if is_async else "must be `async def`")


def _arguments(method: object, *, is_bound: bool) -> list[str]:
    assert callable(method)
    names = list(inspect.signature(method).parameters)
    return names if is_bound else names[1:]


def _cannot_take(method: object, arguments: list[str], *, is_bound: bool) -> str | None:
    assert callable(method)
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # written in C: it tells nothing, so it gets the benefit of the doubt
        return None
    values = [None] * (len(arguments) + (0 if is_bound else 1))
    try:
        signature.bind(*values)
    except TypeError as error:
        return str(error)
    return None
