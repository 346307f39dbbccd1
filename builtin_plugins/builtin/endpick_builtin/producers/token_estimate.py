"""Prompts as tokens without a tokenizer: four bytes of text each, and a picture's hash as often as its size asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from xxhash import xxh64, xxh64_intdigest

from endpick.api import InferenceRequest, Media, MediaPlace, Piece, PromptTokens
from endpick_builtin.producers.media_tokens import EstimateParameters
from endpick_builtin.producers.prompt_blocks import BYTES_PER_TOKEN

_TOKEN_TYPE = np.dtype("<u4")
_LOW_32_BITS = 0xFFFFFFFF
_LONG = 1 << 20
"""What is longer is not copied whole: thirty megabytes take as long as sixty short requests."""


def identifier_of(media: Media) -> str:
    """The same for equal content: xxh64 of it, as 16 hexadecimal digits."""
    return f"{_hash(media):016x}"


def _hash(media: Media) -> int:
    content = media.content
    if len(content) <= _LONG:
        return xxh64_intdigest(content.encode("utf-8", "surrogatepass"))
    digest = xxh64()
    for start in range(0, len(content), _LONG):
        digest.update(content[start : start + _LONG].encode("utf-8", "surrogatepass"))
    return digest.intdigest()


def packed(text: bytes) -> PromptTokens:
    """Text as tokens: four bytes each, the first one lowest, the last one filled up with zeros; of a long text that one is left out."""
    if len(text) > _LONG:
        return PromptTokens(np.frombuffer(text, dtype=_TOKEN_TYPE, count=len(text) // BYTES_PER_TOKEN))
    padded = text + bytes(-len(text) % BYTES_PER_TOKEN)
    return PromptTokens(np.frombuffer(padded, dtype=_TOKEN_TYPE))


def estimated(request: InferenceRequest, parameters: EstimateParameters, shortened: Callable[[], None]) -> tuple[PromptTokens, ...]:
    """Each prompt of a request. Media begin at a token of their own, and every one of their tokens is the low half of their hash.

    `shortened` is called for each of the media for which `maxMediaTokens` leaves fewer tokens than it would have.
    """
    if not request.prompt.media:
        return tuple(packed(text) for text in request.prompt.texts)
    budget = parameters.max_media_tokens
    prompts: list[PromptTokens] = []
    for pieces in request.prompt.pieces:
        tokens = _with_media(pieces, request.headers, parameters, budget, shortened)
        budget -= sum(place.length for place in tokens.media)
        prompts.append(tokens)
    return tuple(prompts)


def _with_media(
    pieces: Sequence[Piece], headers: Mapping[str, str], parameters: EstimateParameters, budget: int, shortened: Callable[[], None]
) -> PromptTokens:
    content = bytearray()
    places: list[MediaPlace] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            content += piece
            continue
        content += bytes(-len(content) % BYTES_PER_TOKEN)
        whole = parameters.tokens(piece, headers)
        count = max(1, min(whole, budget))
        if count < whole:
            shortened()
        budget -= count
        digest = _hash(piece)
        places.append(MediaPlace(piece.modality, f"{digest:016x}", len(content) // BYTES_PER_TOKEN, count))
        content += (digest & _LOW_32_BITS).to_bytes(BYTES_PER_TOKEN, "little") * count
    content += bytes(-len(content) % BYTES_PER_TOKEN)
    token_ids = np.frombuffer(content, dtype=_TOKEN_TYPE)
    token_ids.flags.writeable = False
    return PromptTokens(token_ids, tuple(places))
