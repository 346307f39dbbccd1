"""How much structure a JSON body has, and how deep: counted on its bytes, before anything is built from them."""

from __future__ import annotations

import numpy as np

from endpick.api import BoolArray

_QUOTE, _COMMA, _LIST, _OBJECT, _LIST_END, _OBJECT_END = b'",[{]}'
_LIST_TO_OBJECT = 0x20
"""The only bit in which the brackets of the two differ."""
_PIECE_BYTES = 1 << 20
"""Looked at together: a body that has too much is left as soon as it shows."""


def exceeded_limit(body: bytes, most_containers: int, most_values: int) -> str | None:
    """The name of the limit that a body exceeds: `maxContainers`, `maxValues`; None for a body that may be parsed.

    `[{},{},…]` takes three bytes for each object, and each object takes sixty-four once it is parsed, and time in every loop over them.
    They are counted as if nothing were within a string, and only if that comes to too many, exactly: 32 MiB of text take 10 ms the first
    way, and 60 ms the second.

    Args:
        body: JSON, as the client sent it.
        most_containers: Objects and lists that it may hold.
        most_values: Objects, lists, strings, numbers and literals that it may hold; keys do not count.
    """
    if _exceeded(body, most_containers, most_values, strings=False) is None:
        return None
    return _exceeded(_unescaped(body), most_containers, most_values, strings=True)


def _unescaped(body: bytes) -> bytes:
    """As long as the body, and without escapes: what has an odd number of quotes before it is then within a string."""
    return body.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in body else body


def _exceeded(body: bytes, most_containers: int, most_values: int, *, strings: bool) -> str | None:
    """The limit that is exceeded; with `strings`, what is within a string does not count."""
    containers = values = 0
    within = False
    may_have_values = len(body) > most_values  # each has a byte of its own in front of it
    whole = np.frombuffer(body, dtype=np.uint8)
    for start in range(0, len(whole), _PIECE_BYTES):
        piece = whole[start : start + _PIECE_BYTES]
        inside = np.logical_xor.accumulate(piece == _QUOTE) ^ within if strings else None
        opens = (piece | _LIST_TO_OBJECT) == _OBJECT
        if inside is not None:
            opens &= ~inside
            within = bool(inside[-1])
        containers += int(np.count_nonzero(opens))
        if containers > most_containers:
            return "maxContainers"
        if not may_have_values:
            continue
        # In front of each value stands a comma or the bracket of what holds it.
        commas = piece == _COMMA
        if inside is not None:
            commas &= ~inside
        values += int(np.count_nonzero(commas))
        if values + containers > most_values:
            return "maxValues"
    return None


def without_depths(body: bytes, deepest: int) -> bytes:
    """The body with `null` for every object and list that stands within `deepest` others; as it is where brackets do not match.

    Nothing that decides about a request stands so deep, and the model server gets the body as the client sent it.
    """
    whole = np.frombuffer(_unescaped(body), dtype=np.uint8)
    outside: BoolArray = ~np.logical_xor.accumulate(whole == _QUOTE)
    opens = ((whole == _LIST) | (whole == _OBJECT)) & outside
    closes = ((whole == _LIST_END) | (whole == _OBJECT_END)) & outside
    positions = np.flatnonzero(opens | closes)
    opening = opens[positions]
    depths = np.cumsum(np.where(opening, 1, -1))
    starts = positions[opening & (depths == deepest + 1)]
    ends = positions[~opening & (depths == deepest)]
    if not len(starts) or len(starts) != len(ends):
        return body
    kept = zip([0, *(ends + 1).tolist()], [*starts.tolist(), len(body)], strict=True)
    return b"null".join([body[begin:end] for begin, end in kept])
