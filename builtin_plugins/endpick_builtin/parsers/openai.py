"""`openai-parser` and `passthrough-parser`: how request and response bodies are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import orjson
from pydantic import Field

from endpick.api import JSONObject, Parameters, ParsedRequest, Parser, Piece, PluginContext, Prompt, Rejection, Usage
from endpick.api.fast_metrics import Counts
from endpick_builtin.parsers import openai_prompts
from endpick_builtin.parsers.openai_prompts import prompts_of
from endpick_builtin.parsers.openai_usage import from_body, from_events

# Possessive (`*+`): otherwise each escape of a string is remembered, in case a match begins anew there; 32 MiB of them took 11 s and 2 GiB.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_VALUE = re.compile(rb"\s*:\s*(" + _STRING + rb"|[^,}\s]+)", re.DOTALL)


def with_model(body: bytes, model: str) -> bytes:
    """The same JSON object with `model` as its model; the field is put first when there is none.

    Args:
        body: A valid JSON object.
        model: The new name.
    """
    name = orjson.dumps(model)
    pieces: list[bytes] = []
    copied = 0
    for start, end in _model_values(body):
        pieces += (body[copied:start], name)
        copied = end
    if pieces:
        return b"".join((*pieces, body[copied:]))
    start = body.index(b"{") + 1
    comma = b"" if body[start:].lstrip().startswith(b"}") else b","
    return body[:start] + b'"model":' + name + comma + body[start:]


def _model_values(body: bytes) -> list[tuple[int, int]]:
    """Where the values of the fields named `model` of the outermost object are; more than one only if the field is repeated."""
    found: list[tuple[int, int]] = []
    depth = 0
    for token in _TOKEN.finditer(body):
        text = token.group()
        if text in (b"{", b"["):
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and text == b'"model"' and (value := _VALUE.match(body, token.end())):
            found.append(value.span(1))
    return found


_QUOTE, _COMMA, _LIST, _OBJECT = b'",[{'
_PIECE_BYTES = 1 << 20
"""Looked at together: a body that has too much is left as soon as it shows."""


def exceeded_limit(body: bytes, most_containers: int, most_values: int) -> str | None:
    """The name of the limit that a body exceeds: `maxContainers`, `maxValues`; None for a body that may be parsed.

    `[{},{},…]` takes three bytes for each object, and each object takes sixty-four once it is parsed, and time in every loop over them.
    They are counted as if nothing were within a string, and only if that comes to too many, exactly: 32 MiB of text take 10 ms the first
    way, and 60 ms the second.

    Args:
        body: JSON, as the client sent it.
        most_containers: Objects and lists that it may hold.
        most_values: Objects, lists, strings, numbers and literals that it may hold; keys do not count.
    """
    if _exceeded(body, most_containers, most_values, strings=False) is None:
        return None
    # Without escapes a quote begins a string or ends it: what has an odd number of quotes before it is within one.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    return _exceeded(plain, most_containers, most_values, strings=True)


def _exceeded(body: bytes, most_containers: int, most_values: int, *, strings: bool) -> str | None:
    """The limit that is exceeded; with `strings`, what is within a string does not count."""
    containers = values = 0
    within = False
    whole = np.frombuffer(body, dtype=np.uint8)
    for start in range(0, len(whole), _PIECE_BYTES):
        piece = whole[start : start + _PIECE_BYTES]
        opens = (piece == _LIST) | (piece == _OBJECT)
        commas = piece == _COMMA
        if strings:
            inside = np.logical_xor.accumulate(piece == _QUOTE) ^ within
            opens &= ~inside
            commas &= ~inside
            within = bool(inside[-1])
        containers += int(np.count_nonzero(opens))
        if containers > most_containers:
            return "maxContainers"
        # In front of each value stands a comma or the bracket of what holds it.
        values += int(np.count_nonzero(commas))
        if values + containers > most_values:
            return "maxValues"
    return None


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


class OpenAIParserParameters(Parameters):
    """How much structure a body may have; a request with more is answered with 400."""

    max_containers: Annotated[
        int,
        Field(alias="maxContainers", gt=0, description="Objects and lists in a body: messages, their parts, tools and all within them."),
    ] = 131_072
    max_values: Annotated[
        int, Field(alias="maxValues", gt=0, description="Objects, lists, strings, numbers and literals in a body; each token id is one.")
    ] = 2_097_152
    max_prompts: Annotated[int, Field(alias="maxPrompts", gt=0, description="Prompts of a completion, or inputs of an embedding.")] = 4096


_REFUSALS = "endpick_openai_parser_refusals_total"
_COUNTED = {"maxContainers": "objects and lists", "maxValues": "values", "maxPrompts": "prompts"}
_LOG_SECONDS = 30.0


class OpenAIParser(Parser[OpenAIParserParameters]):
    """Reads OpenAI requests, and token counts from the answers.

    The prompt is rendered when a plugin first asks for it: for chat the tools, then role and text of each message; otherwise the text
    itself. Several prompts stay several; prompts given as token ids become four bytes per token.
    """

    claims = tuple(API_OF)
    reads_usage = True

    def __init__(self, name: str, parameters: OpenAIParserParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        told = "Requests refused because their body has more structure than a parameter allows."
        self._refusals = Counts(_REFUSALS, told, ("limit",), context.registry)
        self._logged_at: dict[str, float] = {}
        # A container takes two bytes, and a value one and a comma; no more brackets are open in JSON than closed.
        self._long_bytes = 2 * min(parameters.max_containers, parameters.max_values)

    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        """Check the one field that each API cannot do without, and note what routing may want to know."""
        if len(body) > self._long_bytes:
            exceeded = exceeded_limit(body, self.parameters.max_containers, self.parameters.max_values)
            if exceeded is not None:
                return self._refused_for(exceeded)
        try:
            payload = orjson.loads(body)
        except orjson.JSONDecodeError as problem:
            return Rejection(f"error unmarshaling request bodyMap: {problem}", status=400)
        if not isinstance(payload, dict):
            return Rejection("error unmarshaling request bodyMap: the body is not a JSON object", status=400)
        api = _api_for(path)
        if api.prompts and len(prompts_of(payload.get(api.prompts))) > self.parameters.max_prompts:
            return self._refused_for("maxPrompts")
        complaint = api.problem(payload)
        model, salt = payload.get("model", ""), payload.get("cache_salt")
        if complaint is None and not isinstance(model, str):
            complaint = "model not found in request body"
        if complaint is not None:
            return Rejection(complaint, status=400)
        return ParsedRequest(
            model=model,
            prompt=Prompt(partial(api.render, payload), partial(api.pieces, payload) if api.pieces else None),
            streaming=payload.get("stream") is True,
            max_output_tokens=_first_count(payload, api.output_limits),
            cache_salt=salt if isinstance(salt, str) else "",
            payload=payload,
        )

    def _refused_for(self, limit: str) -> Rejection:
        """The answer to a request that exceeds a limit; it is counted, and logged twice a minute at most."""
        self._refusals.labels(limit).inc()
        most = {"maxContainers": self.parameters.max_containers, "maxValues": self.parameters.max_values}
        allowed = most.get(limit, self.parameters.max_prompts)
        now = self.context.clock()
        if now - self._logged_at.get(limit, -_LOG_SECONDS) >= _LOG_SECONDS:
            self._logged_at[limit] = now
            self.context.logger.warning(
                "a request has more than %d %s, and was refused; %s raises the limit", allowed, _COUNTED[limit], limit
            )
        return Rejection(f"the request body holds more than {allowed} {_COUNTED[limit]}", status=400)

    def rewrite_model(self, body: bytes, parsed: ParsedRequest, model: str) -> bytes:
        """Exchange the model name; every other byte stays."""
        return with_model(body, model)

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        """The last usage in the body."""
        return from_events(body) if streaming else from_body(body)


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


class PassthroughParser(Parser):
    """Takes every path that no other parser claims. Nothing is known of the request: no model, no prompt, no usage.

    Parsers configured behind it are never asked.
    """

    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        """Accept it as it is."""
        return ParsedRequest(needs_model=False)
