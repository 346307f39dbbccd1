"""`vllmhttp-parser` and `sglanghttp-parser`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from endpick.api import JSONObject, JSONValue, Media, Modality, ParsedRequest, Prompt, Rejection, Usage
from endpick.api.request import Piece
from endpick_builtin.parsers.json_bodies import JSONParser, first_count, text_of
from endpick_builtin.parsers.openai import ReadsUsage
from endpick_builtin.parsers.openai_bodies import field_of, first_of, is_tokens, last_events_with, packed

TOKEN_BYTES = 4
MAX_MEDIA = 1024


@dataclass(frozen=True, slots=True)
class PlacedMedia:
    """Media in place of `length` tokens from `offset` on."""

    media: Media
    offset: int
    length: int


def token_prompt(tokens: Sequence[JSONValue], media: Callable[[], Sequence[PlacedMedia]] | None = None) -> Prompt:
    """Build a prompt of token ids, four bytes each; a hash replaces the tokens of media."""
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
    """Return media that lie within the tokens and do not overlap, in order."""
    kept: list[PlacedMedia] = []
    end = 0
    for placed in sorted(found, key=lambda media: media.offset):
        if placed.offset >= end and placed.length > 0 and placed.offset + placed.length <= tokens:
            kept.append(placed)
            end = placed.offset + placed.length
    return kept


def features_of(features: JSONValue, tokens: int) -> list[PlacedMedia]:
    """Return the valid media in vLLM's `features`."""
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


class VllmHTTPParser(ReadsUsage, JSONParser):
    """Reads vLLM's `/inference/v1/generate`: token ids and encoded media.

    `token_ids` is required: whole numbers from 0 to 4294967295. `features.mm_hashes` and `features.mm_placeholders` locate media, ignored
    if they do not fit the tokens. `sampling_params.max_tokens` limits the output.
    """

    claims = ("/inference/v1/generate",)

    def parsed(self, path: str, payload: JSONObject) -> ParsedRequest | Rejection:
        tokens = _tokens(payload.get("token_ids"))
        if tokens is None:
            return Rejection("invalid generate request: must have token_ids field", status=400)
        features = payload.get("features")
        return ParsedRequest(
            model=text_of(payload, "model"),
            prompt=token_prompt(tokens, partial(features_of, features, len(tokens)) if features else None),
            streaming=payload.get("stream") is True,
            max_output_tokens=first_count(_object(payload.get("sampling_params")), ("max_tokens",)),
            cache_salt=text_of(payload, "cache_salt"),
            payload=payload,
        )


class SGLangHTTPParser(JSONParser):
    """Reads SGLang's `/generate`: token ids.

    `input_ids` is required: whole numbers from 0 to 4294967295. `extra_key` is the cache salt, `sampling_params.max_new_tokens` limits the
    output, and `meta_info` has token counts. The API has no model field.
    """

    claims = ("/generate",)
    reads_usage = True
    usage_mark = b'"meta_info'

    def parsed(self, path: str, payload: JSONObject) -> ParsedRequest | Rejection:
        tokens = _tokens(payload.get("input_ids"))
        if tokens is None:
            return Rejection("invalid generate request: must have input_ids field", status=400)
        return ParsedRequest(
            model=text_of(payload, "model"),
            prompt=token_prompt(tokens),
            streaming=payload.get("stream") is True,
            max_output_tokens=first_count(_object(payload.get("sampling_params")), ("max_new_tokens",)),
            cache_salt=text_of(payload, "extra_key"),
            payload=payload,
            needs_model=False,
        )

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        if not streaming:
            return _counts(field_of("meta_info", body))
        return next(filter(None, (_counts(event.get("meta_info")) for event in last_events_with(b'"meta_info"', body))), None)


def _tokens(value: JSONValue) -> list[JSONValue] | None:
    return value if isinstance(value, list) and value and is_tokens(value) else None


def _object(value: JSONValue) -> JSONObject:
    return value if isinstance(value, Mapping) else {}


def _counts(info: JSONValue) -> Usage | None:
    if not isinstance(info, Mapping):
        return None
    prompt, completion = first_of(info, ("prompt_tokens",)), first_of(info, ("completion_tokens",))
    if prompt is None and completion is None:
        return None
    return Usage(prompt or 0, completion or 0, first_of(info, ("cached_tokens",)))
