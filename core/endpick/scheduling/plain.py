"""Records as plain data, for programs: what `endpick try --format json` prints and what decision observers are given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from endpick.api.request import JSONValue


def plain(value: object) -> JSONValue:
    """The value as JSON knows it: field names in camelCase; NaN and infinity, which JSON does not have, become null."""
    if is_dataclass(value):
        return {_camel_case(field.name): plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
