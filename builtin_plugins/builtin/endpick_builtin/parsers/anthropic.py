"""`anthropic-parser`: Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from endpick.api import JSONObject, JSONValue, Media, Modality, ParsedRequest, Prompt, Rejection, Usage
from endpick.api.request import Piece
from endpick_builtin.parsers.json_bodies import JSONParser, dumped, first_count, text_of
from endpick_builtin.parsers.openai_bodies import field_of, filled, first_of, last_events_with, sequence

COUNT_TOKENS = "/messages/count_tokens"


class AnthropicParser(JSONParser):
    """Reads Anthropic's `/v1/messages`, and token counts from the responses.

    The prompt is the tools as JSON, the system prompt, then role and content of each message; images are media. `/v1/messages/count_tokens`
    goes to any endpoint unchanged, its response unread. Streams count the prompt in `message_start`, the completion in `message_delta`.
    """

    claims = ("/messages", COUNT_TOKENS)
    reads_usage = True

    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        if path.endswith(COUNT_TOKENS):
            return ParsedRequest(needs_model=False, skip_response=True)
        return super().parse(path, headers, body)

    def parsed(self, path: str, payload: JSONObject) -> ParsedRequest | Rejection:
        messages = payload.get("messages")
        if not (isinstance(messages, list) and messages and all(map(_is_message, messages))):
            return Rejection("invalid messages request: must have valid messages field", status=400)
        if not isinstance(payload.get("system"), str | list | None):
            return Rejection("invalid messages request: system must be text or a list", status=400)
        return ParsedRequest(
            model=text_of(payload, "model"),
            prompt=Prompt(partial(_texts, payload), partial(_pieces, payload)),
            streaming=payload.get("stream") is True,
            max_output_tokens=first_count(payload, ("max_tokens",)),
            cache_salt=text_of(payload, "cache_salt"),
            payload=payload,
        )

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        if not streaming:
            return _usage(field_of("usage", body), None)
        found = None
        for event in reversed([*last_events_with(b'"usage"', body)]):
            message = event.get("message")
            carrier = message if isinstance(message, Mapping) and event.get("type") == "message_start" else event
            found = _usage(carrier.get("usage"), found)
        return found


def _usage(usage: JSONValue, earlier: Usage | None) -> Usage | None:
    if not isinstance(usage, Mapping):
        return earlier
    prompt, completion = first_of(usage, ("input_tokens",)), first_of(usage, ("output_tokens",))
    if prompt is None and completion is None:
        return earlier
    return filled(Usage(prompt or 0, completion or 0, first_of(usage, ("cache_read_input_tokens",))), earlier)


def _is_message(message: JSONValue) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("role", ""), str) and isinstance(message.get("content"), str | list)


def _texts(payload: JSONObject) -> tuple[bytes, ...]:
    parts = [dumped({"type": part.modality, "content": part.content}) if isinstance(part, Media) else part for part in _parts(payload)]
    return (b"".join(parts),)


def _pieces(payload: JSONObject) -> tuple[tuple[Piece, ...], ...]:
    return (tuple(_parts(payload)),)


def _parts(payload: JSONObject) -> Iterator[Piece]:
    if payload.get("tools"):
        yield dumped(payload["tools"])
    yield from _content(payload.get("system"))
    for message in sequence(payload.get("messages")):
        if isinstance(message, Mapping):
            yield text_of(message, "role").encode()
            yield from _content(message.get("content"))


def _content(content: JSONValue) -> Iterator[Piece]:
    """Tool results may nest deeply."""
    if isinstance(content, str):
        yield content.encode()
    begun = [iter(sequence(content))]
    while begun:
        for block in begun[-1]:
            if not isinstance(block, Mapping):
                continue
            if block.get("type") != "tool_result":
                yield _block(block)
                continue
            yield text_of(block, "tool_use_id").encode()
            inner = block.get("content")
            if isinstance(inner, str):
                yield inner.encode()
            begun.append(iter(sequence(inner)))
            break
        else:
            begun.pop()


def _block(block: JSONObject) -> Piece:
    match block.get("type"):
        case "text":
            return text_of(block, "text").encode()
        case "thinking":
            return text_of(block, "thinking").encode()
        case "image":
            return _media(block.get("source")) or dumped(block)
        case "tool_use":
            return dumped([block.get("id"), block.get("name"), block.get("input")])
    return dumped(block)


def _media(source: JSONValue) -> Media | None:
    if not isinstance(source, Mapping):
        return None
    content = text_of(source, "url") or (text_of(source, "data") if source.get("type") == "base64" else "")
    return Media(Modality.IMAGE, content) if content else None
