"""Token counts in the answers of the OpenAI APIs, whole or as server-sent events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

import orjson

from endpick.api import JSONObject, JSONValue, Usage

_LONGEST_OBJECT: Final = 1 << 14
"""Bytes within which an object ends that is looked for in the end of an answer."""
_MOST_EVENTS: Final = 32
"""With usage, of one piece of an answer: a server may send thirty thousand in a mebibyte, which take 56 ms, and a gateway cuts off some. Of
sixty megabytes that come at once, and are shown in two hundred pieces, 256 of each took 0.3 s."""
_BRACE: Final = re.compile(rb"[{}]")
_MOST_BRACES: Final = 256
"""Of an object that is looked for in the end of an answer: usage has a handful."""
_LONG_EVENT: Final = 1 << 15
"""Bytes of an event from which on its brackets are counted, and how many it may have."""
_PROMPT: Final = ("prompt_tokens", "input_tokens")
_COMPLETION: Final = ("completion_tokens", "output_tokens")
_DETAILS: Final = ("prompt_tokens_details", "input_tokens_details", "prompt_token_details")


def from_events(events: bytes) -> Usage | None:
    """The last usage in server-sent events; None when there is none.

    Events of the Responses API carry it in `response`, and it counts only once the response is completed.
    """
    for event in last_events_with(b'"usage"', events):
        response = event.get("response")
        carrier = response if isinstance(response, dict) and event.get("type") == "response.completed" else event
        found = _usage(carrier.get("usage"))
        if found is not None:
            return found
    return None


def from_body(body: bytes) -> Usage | None:
    """The usage of a plain answer, or of its end; None when it has none."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    return _usage(answer.get("usage") if isinstance(answer, dict) else _last_object("usage", body))


def field_of(name: str, body: bytes) -> JSONValue:
    """A field of a plain answer; of one whose beginning is missing, the last object under that name. None where there is none.

    Args:
        name: Of a field that holds an object without text in which braces may stand.
        body: JSON, or its end.
    """
    answer = _object(body)
    return answer.get(name) if answer is not None else _last_object(name, body)


def _last_object(name: str, body: bytes) -> JSONValue:
    start = body.rfind(b'"%b"' % name.encode())
    begin = body.find(b"{", start)
    return None if start < 0 or begin < 0 else _object(_balanced(body[begin : begin + _LONGEST_OBJECT]))


def last_events_with(mark: bytes, events: bytes) -> Iterator[JSONObject]:
    """The objects of those server-sent events in which `mark` stands, the last one first: few of many, and none of which most is brackets.

    Each is read when it is asked for: where each of thousands has a usage, only the last one counts.
    """
    for line in _last_lines_with(mark, events):
        if not line.startswith(b"data:") or (len(line) > _LONG_EVENT and line.count(b"{") + line.count(b"[") > _LONG_EVENT):
            continue
        event = _object(line[5:].strip())
        if event is not None:
            yield event


def _last_lines_with(mark: bytes, text: bytes) -> Iterator[bytes]:
    """The lines in which `mark` stands, the last one first; lines without it cost nothing each, of which a mebibyte may have a million."""
    text = text.replace(b"\r", b"\n")
    end = len(text)
    for _ in range(_MOST_EVENTS):
        place = text.rfind(mark, 0, end)
        if place < 0:
            return
        begin = text.rfind(b"\n", 0, place) + 1
        stop = text.find(b"\n", place, end)
        yield text[begin : end if stop < 0 else stop]
        end = begin


def _object(text: bytes) -> JSONObject | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _balanced(text: bytes) -> bytes:
    """The first object of `text`: usage holds no strings, so counting braces is enough. Empty where it has too many, or does not end."""
    depth = 0
    for brace in islice(_BRACE.finditer(text), _MOST_BRACES):
        depth += 1 if brace.group() == b"{" else -1
        if depth == 0:
            end = brace.end()
            return text[:end]
    return b""


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
    """The first of these fields that is a whole number and not negative; None when none is."""
    for name in names:
        value = counts.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None
