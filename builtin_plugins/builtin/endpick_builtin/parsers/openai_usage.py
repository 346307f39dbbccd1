"""Token counts in OpenAI responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import orjson

from endpick.api import JSONObject, JSONValue, Usage

_decode_first: Final = json.JSONDecoder().raw_decode
_PROMPT: Final = ("prompt_tokens", "input_tokens")
_COMPLETION: Final = ("completion_tokens", "output_tokens")
_DETAILS: Final = ("prompt_tokens_details", "input_tokens_details", "prompt_token_details")


def from_events(events: bytes) -> Usage | None:
    """The last usage in events; the Responses API has it in `response.completed`."""
    for event in last_events_with(b'"usage"', events):
        response = event.get("response")
        carrier = response if isinstance(response, dict) and event.get("type") == "response.completed" else event
        found = _usage(carrier.get("usage"))
        if found is not None:
            return found
    return None


def from_body(body: bytes) -> Usage | None:
    """The usage in a JSON response, or its end."""
    return _usage(field_of("usage", body))


def field_of(name: str, body: bytes) -> JSONValue:
    """A field of a JSON response, or of its end."""
    answer = _object(body)
    if answer is not None:
        return answer.get(name)
    start = body.rfind(b'"%b"' % name.encode())
    begin = body.find(b"{", start)
    if start < 0 or begin < 0:
        return None
    try:
        value: JSONValue = _decode_first(body[begin:].decode("utf-8", "replace"))[0]
    except ValueError:
        return None
    return value


def last_events_with(mark: bytes, events: bytes) -> Iterator[JSONObject]:
    """Events that contain `mark`, last first."""
    for line in reversed(events.splitlines()):
        if line.startswith(b"data:") and mark in line:
            event = _object(line[5:])
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
        return None
    cached = None
    for name in _DETAILS:
        details = usage.get(name)
        if isinstance(details, dict):
            cached = first_of(details, ("cached_tokens",))
            break
    return Usage(prompt or 0, completion or 0, cached)


def first_of(counts: JSONObject, names: tuple[str, ...]) -> int | None:
    """The first of these counts."""
    for name in names:
        value = counts.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None
