"""Lenient JSON bodies of limited structure, `openai-parser` and `passthrough-parser`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, NoReturn

import numpy as np
import orjson

from endpick.api import JSONObject, JSONValue, ParsedRequest, Parser, Prompt, Rejection, Usage
from endpick.api.request import Piece
from endpick_builtin.parsers import openai_bodies
from endpick_builtin.parsers.openai_bodies import from_body, from_events, prompts_of

CHECKED_BYTES: Final = 1 << 20
LENIENT_BYTES: Final = 4 << 20  # larger bodies must be valid Unicode
MAX_STRUCTURE: Final = 1 << 20  # a million token ids, or 200,000 fields
MAX_QUOTES: Final = 1 << 19
_WEIGHTS: Final = ((ord(","), 1), (ord(":"), 4), (ord("["), 8), (ord("{"), 8))  # relative costs of structure, once parsed
_TOO_COMPLEX: Final = Rejection("the request body has too many objects, lists and values", status=413)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class JSONParser(Parser):
    """Base of parsers for JSON objects."""

    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        if is_too_complex(body):
            return _TOO_COMPLEX
        try:
            payload = orjson.loads(body)
        except orjson.JSONDecodeError as problem:
            payload = read_leniently(body)
            if payload is None:
                return Rejection(f"error unmarshaling request bodyMap: {problem}", status=400)
        if not isinstance(payload, dict):
            return Rejection("error unmarshaling request bodyMap: the body is not a JSON object", status=400)
        parsed = self.parsed(path, payload)
        if isinstance(payload.get("model", ""), str) or isinstance(parsed, Rejection):
            return parsed
        return Rejection("model not found in request body", status=400)

    def parsed(self, path: str, payload: JSONObject) -> ParsedRequest | Rejection:
        """Interpret the object, or reject it."""
        raise NotImplementedError

    def rewrite_model(self, body: bytes, parsed: ParsedRequest, model: str) -> bytes:
        """Serialises again, as in llm-d."""
        return body if parsed.payload is None else dumped({**parsed.payload, "model": model})


def is_too_complex(body: bytes) -> bool:
    """True when parsing would hold up other requests. JSON in strings does not count."""
    if len(body) <= CHECKED_BYTES or _structure_of(body) <= MAX_STRUCTURE:
        return False
    if body.count(b'"') > MAX_QUOTES:
        return True
    text = body.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in body else body
    return _structure_of(b"".join(text.split(b'"')[::2])) > MAX_STRUCTURE


def _structure_of(text: bytes) -> int:
    octets = np.frombuffer(text, dtype=np.uint8)
    return sum(weight * int(np.count_nonzero(octets == mark)) for mark, weight in _WEIGHTS)


def read_leniently(body: bytes) -> JSONValue:
    """Invalid Unicode becomes U+FFFD, which llm-d accepts; None for invalid JSON."""
    if len(body) > LENIENT_BYTES:
        return None
    try:
        value = json.loads(body.decode("utf-8", "replace"), parse_constant=_refuse_constant)
        cleaned: JSONValue = orjson.loads(_SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return None
    return cleaned


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def text_of(payload: JSONObject, name: str) -> str:
    """A string field, or ""."""
    value = payload.get(name)
    return value if isinstance(value, str) else ""


def first_count(payload: JSONObject, names: tuple[str, ...]) -> int | None:
    """The first whole number in these fields."""
    for name in names:
        value = payload.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        if isinstance(value, float) and value >= 0 and value.is_integer():
            return int(value)
    return None


def dumped(value: JSONValue) -> bytes:
    """JSON, or nothing when nested too deeply."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # orjson writes 254 levels, and reads 1024
        pass
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except RecursionError:
        return b""


@dataclass(frozen=True, slots=True)
class Api:
    """An OpenAI API; `prompts` is a field that may hold several prompts."""

    render: Callable[[JSONObject], tuple[bytes, ...]]
    problem: Callable[[JSONObject], str | None]
    output_limits: tuple[str, ...] = ()
    prompts: str = ""
    pieces: Callable[[JSONObject], tuple[tuple[Piece, ...], ...]] | None = None


CHAT = Api(openai_bodies.chat, openai_bodies.problem_with_chat, ("max_completion_tokens", "max_tokens"), pieces=openai_bodies.chat_pieces)
COMPLETIONS = Api(openai_bodies.completions, openai_bodies.problem_with_completions, ("max_tokens",), "prompt")
IMAGES = Api(openai_bodies.completions, openai_bodies.problem_with_images, prompts="prompt")
EMBEDDINGS = Api(openai_bodies.embeddings, openai_bodies.problem_with_embeddings, prompts="input")
RESPONSES = Api(openai_bodies.responses, openai_bodies.problem_with_responses, ("max_output_tokens",))
CONVERSATIONS = Api(openai_bodies.conversations, openai_bodies.problem_with_conversations)

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


MAX_PROMPTS: Final = 4096
_TOO_MANY_PROMPTS: Final = Rejection(f"the request body has more than {MAX_PROMPTS} prompts", status=413)


class OpenAIParser(JSONParser):
    """Reads OpenAI requests, and token counts from the responses.

    For chat the prompt is the tools, then role and text of each message; otherwise the text. A batch stays several prompts; token ids
    become four bytes each. Invalid UTF-8 and lone surrogates are accepted, as in llm-d.
    """

    claims = tuple(API_OF)
    reads_usage = True

    def parsed(self, path: str, payload: JSONObject) -> ParsedRequest | Rejection:
        api = _api_for(path)
        if api.prompts and len(prompts_of(payload.get(api.prompts))) > MAX_PROMPTS:
            return _TOO_MANY_PROMPTS
        complaint = api.problem(payload)
        if complaint is not None:
            return Rejection(complaint, status=400)
        model, salt = payload.get("model"), payload.get("cache_salt")
        # Positional: keywords build a dictionary.
        return ParsedRequest(
            model if isinstance(model, str) else "",
            Prompt(partial(api.render, payload), partial(api.pieces, payload) if api.pieces else None),
            payload.get("stream") is True,
            first_count(payload, api.output_limits),
            salt if isinstance(salt, str) else "",
            payload,
        )

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        return from_events(body) if streaming else from_body(body)


@lru_cache(maxsize=16)
def _api_for(path: str) -> Api:
    for suffix, api in _BY_LENGTH:
        if path.endswith(suffix):
            return api
    return COMPLETIONS


class PassthroughParser(Parser):
    """Accepts every path that no other parser claims, without reading model, prompt or usage.

    Parsers configured after it are never used.
    """

    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        return ParsedRequest(needs_model=False)
