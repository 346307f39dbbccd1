"""What a YAML scalar means, and where other YAML readers would disagree."""

from __future__ import annotations

import math
import re

Scalar = str | int | float | bool | None

MAX_DIGITS = 40
_CORE = "tag:yaml.org,2002:"

# YAML 1.1, which llm-d's reader follows, takes these words for booleans; YAML 1.2 takes them for text.
_TRUE_IN_YAML_1_1 = frozenset({"y", "yes", "on"})
_FALSE_IN_YAML_1_1 = frozenset({"n", "no", "off"})

# YAML 1.1 reads a leading zero as octal, YAML 1.2 as decimal.
_OCTAL_IN_YAML_1_1 = re.compile(r"[-+]?0[0-7_]*[1-7][0-7_]*")


class UnreadableScalarError(ValueError):
    """The text of a scalar does not fit its tag."""


class NumberOutOfRangeError(ValueError):
    """A number that JSON cannot carry: not finite, or with too many digits."""


def read_scalar(tag: str, text: str) -> Scalar:
    """The value of a scalar under YAML 1.2; dates stay text.

    Raises:
        UnreadableScalarError: an explicit tag does not fit the text, as in `!!int twelve`.
        NumberOutOfRangeError: NaN, an infinity, or more than `MAX_DIGITS` digits.
    """
    match tag.removeprefix(_CORE):
        case "null":
            return None
        case "bool":
            return _read_bool(text)
        case "int":
            return _read_int(text)
        case "float":
            return _read_float(text)
        case _:
            return text


def is_ambiguous_number(tag: str, text: str) -> bool:
    """Whether a plain number means one thing to YAML 1.1 readers and another to YAML 1.2 readers."""
    return tag == f"{_CORE}int" and _OCTAL_IN_YAML_1_1.fullmatch(text) is not None


def octal_value(text: str) -> int:
    """What a YAML 1.1 reader makes of an ambiguous number."""
    return int(text.replace("_", ""), 8)


def reading_note(text: str, value: Scalar) -> str | None:
    """Why an unquoted scalar may not be what its author meant; None when it reads as it looks."""
    word = text.casefold()
    if isinstance(value, str):
        if word in _TRUE_IN_YAML_1_1:
            return f"YAML 1.2 reads {text} as text; where a boolean is meant, write true"
        if word in _FALSE_IN_YAML_1_1:
            return f"YAML 1.2 reads {text} as text; where a boolean is meant, write false"
        return None
    if value is None:
        return f"YAML reads {text} as no value; quote it if text is meant" if text else None
    if isinstance(value, float) and value.is_integer() and "e" in word:
        return f"YAML reads {text} as the fractional number {value}; write {int(value)} for the whole number"
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    if text != shown:
        return f"YAML reads {text} as {shown}; quote it if text is meant"
    return None


def is_number(text: str) -> bool:
    """Whether a text would be a number without its quotes."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _read_bool(text: str) -> bool:
    word = text.casefold()
    if word == "true" or word in _TRUE_IN_YAML_1_1:
        return True
    if word == "false" or word in _FALSE_IN_YAML_1_1:
        return False
    raise UnreadableScalarError(text)


def _read_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise NumberOutOfRangeError(text)
    digits = text.replace("_", "")
    unsigned = digits.lstrip("+-").casefold()
    base = {"0x": 16, "0o": 8, "0b": 2}.get(unsigned[:2], 10)
    try:
        return int(digits, base)
    except ValueError:
        raise UnreadableScalarError(text) from None


def _read_float(text: str) -> float:
    digits = text.replace("_", "").casefold()
    try:
        value = float(re.sub(r"\.(inf|nan)$", r"\1", digits))
    except ValueError:
        raise UnreadableScalarError(text) from None
    if not math.isfinite(value):
        raise NumberOutOfRangeError(text)
    return value
