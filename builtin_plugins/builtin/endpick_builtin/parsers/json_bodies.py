"""Parses JSON bodies and limits their structure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NoReturn

import numpy as np
import orjson

from endpick.api import JSONObject, JSONValue, ParsedRequest, Parser, Rejection

CHECKED_BYTES: Final = 1 << 20
LENIENT_BYTES: Final = 4 << 20  # larger bodies must be valid Unicode
MAX_STRUCTURE: Final = 1 << 20  # a million token ids, or 200,000 fields
MAX_QUOTES: Final = 1 << 19
_WEIGHTS: Final = ((ord(","), 1), (ord(":"), 4), (ord("["), 8), (ord("{"), 8))  # relative costs of structure, once parsed
_TOO_COMPLEX: Final = Rejection("the request body has too many objects, lists and values", status=413)
_LONG_INTEGER: Final = re.compile(rb"\d{19}")
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
        """Serialise the body with another model, as llm-d does; its formatting is lost."""
        return body if parsed.payload is None else _with_field(body, parsed.payload, "model", model)

    def rewrite_priority(self, body: bytes, parsed: ParsedRequest, priority: int) -> bytes:
        """Serialise the body with a `priority`; its formatting is lost."""
        payload = None if parsed.payload is None else read_leniently(body)
        return _with_field(body, payload, "priority", priority) if isinstance(payload, dict) else body


def _with_field(body: bytes, payload: JSONObject, name: str, value: JSONValue) -> bytes:
    if _LONG_INTEGER.search(body):  # orjson reads integers of more than 64 bits as floats
        with suppress(ValueError, RecursionError):
            return json.dumps({**json.loads(body), name: value}, separators=(",", ":")).encode()
    return dumped({**payload, name: value})


def is_too_complex(body: bytes) -> bool:
    """Whether parsing would hold up other requests; JSON in strings does not count."""
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
    """Parse JSON, with U+FFFD for invalid Unicode, which llm-d accepts; returns None for invalid JSON."""
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
    """Return a string field, or an empty text if it is missing or of another type."""
    value = payload.get(name)
    return value if isinstance(value, str) else ""


def first_count(payload: JSONObject, names: tuple[str, ...]) -> int | None:
    """Return the first whole number in these fields that is not negative, or None."""
    for name in names:
        value = payload.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        if isinstance(value, float) and value >= 0 and value.is_integer():
            return int(value)
    return None


def dumped(value: JSONValue) -> bytes:
    """Serialise a value to JSON, or to nothing if it is nested too deeply."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # orjson writes 254 levels, and reads 1024
        pass
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except RecursionError:
        return b""
