"""Prompts as tokens by a vLLM that renders them: which question a request becomes, and what is read from the answer."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from endpick.api import InferenceRequest, JSONObject, JSONValue, MediaPlace, Modality, PromptTokens, Unavailable

COMPLETIONS = "/v1/completions/render"
CHAT = "/v1/chat/completions/render"
_CHAT_FIELDS = (
    "messages",
    "tools",
    "documents",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
)
"""What shapes the tokens of a conversation."""
_MOST_PROMPTS = 4096
"""Of an answer: as many as `maxPrompts` of the parsers lets a request have."""
_MOST_PLACED = 1024
"""Media of a prompt and kind; others are left out."""
_MOST_CHARACTERS = 1024
"""Of what identifies one, or it is left out."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is sent to the renderer.

    Attributes:
        path: Of the API.
        body: JSON.
        structured: Whether there may be media to look at, which takes longer.
    """

    path: str
    body: JSONObject
    structured: bool = False


def has_tokens(request: InferenceRequest) -> bool:
    """Whether the client sent token ids already, one prompt or several of them."""
    payload = request.payload or {}
    prompt = payload.get("prompt", payload.get("input"))
    if not isinstance(prompt, list) or not prompt:
        return False
    return all(type(part) is int or (isinstance(part, list) and all(type(token) is int for token in part)) for part in prompt)


def was_parsed_elsewhere(request: InferenceRequest) -> bool:
    """Whether a request that the renderer knows came in a body that another process has parsed: then its prompt is all there is."""
    return request.payload is None and request.path.removesuffix("/render").endswith("/completions") and bool(request.prompt.texts)


def question_of(request: InferenceRequest, model: str) -> Question | None:
    """What to ask about a request; None for one that the renderer has no API for."""
    payload, path = request.payload, request.path.removesuffix("/render")
    if payload is None:
        return None
    if path.endswith("/chat/completions") and isinstance(payload.get("messages"), list):
        body = {"model": model, **{name: payload[name] for name in _CHAT_FIELDS if payload.get(name) is not None}}
        return Question(CHAT, body, _has_parts(payload["messages"]))
    if path.endswith("/completions") and payload.get("prompt"):
        return Question(COMPLETIONS, {"model": model, "prompt": payload["prompt"]})
    return None


def _has_parts(messages: JSONValue) -> bool:
    if not isinstance(messages, Sequence):
        return False
    return any(isinstance(message, Mapping) and isinstance(message.get("content"), list) for message in messages)


def prompts_in(answer: object) -> tuple[PromptTokens, ...]:
    """The prompts in an answer: an object with `token_ids` and perhaps `features`, or a list of such objects.

    Raises:
        Unavailable: it is something else.
    """
    rendered = answer if isinstance(answer, list) else [answer]
    if len(rendered) > _MOST_PROMPTS:
        raise Unavailable(f"the renderer answered with more than {_MOST_PROMPTS} prompts")
    prompts = tuple(_prompt(one) for one in rendered)
    if not prompts or not all(len(prompt.token_ids) for prompt in prompts):
        raise Unavailable("the renderer answered without tokens")
    return prompts


def _prompt(rendered: object) -> PromptTokens:
    token_ids = rendered.get("token_ids") if isinstance(rendered, dict) else None
    if not isinstance(token_ids, list) or not set(map(type, token_ids)) <= {int}:
        raise Unavailable("the renderer's answer holds no list of token ids")
    try:
        # By way of `array`, which takes a list in a fifth of the time that numpy does.
        tokens = np.frombuffer(array("I", token_ids), np.uint32) if token_ids else np.empty(0, np.uint32)
    except OverflowError as problem:
        raise Unavailable(f"the renderer's answer holds a token id that is none: {problem}") from problem
    return PromptTokens(tokens, _places(rendered.get("features"), len(token_ids)) if isinstance(rendered, dict) else ())


def _places(features: object, tokens: int) -> tuple[MediaPlace, ...]:
    """The media, by offset; those that do not fit the tokens are left out."""
    if not isinstance(features, dict):
        return ()
    hashes, placeholders = features.get("mm_hashes"), features.get("mm_placeholders")
    if not isinstance(hashes, dict) or not isinstance(placeholders, dict):
        return ()
    places = [
        MediaPlace(modality, identifier, *span)
        for modality in Modality
        for identifier, place in islice(
            zip(_list(hashes.get(modality.value)), _list(placeholders.get(modality.value)), strict=False), _MOST_PLACED
        )
        if isinstance(identifier, str) and len(identifier) <= _MOST_CHARACTERS and (span := _span(place, tokens)) is not None
    ]
    return tuple(sorted(places, key=lambda place: place.offset))


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _span(place: object, tokens: int) -> tuple[int, int] | None:
    """Offset and length, where they lie within the tokens."""
    if not isinstance(place, dict):
        return None
    offset, length = place.get("offset"), place.get("length")
    if not isinstance(offset, int) or not isinstance(length, int):
        return None
    return (offset, length) if offset >= 0 and 0 < length <= tokens - offset else None
