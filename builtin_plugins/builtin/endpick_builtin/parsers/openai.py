"""`openai-parser` and `passthrough-parser`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Final

from endpick.api import JSONObject, ParsedRequest, Parser, Prompt, Rejection, Usage
from endpick.api.request import Piece
from endpick_builtin.parsers import openai_bodies
from endpick_builtin.parsers.forms import Form
from endpick_builtin.parsers.json_bodies import JSONParser, first_count
from endpick_builtin.parsers.openai_bodies import from_body, from_events, is_text_or_tokens, prompts_of, required, texts_in


@dataclass(frozen=True, slots=True)
class Api:
    """An OpenAI API; `prompts` is a field that may hold several prompts."""

    render: Callable[[JSONObject], tuple[bytes, ...]]
    problem: Callable[[JSONObject], str | None]
    output_limits: tuple[str, ...] = ()
    prompts: str = ""
    pieces: Callable[[JSONObject], tuple[tuple[Piece, ...], ...]] | None = None


CHAT = Api(openai_bodies.chat, openai_bodies.problem_with_chat, ("max_completion_tokens", "max_tokens"), pieces=openai_bodies.chat_pieces)
COMPLETIONS = Api(partial(texts_in, "prompt"), required("completions", "prompt", is_text_or_tokens), ("max_tokens",), "prompt")
IMAGES = Api(partial(texts_in, "prompt"), required("images generations", "prompt", is_text_or_tokens), prompts="prompt")
EMBEDDINGS = Api(partial(texts_in, "input"), required("embeddings", "input", is_text_or_tokens), prompts="input")
RESPONSES = Api(openai_bodies.responses, required("responses", "input", lambda given: given is not None), ("max_output_tokens",))
SPEECH = Api(partial(texts_in, "input"), required("audio speech", "input", lambda text: isinstance(text, str)))
CONVERSATIONS = Api(openai_bodies.conversations, required("conversations", "items", lambda items: isinstance(items, list) and bool(items)))

API_OF: Mapping[str, Api] = {
    "/conversations": CONVERSATIONS,
    "/responses": RESPONSES,
    "/chat/completions": CHAT,
    "/chat/completions/render": CHAT,
    "/completions": COMPLETIONS,
    "/completions/render": COMPLETIONS,
    "/embeddings": EMBEDDINGS,
    "/images/generations": IMAGES,
    "/audio/speech": SPEECH,
}
FORMS = ("/images/edits", "/audio/transcriptions", "/audio/translations")
_BY_LENGTH = sorted(API_OF.items(), key=lambda claim: -len(claim[0]))


MAX_PROMPTS: Final = 4096
_TOO_MANY_PROMPTS: Final = Rejection(f"the request body has more than {MAX_PROMPTS} prompts", status=413)


@dataclass(frozen=True, slots=True)
class FormRequest(ParsedRequest):
    """A request whose body is a form."""

    form: Form = field(kw_only=True)


class ReadsUsage(Parser):
    """Base of parsers for requests whose responses have token counts as in OpenAI's APIs."""

    reads_usage = True

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        return from_events(body) if streaming else from_body(body)


class OpenAIParser(ReadsUsage, JSONParser):
    """Reads OpenAI requests, and token counts from the responses.

    For chat the prompt is the tools, then role and text of each message; otherwise the text. A batch stays several prompts; token ids
    become four bytes each. Invalid UTF-8 and lone surrogates are accepted, as in llm-d. Forms (`multipart/form-data`) of image edits and
    transcriptions are read for `model`, `prompt` and `stream`.
    """

    claims = (*API_OF, *FORMS)

    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        if not path.endswith(FORMS):
            return super().parse(path, headers, body)
        try:
            form = Form(headers.get("content-type", ""), body)
        except ValueError as problem:
            return Rejection(f"error parsing multipart form: {problem}", status=400)
        prompt = (form.text("prompt") or "").encode()
        # Kept for `rewrite_model`; not JSON, so plugins get no payload.
        return FormRequest(form.text("model") or "", Prompt(lambda: (prompt,)), form.text("stream") == "true", form=form)

    def rewrite_model(self, body: bytes, parsed: ParsedRequest, model: str) -> bytes:
        return parsed.form.replaced("model", model) if isinstance(parsed, FormRequest) else super().rewrite_model(body, parsed, model)

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


@lru_cache(maxsize=16)
def _api_for(path: str) -> Api:
    for suffix, api in _BY_LENGTH:
        if path.endswith(suffix):
            return api
    return COMPLETIONS


class PassthroughParser(ReadsUsage):
    """Accepts every path that no other parser claims, without reading the body. Token counts are read from the response.

    Parsers configured after it are never used.
    """

    reads_body = False

    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        return ParsedRequest(needs_model=False)
