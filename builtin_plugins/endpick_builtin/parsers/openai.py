"""`openai-parser`: chat completions, completions, embeddings, responses and conversations of the OpenAI API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import orjson

from endpick.api import JSONObject, ParsedRequest, Parser, PluginMeta, Prompt, Rejection, Usage
from endpick_builtin.parsers import json_model, openai_prompts, openai_usage


@dataclass(frozen=True, slots=True)
class Api:
    """One of the APIs: how its prompt is read, and what it calls the limit of the output."""

    render: Callable[[JSONObject], tuple[bytes, ...]]
    problem: Callable[[JSONObject], str | None]
    output_limits: tuple[str, ...] = ()


CHAT = Api(openai_prompts.chat, openai_prompts.problem_with_chat, ("max_completion_tokens", "max_tokens"))
COMPLETIONS = Api(openai_prompts.completions, openai_prompts.problem_with_completions, ("max_tokens",))
IMAGES = Api(openai_prompts.completions, openai_prompts.problem_with_images)
EMBEDDINGS = Api(openai_prompts.embeddings, openai_prompts.problem_with_embeddings)
RESPONSES = Api(openai_prompts.responses, openai_prompts.problem_with_responses, ("max_output_tokens",))
CONVERSATIONS = Api(openai_prompts.conversations, openai_prompts.problem_with_conversations)

API_OF: Mapping[str, Api] = {
    "/conversations": CONVERSATIONS,
    "/responses": RESPONSES,
    "/chat/completions": CHAT,
    "/chat/completions/render": CHAT,
    "/completions": COMPLETIONS,
    "/completions/render": COMPLETIONS,
    "/embeddings": EMBEDDINGS,
    "/images/generations": IMAGES,
}
_BY_LENGTH = sorted(API_OF.items(), key=lambda claim: -len(claim[0]))


class OpenAIParser(Parser):
    """Reads OpenAI requests, and token counts from the answers.

    The prompt is rendered when a plugin first asks for it: for chat the tools, then role and text of each message; otherwise the text
    itself. Several prompts stay several; prompts given as token ids become four bytes per token.
    """

    meta = PluginMeta(type="openai-parser", api=">=1.0,<2")
    claims = tuple(API_OF)
    reads_usage = True

    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        """Check the one field that each API cannot do without, and note what routing may want to know."""
        try:
            payload = orjson.loads(body)
        except orjson.JSONDecodeError as problem:
            return Rejection(f"error unmarshaling request bodyMap: {problem}", status=400)
        if not isinstance(payload, dict):
            return Rejection("error unmarshaling request bodyMap: the body is not a JSON object", status=400)
        api = _api_for(path)
        complaint = api.problem(payload)
        model, salt = payload.get("model", ""), payload.get("cache_salt")
        if complaint is None and not isinstance(model, str):
            complaint = "model not found in request body"
        if complaint is not None:
            return Rejection(complaint, status=400)
        return ParsedRequest(
            model=model,
            prompt=Prompt(partial(api.render, payload)),
            streaming=payload.get("stream") is True,
            max_output_tokens=_first_count(payload, api.output_limits),
            cache_salt=salt if isinstance(salt, str) else "",
            payload=payload,
        )

    def rewrite_model(self, body: bytes, parsed: ParsedRequest, model: str) -> bytes:
        """Exchange the model name; every other byte stays."""
        return json_model.with_model(body, model)

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        """The last usage in the body."""
        return openai_usage.from_events(body) if streaming else openai_usage.from_body(body)


def _api_for(path: str) -> Api:
    for suffix, api in _BY_LENGTH:
        if path.endswith(suffix):
            return api
    return COMPLETIONS


def _first_count(payload: JSONObject, names: tuple[str, ...]) -> int | None:
    for name in names:
        value = payload.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None
