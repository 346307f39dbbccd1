"""Prompts with media on their way from the helper: what each piece is and how long, and all pieces in one row.

The lengths do not stand in the head, whose size is limited: a body may hold a hundred thousand pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import orjson

from endpick.api.request import Media, Modality, Piece

_TEXT = "text"


def laid_out(prompts: Iterable[Sequence[Piece]]) -> tuple[bytes, bytes]:
    """The layout in JSON, and the content that it lays out; texts that follow each other are sent as one.

    Raises:
        TypeError: a piece is neither bytes nor `Media`.
    """
    content: list[bytes] = []
    layout: list[list[tuple[str, int]]] = []
    for prompt in prompts:
        places: list[tuple[str, int]] = []
        for is_media, pieces in groupby(prompt, lambda piece: isinstance(piece, Media)):
            parts = [_written(piece) for piece in pieces]
            kinds = parts if is_media else [(_TEXT, b"".join([part for _, part in parts]))]
            content += [part for _, part in kinds]
            places += [(kind, len(part)) for kind, part in kinds]
        layout.append(places)
    return orjson.dumps(layout), b"".join(content)


def _written(piece: object) -> tuple[str, bytes]:
    if isinstance(piece, Media):
        return piece.modality.value, piece.content.encode("utf-8", "surrogatepass")
    if not isinstance(piece, bytes):
        raise TypeError(f"rendered a piece of a prompt that is {type(piece).__name__}, neither bytes nor Media")
    return _TEXT, piece


@dataclass(frozen=True, slots=True)
class Place:
    """Where a piece of a prompt stands in the content.

    Attributes:
        modality: What it is; None for text.
        size: In bytes.
    """

    modality: Modality | None
    size: int

    def read(self, part: bytes) -> Piece:
        """The piece whose bytes these are.

        Raises:
            ValueError: they are no text.
        """
        return part if self.modality is None else Media(self.modality, part.decode("utf-8", "surrogatepass"))


Received = tuple[tuple[tuple[Place, bytes], ...], ...]
"""Prompts with media as they came: of each its pieces, and where each of them stands."""


def read_all(prompts: Received) -> tuple[tuple[Piece, ...], ...]:
    """The pieces of prompts, for the first plugin that asks for them, and mostly there is none.

    To make a text of a picture of thirty megabytes takes as many milliseconds at once.

    Raises:
        ValueError: some are no text.
    """
    return tuple(tuple(place.read(part) for place, part in prompt) for prompt in prompts)


def places_in(layout: bytes, content_bytes: int) -> list[list[Place]]:
    """Where the pieces of each prompt stand, one after the other, in so many bytes.

    Raises:
        ValueError, TypeError: the layout is none, or does not fit the content.
    """
    prompts: list[list[Place]] = []
    left = content_bytes
    for places in orjson.loads(layout):
        prompt: list[Place] = []
        for kind, length in places:
            if type(length) is not int or not 0 <= length <= left:
                raise ValueError(f"a piece of {length!r} bytes where {left} are left of {content_bytes}")
            prompt.append(Place(None if kind == _TEXT else Modality(kind), length))
            left -= length
        prompts.append(prompt)
    if left:
        raise ValueError(f"{left} bytes of a prompt that belong to no piece")
    return prompts
