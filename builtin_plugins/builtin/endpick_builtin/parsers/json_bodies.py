"""JSON bodies, for every parser of them: within the limits on their structure, and leniently where model servers are lenient, too."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, NoReturn

import orjson
from pydantic import Field
from typing_extensions import TypeVar

from endpick.api import JSONObject, JSONValue, Parameters, ParsedRequest, Parser, PluginContext, Rejection
from endpick.api.fast_metrics import Counts
from endpick_builtin.parsers.model_field import with_model
from endpick_builtin.parsers.structure import exceeded_limit, without_depths


class JSONParameters(Parameters):
    """How much structure a body may have; a request with more is answered with 400."""

    max_containers: Annotated[
        int,
        Field(alias="maxContainers", gt=0, description="Objects and lists in a body: messages, their parts, tools and all within them."),
    ] = 131_072
    max_values: Annotated[
        int, Field(alias="maxValues", gt=0, description="Objects, lists, strings, numbers and literals in a body; each token id is one.")
    ] = 2_097_152


COUNTED = {"maxContainers": "objects and lists", "maxValues": "values", "maxPrompts": "prompts"}
_LOG_SECONDS = 30.0
_DEEPEST = 200
"""Objects and lists within each other that are looked at where a body has more than orjson reads: orjson writes 254."""
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_leniently(body: bytes) -> JSONValue:
    """A body that orjson refuses, as llm-d would read it; None for what is no JSON to llm-d either.

    Bytes that are not UTF-8, and halves of surrogate pairs, become U+FFFD. Of a body that nests deeper than orjson reads, what stands
    within more than two hundred objects and lists counts as null. Only bodies that orjson has refused come here: others pay nothing.
    """
    text = body
    if not _is_utf8(text):
        text = text.decode("utf-8", "replace").encode()
    if text.count(b"[") + text.count(b"{") > _DEEPEST:
        text = without_depths(text, _DEEPEST)
    try:
        if text is not body:
            return _loaded(text)
        return _without_surrogates(text) if _ESCAPED_SURROGATE.search(text) else None
    except (ValueError, RecursionError):
        return None


def _loaded(text: bytes) -> JSONValue:
    try:
        value: JSONValue = orjson.loads(text)
    except orjson.JSONDecodeError:
        return _without_surrogates(text) if _ESCAPED_SURROGATE.search(text) else None
    return value


def _without_surrogates(text: bytes) -> JSONValue:
    """Raises ValueError or RecursionError for what is no JSON."""
    value = json.loads(text, parse_constant=_refuse_constant)
    written = _SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False))
    cleaned: JSONValue = orjson.loads(written)
    return cleaned


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


P = TypeVar("P", bound=JSONParameters, default=JSONParameters)


class JSONParser(Parser[P]):
    """Base of the parsers whose bodies are JSON objects with a field `model`."""

    def __init__(self, name: str, parameters: P, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        told = "Requests refused because their body has more structure than a parameter allows."
        self._refusals = Counts("endpick_parser_refusals_total", told, ("limit",), context.registry)
        self._logged_at: dict[str, float] = {}
        self._most = {"maxContainers": parameters.max_containers, "maxValues": parameters.max_values}
        # A container takes two bytes, and a value one and a comma; no more brackets are open in JSON than closed.
        self._long_bytes = 2 * min(self._most.values())

    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        """Read the object, and what the API says of it."""
        if len(body) > self._long_bytes:
            exceeded = exceeded_limit(body, self._most["maxContainers"], self._most["maxValues"])
            if exceeded is not None:
                return self.refused_for(exceeded, self._most[exceeded])
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

    def refused_for(self, limit: str, allowed: int) -> Rejection:
        """The answer to a request that exceeds a limit; it is counted, and logged twice a minute at most."""
        self._refusals.labels(limit).inc()
        now = self.context.clock()
        if now - self._logged_at.get(limit, -_LOG_SECONDS) >= _LOG_SECONDS:
            self._logged_at[limit] = now
            self.context.logger.warning(
                "a request has more than %d %s, and was refused; %s raises the limit", allowed, COUNTED[limit], limit
            )
        return Rejection(f"the request body holds more than {allowed} {COUNTED[limit]}", status=400)

    def parsed(self, path: str, payload: JSONObject) -> ParsedRequest | Rejection:
        """What the request asks for, or what its API misses in it; that the model is text is looked at for all APIs alike."""
        raise NotImplementedError

    def rewrite_model(self, body: bytes, parsed: ParsedRequest, model: str) -> bytes:
        """Exchange the model name; every other byte stays."""
        return with_model(body, model)


def text_of(payload: JSONObject, name: str) -> str:
    """A field that is text; empty where it is absent or something else."""
    value = payload.get(name)
    return value if isinstance(value, str) else ""


def first_count(payload: JSONObject, names: tuple[str, ...]) -> int | None:
    """The first of these fields that holds a whole number that is not negative; None when none does."""
    for name in names:
        value = payload.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        if isinstance(value, float) and value >= 0 and value.is_integer():
            return int(value)
    return None


def dumped(value: JSONValue) -> bytes:
    """A part of a body as JSON; empty where it nests deeper than can be written."""
    try:
        # orjson reserves some kilobytes for each result, however short; a copy takes what it needs.
        return b"".join((orjson.dumps(value), b""))
    except orjson.JSONEncodeError:
        pass
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except RecursionError:
        return b""
