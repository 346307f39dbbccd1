"""Prompts of token ids with media."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from endpick.api import JSONValue, Media, Modality, Prompt
from endpick.api.request import Piece
from endpick_builtin.parsers.openai_prompts import packed

TOKEN_BYTES = 4
MAX_MEDIA = 1024


@dataclass(frozen=True, slots=True)
class PlacedMedia:
    """Media in place of `length` tokens from `offset` on."""

    media: Media
    offset: int
    length: int


def token_prompt(tokens: Sequence[JSONValue], media: Callable[[], Sequence[PlacedMedia]] | None = None) -> Prompt:
    """A prompt of token ids, four bytes each; bytes of its identifier replace the tokens of a medium."""
    if media is None:
        return Prompt(lambda: (packed(tokens),))
    return Prompt(partial(_text, tokens, media), partial(_pieces, tokens, media))


def _text(tokens: Sequence[JSONValue], find: Callable[[], Sequence[PlacedMedia]]) -> tuple[bytes, ...]:
    text = bytearray(packed(tokens))
    for placed in find():
        size = placed.length * TOKEN_BYTES
        start = placed.offset * TOKEN_BYTES
        text[start : start + size] = hashlib.shake_128(placed.media.content.encode()).digest(size)
    return (bytes(text),)


def _pieces(tokens: Sequence[JSONValue], find: Callable[[], Sequence[PlacedMedia]]) -> tuple[tuple[Piece, ...], ...]:
    pieces: list[Piece] = []
    done = 0
    for placed in find():
        pieces += (packed(tokens[done : placed.offset]), placed.media)
        done = placed.offset + placed.length
    pieces.append(packed(tokens[done:]))
    return (tuple(piece for piece in pieces if piece != b""),)


def without_overlaps(found: Sequence[PlacedMedia], tokens: int) -> list[PlacedMedia]:
    """Media within the tokens, in order and without overlaps."""
    kept: list[PlacedMedia] = []
    end = 0
    for placed in sorted(found, key=lambda each: each.offset):
        if placed.offset >= end and placed.length > 0 and placed.offset + placed.length <= tokens:
            kept.append(placed)
            end = placed.offset + placed.length
    return kept


def features_of(features: JSONValue, tokens: int) -> list[PlacedMedia]:
    """Valid media in the field `features` of vLLM's API."""
    if not isinstance(features, Mapping):
        return []
    hashes, places = features.get("mm_hashes"), features.get("mm_placeholders")
    if not isinstance(hashes, Mapping) or not isinstance(places, Mapping):
        return []
    found: list[PlacedMedia] = []
    for modality in Modality:
        named, placed = hashes.get(modality.value), places.get(modality.value)
        if isinstance(named, list) and isinstance(placed, list):
            found += filter(None, map(partial(_placed, modality), named[:MAX_MEDIA], placed))
    return without_overlaps(found, tokens)


def _placed(modality: Modality, identifier: JSONValue, place: JSONValue) -> PlacedMedia | None:
    if not isinstance(identifier, str) or not isinstance(place, Mapping):
        return None
    offset, length = place.get("offset"), place.get("length")
    if not isinstance(offset, int) or not isinstance(length, int) or offset < 0:
        return None
    return PlacedMedia(Media(modality, identifier), offset, length)
