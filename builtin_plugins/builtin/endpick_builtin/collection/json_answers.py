"""How much structure the JSON of a server may have: each part of it becomes an object, and 8 MiB have room for millions."""

from __future__ import annotations

from endpick.api import Limits, Unavailable
from endpick_builtin.collection.page_limits import JSON_PART_BYTES, SERVICE_SIZE, PageSize

_ALWAYS_FEW_BYTES = 128 * 1024
"""A body of no more has too few parts to count them."""
_PER_CONTAINER = 4
"""A list or an object takes as long as so many numbers."""
_PIECE_BYTES = 64 * 1024


def refuse_too_many_parts(
    body: bytes, limits: Limits, about: str, longest: PageSize = SERVICE_SIZE, part_bytes: int = JSON_PART_BYTES
) -> None:
    """Let a body of JSON pass that is soon read.

    Args:
        body: What a server sent, or what is in a file.
        limits: Those that `longest` names are among them.
        about: Whose doing it is.
        longest: How long it may be.
        part_bytes: Of the longest, for each part that it may have: a comma is one, and an opening bracket four, also within a text.

    Raises:
        Unavailable: it has more.
    """
    parts, most = 0, longest.page_bytes // part_bytes
    for begin in range(0, len(body) if len(body) > _ALWAYS_FEW_BYTES else 0, _PIECE_BYTES):
        commas, lists, objects = (body.count(sign, begin, begin + _PIECE_BYTES) for sign in (b",", b"[", b"{"))
        parts += commas + _PER_CONTAINER * (lists + objects)
        if parts > most:
            limits.acted(longest.many_parts, about=about)
            raise Unavailable(f"{about}: the answer is JSON of more than {most} parts")
