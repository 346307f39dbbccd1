"""What plugins hand to the host is checked where it is made: the exception then points at the plugin's own line, and is its fault."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Kinds", "check_fields", "check_headers", "check_strings"]

Kinds = tuple[tuple[str, type | tuple[type, ...]], ...]
"""Field names, each with the types its value may have."""


def check_fields(record: object, kinds: Kinds) -> None:
    """Raise TypeError when a field holds something else than its annotation says."""
    for name, kind in kinds:
        value = getattr(record, name)
        if not isinstance(value, kind):
            raise TypeError(f"{name} of a {type(record).__name__} must be {_listed(kind)}, not {type(value).__name__}")


def check_strings(record: object, name: str, values: Iterable[object]) -> None:
    """Raise TypeError when something in a collection is no string."""
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"{name} of a {type(record).__name__} must hold strings only, not {type(value).__name__}")


def check_headers(headers: Iterable[tuple[object, object]]) -> None:
    """Raise TypeError when a header's name or value is no string."""
    for name, value in headers:
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"header {name!r} is set to {value!r}; names and values must be strings")


def _listed(kind: type | tuple[type, ...]) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join("None" if each is type(None) else each.__name__ for each in kinds)
