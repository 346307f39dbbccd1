"""Durations as Go writes them and quantities as Kubernetes writes them, to plain numbers."""

from __future__ import annotations

import math
import re
from fractions import Fraction

MAX_SECONDS = (2**63 - 1) / 1e9
"""The longest duration Go can hold, about 292 years."""

MAX_QUANTITY = 2**63 - 1

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
_DURATION_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_DURATION = re.compile(rf"([-+]?)((?:{_DURATION_PART.pattern})+)", re.ASCII)

_FACTOR_PER_SUFFIX = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{suffix: Fraction(1024**power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
}
_QUANTITY = re.compile(r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([numkMGTPE]?|[KMGTPE]i)|[eE]([-+]?[0-9]{1,3}))", re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds of a Go duration such as `200ms`, `1m30s` or `0`.

    Raises:
        ValueError: it is not a duration, or longer than Go can hold.
    """
    if text in ("0", "+0", "-0"):
        return 0.0
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not a duration")
    parts = _DURATION_PART.findall(match[2])
    seconds = float(sum(Fraction(number.rstrip(".")) * _SECONDS_PER_UNIT[unit] for number, unit in parts))
    if seconds > MAX_SECONDS:
        raise ValueError(f"'{text}' is not a duration")
    return -seconds if match[1] == "-" else seconds


def parse_quantity(text: str) -> int:
    """The whole number of a Kubernetes quantity such as `1Gi`, `5k`, `1.5M` or `2e3`; fractions are rounded up.

    Raises:
        ValueError: it is not a quantity, or does not fit 64 bits.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not a quantity")
    factor = Fraction(10) ** int(match[3]) if match[3] else _FACTOR_PER_SUFFIX[match[2] or ""]
    value = math.ceil(Fraction(match[1].rstrip(".")) * factor)
    if abs(value) > MAX_QUANTITY:
        raise ValueError(f"'{text}' is not a quantity")
    return value
