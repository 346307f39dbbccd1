"""`vllmhttp-parser` and `sglanghttp-parser`: the engines' own APIs, which take token ids."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from endpick.api import JSONObject, JSONValue, ParsedRequest, Rejection, Usage
from endpick_builtin.parsers.json_bodies import JSONParser, first_count, text_of
from endpick_builtin.parsers.openai_prompts import is_tokens
from endpick_builtin.parsers.openai_usage import field_of, first_of, from_body, from_events, last_events_with
from endpick_builtin.parsers.token_prompts import features_of, token_prompt


class VllmHTTPParser(JSONParser):
    """Reads vLLM's `/inference/v1/generate`: token ids and encoded media.

    `token_ids` is required: whole numbers from 0 to 4294967295. `features.mm_hashes` and `features.mm_placeholders` locate media; entries
    that do not fit the tokens are ignored. `sampling_params.max_tokens` limits the output.
    """

    claims = ("/inference/v1/generate",)
    reads_usage = True

    def parsed(self, path: str, payload: JSONObject) -> ParsedRequest | Rejection:
        """See the class."""
        tokens = _tokens(payload.get("token_ids"))
        if tokens is None:
            return Rejection("invalid generate request: must have token_ids field", status=400)
        features = payload.get("features")
        return ParsedRequest(
            model=text_of(payload, "model"),
            prompt=token_prompt(tokens, partial(features_of, features, len(tokens)) if features else None),
            streaming=payload.get("stream") is True,
            max_output_tokens=first_count(_object(payload.get("sampling_params")), ("max_tokens",)),
            cache_salt=text_of(payload, "cache_salt"),
            payload=payload,
        )

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        """See `Parser.usage`."""
        return from_events(body) if streaming else from_body(body)


class SGLangHTTPParser(JSONParser):
    """Reads SGLang's `/generate`: token ids.

    `input_ids` is required: whole numbers from 0 to 4294967295. `extra_key` is the cache salt, `sampling_params.max_new_tokens` limits the
    output, and token counts come from `meta_info`. The API has no model field.
    """

    claims = ("/generate",)
    reads_usage = True
    usage_mark = b'"meta_info'

    def parsed(self, path: str, payload: JSONObject) -> ParsedRequest | Rejection:
        """See the class."""
        tokens = _tokens(payload.get("input_ids"))
        if tokens is None:
            return Rejection("invalid generate request: must have input_ids field", status=400)
        return ParsedRequest(
            model=text_of(payload, "model"),
            prompt=token_prompt(tokens),
            streaming=payload.get("stream") is True,
            max_output_tokens=first_count(_object(payload.get("sampling_params")), ("max_new_tokens",)),
            cache_salt=text_of(payload, "extra_key"),
            payload=payload,
            needs_model=False,
        )

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        """See `Parser.usage`."""
        if not streaming:
            return _counts(field_of("meta_info", body))
        return next(filter(None, (_counts(event.get("meta_info")) for event in last_events_with(b'"meta_info"', body))), None)


def _tokens(value: JSONValue) -> list[JSONValue] | None:
    """At least one token id; None for anything else."""
    return value if isinstance(value, list) and value and is_tokens(value) else None


def _object(value: JSONValue) -> JSONObject:
    return value if isinstance(value, Mapping) else {}


def _counts(info: JSONValue) -> Usage | None:
    if not isinstance(info, Mapping):
        return None
    prompt, completion = first_of(info, ("prompt_tokens",)), first_of(info, ("completion_tokens",))
    if prompt is None and completion is None:
        return None
    return Usage(prompt or 0, completion or 0, first_of(info, ("cached_tokens",)))
