"""Requests to, and answers from, a vLLM that renders prompts as tokens."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from endpick.api import InferenceRequest, JSONObject, JSONValue, Modality, Unavailable
from endpick.api.keys import MediaPlace, PromptTokens

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


@dataclass(frozen=True, slots=True)
class Question:
    """A request to the renderer."""

    path: str
    body: JSONObject
    has_parts: bool = False


def has_tokens(request: InferenceRequest) -> bool:
    """Whether the client sent token ids instead of text."""
    payload = request.payload or {}
    prompt = payload.get("prompt", payload.get("input"))
    if not isinstance(prompt, list) or not prompt:
        return False
    return all(type(part) is int or (isinstance(part, list) and all(type(token) is int for token in part)) for part in prompt)


def question_of(request: InferenceRequest, model: str) -> Question | None:
    """The question about a request; None if the renderer has no API for it."""
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
    """The prompts in an answer: an object with `token_ids` and optional `features`, or a list of such objects.

    Raises:
        Unavailable: the answer has another form, or no tokens.
    """
    prompts = tuple(_prompt(one) for one in (answer if isinstance(answer, list) else [answer]))
    if not prompts or not all(len(prompt.token_ids) for prompt in prompts):
        raise Unavailable("the renderer answered without tokens")
    return prompts


def _prompt(rendered: object) -> PromptTokens:
    token_ids = rendered.get("token_ids") if isinstance(rendered, dict) else None
    if not isinstance(rendered, dict) or not isinstance(token_ids, list):
        raise Unavailable("the renderer's answer holds no list of token ids")
    try:
        # `array` takes a fifth of the time that numpy does.
        tokens = np.array(array("I", token_ids), dtype=np.uint32)
    except (OverflowError, TypeError) as problem:
        raise Unavailable(f"the renderer's answer holds an invalid token id: {problem}") from problem
    return PromptTokens(tokens, _places(rendered.get("features"), len(token_ids)))


def _places(features: object, tokens: int) -> tuple[MediaPlace, ...]:
    if not isinstance(features, dict):
        return ()
    try:
        hashes, placeholders = features["mm_hashes"], features["mm_placeholders"]
        places = [
            MediaPlace(modality, str(identifier), place["offset"], place["length"])
            for modality in Modality
            for identifier, place in zip(hashes.get(modality.value) or (), placeholders.get(modality.value) or (), strict=False)
        ]
        fitting = [place for place in places if place.offset >= 0 and 0 < place.length <= tokens - place.offset]
    except (AttributeError, KeyError, TypeError):
        return ()
    return tuple(sorted(fitting, key=lambda place: place.offset))
