"""Durations, quantities and whole numbers as fields of the configuration."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from endpick.api.plugin import parse_duration


def _duration(value: object) -> object:
    if not isinstance(value, str):
        raise PydanticCustomError("duration_type", "must be a duration")
    try:
        seconds = parse_duration(value)
    except ValueError:
        raise PydanticCustomError("duration", "is not a duration") from None
    if seconds < 0:
        raise PydanticCustomError("negative", "must not be negative")
    return seconds


def _quantity(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PydanticCustomError("quantity_type", "must be a quantity")
    try:
        quantity = parse_quantity(str(value))
    except ValueError:
        raise PydanticCustomError("quantity", "is not a quantity") from None
    if quantity < 0:
        raise PydanticCustomError("negative", "must not be negative")
    return quantity


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


_DURATION_SCHEMA = {"type": "string", "pattern": r"^\+?(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$"}
_QUANTITY_SCHEMA = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\+?([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]?|[KMGTPE]i|[eE][-+]?[0-9]{1,3})$"},
    ]
}

WholeNumber = Annotated[int, BeforeValidator(_whole)]
Duration = Annotated[float, BeforeValidator(_duration), WithJsonSchema(_DURATION_SCHEMA)]  # seconds, as a Go duration such as `1m30s`
Quantity = Annotated[int, BeforeValidator(_quantity), WithJsonSchema(_QUANTITY_SCHEMA)]  # a Kubernetes quantity such as `1Gi`

MAX_QUANTITY = 2**63 - 1

_FACTOR_PER_SUFFIX = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{suffix: Fraction(1024**power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
}
_QUANTITY = re.compile(r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([numkMGTPE]?|[KMGTPE]i)|[eE]([-+]?[0-9]{1,3}))", re.ASCII)


def parse_quantity(text: str) -> int:
    """Parse a Kubernetes quantity such as `1Gi` or `2e3`; rounds up. Raises ValueError for others and beyond 64 bits."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not a quantity")
    factor = Fraction(10) ** int(match[3]) if match[3] else _FACTOR_PER_SUFFIX[match[2] or ""]
    value = math.ceil(Fraction(match[1].rstrip(".")) * factor)
    if abs(value) > MAX_QUANTITY:
        raise ValueError(f"'{text}' is not a quantity")
    return value
