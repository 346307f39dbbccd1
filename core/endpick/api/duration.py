"""Durations in Go's notation: `50ms`, `1.5s`, `1m30s`."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, WithJsonSchema

MAX_SECONDS = (2**63 - 1) / 1e9  # Go's maximum, about 292 years

_SECONDS_PER_UNIT = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "μs": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
_PART = r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_DURATION = rf"([-+]?)(0|({_PART})+)"


def parse_duration(text: str) -> float:
    """Parse a Go duration such as `200ms` or `1m30s` into seconds. Raises ValueError."""
    match = re.fullmatch(_DURATION, text)
    if match is None:
        raise ValueError(f"'{text}' is not a duration; write for example 50ms, 2s or 1m30s")
    parts = re.findall(_PART, match[2])
    seconds = float(sum(Fraction(number.rstrip(".")) * _SECONDS_PER_UNIT[unit] for number, unit in parts))
    if seconds > MAX_SECONDS:
        raise ValueError(f"'{text}' is not a duration: it is longer than 292 years")
    return -seconds if match[1] == "-" else seconds


def duration_text(seconds: float) -> str:
    """Format seconds so that `parse_duration` reads them back."""
    if 0 < abs(seconds) < 1:
        return f"{seconds * 1000:g}ms"
    unit, size = next(((unit, size) for unit, size in (("h", 3600), ("m", 60)) if seconds and seconds % size == 0), ("s", 1))
    return f"{seconds / size:g}{unit}"


def _read(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


DURATION_SCHEMA = {"type": "string", "pattern": f"^{_DURATION}$", "examples": ["50ms", "2s", "1m30s"]}

Duration: TypeAlias = Annotated[float, BeforeValidator(_read), WithJsonSchema(DURATION_SCHEMA)]
"""A parameter written as a Go duration and read as seconds. Add `Field(gt=0)` to refuse zero and less."""
