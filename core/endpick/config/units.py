"""Quantities as Kubernetes writes them, to plain numbers."""

from __future__ import annotations

import math
import re
from fractions import Fraction

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
