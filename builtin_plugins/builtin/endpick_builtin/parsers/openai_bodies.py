"""Prompts and token counts in OpenAI bodies. Common prefixes render to common prefixes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from struct import pack
from typing import Final

import orjson

from endpick.api import JSONObject, JSONValue, Media, Modality, Usage
from endpick.api.request import Piece
from endpick_builtin.parsers.json_bodies import dumped

MAX_TOKEN_ID: Final = 2**32 - 1
_NAME_OF: Final = {list: "a list", str: "a string", bool: "true or false", dict: "an object"}


_URL_FIELDS: Final = {"image_url": Modality.IMAGE, "video_url": Modality.VIDEO, "audio_url": Modality.AUDIO}
CHAT_FIELDS: Final[Mapping[str, type]] = {
    "tools": list,
    "documents": list,
    "chat_template": str,
    "return_assistant_tokens_mask": bool,
    "continue_final_message": bool,
    "add_generation_prompt": bool,
    "chat_template_kwargs": dict,
}
_CHAT_FIELD_NAMES: Final = frozenset(CHAT_FIELDS)


_NO_MESSAGES: Final = "invalid chat completions request: must have valid messages field"


def problem_with_chat(payload: JSONObject) -> str | None:
    """Return why the messages are invalid, or None if not."""
    messages = payload.get("messages")
    if not isinstance(messages, list) or not messages:
        return _NO_MESSAGES
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role", ""), str):
            return _NO_MESSAGES
        content = message.get("content")
        if content is not None and not isinstance(content, str | list):
            return _NO_MESSAGES
    if _CHAT_FIELD_NAMES.isdisjoint(payload):  # as in nearly every request
        return None
    for name, kind in CHAT_FIELDS.items():
        value = payload.get(name)
        if value is not None and not isinstance(value, kind):
            return f"invalid chat completions request: {name} must be {_NAME_OF[kind]}"
    return None


def required(api: str, field: str, is_valid: Callable[[JSONValue], bool]) -> Callable[[JSONObject], str | None]:
    """Return a function that says why a body of this API is invalid: without a valid field; None if it is not."""
    problem = f"invalid {api} request: must have {field} field"
    return lambda payload: None if is_valid(payload.get(field)) else problem


def chat(payload: JSONObject) -> tuple[bytes, ...]:
    """Render a chat as a prompt: tools first, as in chat templates, then messages."""
    messages = payload.get("messages")
    pieces: list[bytes] = []
    if payload.get("tools"):
        pieces.append(dumped(payload["tools"]))
    for message in messages if isinstance(messages, list | tuple) else ():
        if isinstance(message, dict):
            role, content = message.get("role"), message.get("content")
            if isinstance(role, str):
                pieces.append(role.encode())
            if isinstance(content, str):
                pieces.append(content.encode())
            else:
                pieces += map(_part, sequence(content))
    return (b"".join(pieces),)


def chat_pieces(payload: JSONObject) -> tuple[tuple[Piece, ...], ...]:
    """Render a chat like `chat`, with media as separate pieces."""
    pieces: list[Piece] = []
    if payload.get("tools"):
        pieces.append(dumped(payload["tools"]))
    for message in sequence(payload.get("messages")):
        if isinstance(message, Mapping):
            pieces.append(_text(message.get("role")))
            content = message.get("content")
            pieces += (content.encode(),) if isinstance(content, str) else map(_piece, sequence(content))
    return (tuple(pieces),)


def texts_in(field: str, payload: JSONObject) -> tuple[bytes, ...]:
    """Render each prompt in a field; token ids become four bytes each."""
    return tuple(part.encode() if isinstance(part, str) else packed(sequence(part)) for part in prompts_of(payload.get(field)))


def responses(payload: JSONObject) -> tuple[bytes, ...]:
    """Render instructions, tools and input together, as JSON."""
    shown = [{name: payload[name]} for name in ("instructions", "tools", "input") if payload.get(name)]
    return (dumped(shown),)


def conversations(payload: JSONObject) -> tuple[bytes, ...]:
    """Render the items of a conversation together, as JSON."""
    return (dumped(payload.get("items")),)


def is_text_or_tokens(prompt: JSONValue) -> bool:
    """Whether this is one prompt or several, as text or token ids."""
    if isinstance(prompt, str):
        return prompt != ""
    if not isinstance(prompt, list) or not prompt:
        return False
    return is_tokens(prompt) or all(isinstance(text, str) or (isinstance(text, list) and is_tokens(text)) for text in prompt)


def is_tokens(prompt: Sequence[JSONValue]) -> bool:
    """Whether all values are token ids."""
    return all(type(token) is int and 0 <= token <= MAX_TOKEN_ID for token in prompt)


def prompts_of(prompt: JSONValue) -> Sequence[JSONValue]:
    """Return the prompts in a field that holds one or several of them."""
    parts = sequence(prompt)
    return (prompt,) if not parts or isinstance(parts[0], int) else parts


def packed(tokens: Sequence[JSONValue]) -> bytes:
    """Pack token ids as four little-endian bytes each."""
    return pack(f"<{len(tokens)}I", *tokens)


def _part(part: JSONValue) -> bytes:
    if isinstance(part, Mapping) and part.get("type") == "text":
        return _text(part.get("text"))
    return dumped(part)


def _piece(part: JSONValue) -> Piece:
    return (media_of(part) if isinstance(part, Mapping) else None) or _part(part)


def media_of(part: JSONObject) -> Media | None:
    """Return the media of a message part, or None if it has none."""
    kind = part.get("type")
    if kind in _URL_FIELDS:
        field = part.get(kind)
        url = field.get("url") if isinstance(field, Mapping) else field
        return Media(_URL_FIELDS[kind], url) if isinstance(url, str) and url else None
    if kind == "input_audio":
        audio = part.get("input_audio")
        data, form = (audio.get("data"), audio.get("format", "")) if isinstance(audio, Mapping) else (None, "")
        return Media(Modality.AUDIO, data + form) if isinstance(data, str) and isinstance(form, str) else None
    return None


def _text(value: JSONValue) -> bytes:
    return value.encode() if isinstance(value, str) else b""


def sequence(value: JSONValue) -> Sequence[JSONValue]:
    """Return a list as it is, and nothing in place of other values."""
    return value if isinstance(value, list | tuple) else ()


_decode_first: Final = json.JSONDecoder().raw_decode
_PROMPT: Final = ("prompt_tokens", "input_tokens")
_COMPLETION: Final = ("completion_tokens", "output_tokens")
_DETAILS: Final = ("prompt_tokens_details", "input_tokens_details", "prompt_token_details", "input_token_details")
_LAST_EVENTS: Final = frozenset(("response.completed", "response.incomplete", "response.failed"))
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")


def from_events(events: bytes) -> Usage | None:
    """Return the last token counts; the Responses API has them in the `response` of its last event."""
    found: Usage | None = None
    for event in last_events_with(b'"usage"', events):
        response = event.get("response")
        carrier = response if isinstance(response, dict) and event.get("type") in _LAST_EVENTS else event
        found = filled(found, _usage(carrier.get("usage")))
        if found is not None and found.prompt_tokens and found.completion_tokens and found.cached_tokens is not None:
            break
    return found


def filled(later: Usage | None, earlier: Usage | None) -> Usage | None:
    """Return `later`, with missing counts taken from `earlier`."""
    if later is None or earlier is None:
        return later or earlier
    cached = earlier.cached_tokens if later.cached_tokens is None else later.cached_tokens
    return Usage(later.prompt_tokens or earlier.prompt_tokens, later.completion_tokens or earlier.completion_tokens, cached)


def from_body(body: bytes) -> Usage | None:
    """Return the usage in a JSON response, or in the end of one."""
    return _usage(field_of("usage", body))


def field_of(name: str, body: bytes) -> JSONValue:
    """Return a field of a JSON response, or of the end of one."""
    answer = _object(body)
    if answer is not None:
        return answer.get(name)
    start = body.rfind(b'"%b"' % name.encode())
    begin = body.find(b"{", start)
    if start < 0 or begin < 0:
        return None
    try:
        value: JSONValue = _decode_first(body[begin:].decode("utf-8", "replace"))[0]
    except (ValueError, RecursionError):
        return None
    return value


def last_events_with(mark: bytes, events: bytes) -> Iterator[JSONObject]:
    """Yield events that contain `mark`, last first.

    An event may have several `data:` lines, or lack the blank line after it.
    """
    texts: list[bytes] = _BLANK_LINE.split(events)
    for text in reversed(texts):
        if mark not in text:
            continue
        lines = [line[5:] for line in text.splitlines() if line.startswith(b"data:")]
        whole = _object(b"\n".join(lines))
        if whole is not None:
            yield whole
            continue
        for line in reversed(lines):
            event = _object(line) if mark in line else None
            if event is not None:
                yield event


def _object(text: bytes) -> JSONObject | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _usage(usage: JSONValue) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(prompt) is not int or prompt < 0:
        prompt = first_of(usage, _PROMPT)
    if type(completion) is not int or completion < 0:
        completion = first_of(usage, _COMPLETION)
    if prompt is None and completion is None:
        prompt = first_of(usage, ("total_tokens",))  # of a reranking
        if prompt is None:
            return None
    cached = None
    for name in _DETAILS:
        details = usage.get(name)
        if isinstance(details, dict):
            cached = first_of(details, ("cached_tokens",))
            break
    return Usage(prompt or 0, completion or 0, cached)


def first_of(counts: JSONObject, names: tuple[str, ...]) -> int | None:
    """Return the first of these counts that is a non-negative integer, or None."""
    for name in names:
        value = counts.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None
