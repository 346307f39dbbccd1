"""`openai-parser` and `passthrough-parser`: how request and response bodies are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated

from pydantic import Field

from endpick.api import JSONObject, ParsedRequest, Parser, Piece, Prompt, Rejection, Usage
from endpick_builtin.parsers import openai_prompts
from endpick_builtin.parsers.json_bodies import JSONParameters, JSONParser, first_count
from endpick_builtin.parsers.openai_prompts import prompts_of
from endpick_builtin.parsers.openai_usage import from_body, from_events


@dataclass(frozen=True, slots=True)
class Api:
    """One of the APIs: how its prompt is read, and what it calls the limit of the output."""

    render: Callable[[JSONObject], tuple[bytes, ...]]
    problem: Callable[[JSONObject], str | None]
    output_limits: tuple[str, ...] = ()
    prompts: str = ""
    """The field that may hold several prompts, if there is one."""
    pieces: Callable[[JSONObject], tuple[tuple[Piece, ...], ...]] | None = None
    """How texts and media are told apart, where there may be media."""


CHAT = Api(
    openai_prompts.chat, openai_prompts.problem_with_chat, ("max_completion_tokens", "max_tokens"), pieces=openai_prompts.chat_pieces
)
COMPLETIONS = Api(openai_prompts.completions, openai_prompts.problem_with_completions, ("max_tokens",), "prompt")
IMAGES = Api(openai_prompts.completions, openai_prompts.problem_with_images, prompts="prompt")
EMBEDDINGS = Api(openai_prompts.embeddings, openai_prompts.problem_with_embeddings, prompts="input")
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


class OpenAIParserParameters(JSONParameters):
    """How much structure a body may have; a request with more is answered with 400."""

    max_prompts: Annotated[int, Field(alias="maxPrompts", gt=0, description="Prompts of a completion, or inputs of an embedding.")] = 4096


class OpenAIParser(JSONParser[OpenAIParserParameters]):
    """Reads OpenAI requests, and token counts from the answers.

    The prompt is rendered when a plugin first asks for it: for chat the tools, then role and text of each message; otherwise the text
    itself. Several prompts stay several; prompts given as token ids become four bytes per token. Bytes that are not UTF-8, halves of
    surrogate pairs and deep nesting are read as llm-d reads them, and reach the model server as they came.
    """

    claims = tuple(API_OF)
    reads_usage = True

    def parsed(self, path: str, payload: JSONObject) -> ParsedRequest | Rejection:
        """Check the one field that each API cannot do without, and note what routing may want to know."""
        api = _api_for(path)
        if api.prompts and len(prompts_of(payload.get(api.prompts))) > self.parameters.max_prompts:
            return self.refused_for("maxPrompts", self.parameters.max_prompts)
        complaint = api.problem(payload)
        if complaint is not None:
            return Rejection(complaint, status=400)
        model, salt = payload.get("model"), payload.get("cache_salt")
        # By position, in the order of the fields: with names, Python first makes a dictionary of them.
        return ParsedRequest(
            model if isinstance(model, str) else "",
            Prompt(partial(api.render, payload), partial(api.pieces, payload) if api.pieces else None),
            payload.get("stream") is True,
            first_count(payload, api.output_limits),
            salt if isinstance(salt, str) else "",
            payload,
        )

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        """The last usage in the body."""
        return from_events(body) if streaming else from_body(body)


@lru_cache(maxsize=16)
def _api_for(path: str) -> Api:
    for suffix, api in _BY_LENGTH:
        if path.endswith(suffix):
            return api
    return COMPLETIONS


class PassthroughParser(Parser):
    """Takes every path that no other parser claims. Nothing is known of the request: no model, no prompt, no usage.

    Parsers configured behind it are never asked.
    """

    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        """Accept it as it is."""
        return ParsedRequest(needs_model=False)
