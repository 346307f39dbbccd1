"""Checks a request against what a server offers, and settles its answer; the engine then only says when its tokens appear."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

import xxhash

from endpick.simulation.generation import GenerationRequest
from endpick.simulation.openai import AnyRequest, ApiError, FinishReason, bad_request
from endpick.simulation.settings import ServerSettings
from endpick.simulation.tokens import answer_text, chained_hashes, count_tokens

NATURAL_LENGTHS = range(16, 129)
"""Tokens after which the simulated model may stop by itself; which it is depends on the prompt."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request that has been accepted, and its answer."""

    generation: GenerationRequest
    answer: str
    finish_reason: FinishReason


def plan_job(request: AnyRequest, settings: ServerSettings) -> Job:
    """Accept a request.

    Raises:
        ApiError: 404 for a model that is not served, 400 for a prompt that is empty or leaves too little room for an answer.
    """
    if request.model != settings.model and request.model not in settings.adapters:
        raise ApiError(404, "NotFoundError", f"The model `{request.model}` does not exist.", "model")
    prompt = request.render()
    prompt_tokens = count_tokens(prompt)
    limit = _answer_limit(request, prompt_tokens, settings.engine.max_model_len)
    seed = xxhash.xxh3_64_intdigest(prompt, settings.seed)
    natural = max(NATURAL_LENGTHS[seed % len(NATURAL_LENGTHS)], request.min_tokens)
    length = limit if request.ignore_eos else min(natural, limit)
    answer = answer_text(seed, length)
    hashes = chained_hashes(prompt + answer.encode(), settings.engine.block_size, salt=request.model)
    adapter = request.model if request.model != settings.model else None
    return Job(
        generation=GenerationRequest(uuid4().hex, prompt_tokens, length, hashes, adapter),
        answer=answer,
        finish_reason="length" if request.ignore_eos or natural > limit else "stop",
    )


def _answer_limit(request: AnyRequest, prompt_tokens: int, max_model_len: int) -> int:
    """Most tokens the answer may have: as many as were asked for, or else all that fit."""
    if not prompt_tokens:
        raise bad_request("The prompt is empty.", "prompt")
    room = max_model_len - prompt_tokens
    wanted = request.token_limit or 1
    if room < wanted:
        prompt_field = "messages" if request.kind == "chat.completion" else "prompt"
        raise bad_request(
            f"This model takes at most {max_model_len} tokens, but the prompt has {prompt_tokens} and up to {wanted} more were asked for.",
            "max_tokens" if room > 0 else prompt_field,
        )
    return request.token_limit or room
