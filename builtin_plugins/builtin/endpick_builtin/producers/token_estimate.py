"""Estimates tokens without a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from xxhash import xxh64_intdigest

from endpick.api import InferenceRequest, Media
from endpick.api.keys import MediaPlace, PromptTokens
from endpick.api.request import Piece
from endpick_builtin.producers.media_tokens import EstimateParameters
from endpick_builtin.producers.prompt_blocks import BYTES_PER_TOKEN

MAX_MEDIA_TOKENS = 1 << 18
"""Clients can claim any size of media."""
_TOKEN_TYPE = np.dtype("<u4")
_LOW_32_BITS = 0xFFFFFFFF


def identifier_of(media: Media) -> str:
    """xxh64 of the content as 16 hexadecimal digits."""
    return f"{_hash(media):016x}"


def _hash(media: Media) -> int:
    return xxh64_intdigest(media.content.encode("utf-8", "surrogatepass"))


def packed(text: bytes) -> PromptTokens:
    """Text as little-endian tokens of four bytes, zero-padded."""
    padded = text + bytes(-len(text) % BYTES_PER_TOKEN)
    return PromptTokens(np.frombuffer(padded, dtype=_TOKEN_TYPE))


def estimated(request: InferenceRequest, parameters: EstimateParameters) -> tuple[PromptTokens, ...]:
    """The tokens of each prompt; media begin at a token boundary."""
    if not request.prompt.media:
        return tuple(packed(text) for text in request.prompt.texts)
    budget = MAX_MEDIA_TOKENS
    prompts: list[PromptTokens] = []
    for pieces in request.prompt.pieces:
        tokens = _with_media(pieces, request.headers, parameters, budget)
        budget -= sum(place.length for place in tokens.media)
        prompts.append(tokens)
    return tuple(prompts)


def _with_media(pieces: Sequence[Piece], headers: Mapping[str, str], parameters: EstimateParameters, budget: int) -> PromptTokens:
    content = bytearray()
    places: list[MediaPlace] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            content += piece
            continue
        content += bytes(-len(content) % BYTES_PER_TOKEN)
        count = max(1, min(parameters.tokens(piece, headers), budget))
        budget -= count
        digest = _hash(piece)
        places.append(MediaPlace(piece.modality, f"{digest:016x}", len(content) // BYTES_PER_TOKEN, count))
        content += (digest & _LOW_32_BITS).to_bytes(BYTES_PER_TOKEN, "little") * count
    content += bytes(-len(content) % BYTES_PER_TOKEN)
    token_ids = np.frombuffer(content, dtype=_TOKEN_TYPE)
    token_ids.flags.writeable = False
    return PromptTokens(token_ids, tuple(places))
