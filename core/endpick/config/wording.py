"""Words for the values of a document and for what should have been there instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from endpick.config.tree import Json
from endpick.diagnostics import DocumentPath

MAX_SHOWN = 40
BOOLEAN = "true or false"

EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": BOOLEAN,
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "duration_type": "a duration, as text",
    "quantity_type": "a quantity",
}
"""What each type error of the document model asks for."""


def describe(value: Json) -> str:
    """What a value is, to name it in a message."""
    match value:
        case None:
            return "no value"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text '{shorten(value)}'" if value else "empty text"
        case Mapping():
            return "a mapping"
        case _:
            return "a list"


def shorten(text: str) -> str:
    """At most `MAX_SHOWN` characters of a text."""
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def show_path(path: DocumentPath) -> str:
    """A document path as people write it: `plugins[0].type`."""
    shown = "".join(f"[{segment}]" if isinstance(segment, int) else f".{segment}" for segment in path)
    return shown.removeprefix(".") or "the document"


def value_at(data: Json, path: DocumentPath) -> Json:
    """The value at a path that the document has; None where it does not."""
    for segment in path:
        if isinstance(data, Mapping) and isinstance(segment, str):
            data = data.get(segment)
        elif isinstance(data, Sequence) and not isinstance(data, str) and isinstance(segment, int) and segment < len(data):
            data = data[segment]
        else:
            return None
    return data
