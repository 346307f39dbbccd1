"""Builds the inference request that plugins see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Final

import numpy as np

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints
from endpick.api.request import InferenceRequest, ParsedRequest
from endpick.data.model_rules import ModelRules, choose_model
from endpick.host.boundary import Fault
from endpick.requests.compressed_body import refuse_compressed
from endpick.requests.headers import CONTROLS, DEFAULT_FAIRNESS_ID, FAIRNESS_ID, MODEL_REWRITE, OBJECTIVE, REQUEST_ID, first_of, new_id
from endpick.requests.model import (
    CODE_OF,
    LONG_NAME,
    MAX_NAME_CHARACTERS,
    NO_MODEL,
    IncomingRequest,
    Refused,
    RequestRefused,
    is_upgrade,
)
from endpick.requests.parsing import CompiledParser, Parsers, parsed_by, path_of, refuse_unreadable, rewritten

_MAX_LENGTH_DIGITS: Final = 18
UNREAD: Final = ParsedRequest(needs_model=False)  # the gateway kept the body, or a skipped parser failed


@dataclass(slots=True)
class BuiltRequest:
    """An inference request, and the parser that read it."""

    request: InferenceRequest
    parser: CompiledParser | None  # also reads the response, unless None
    body: bytes | None  # replaces the original
    unread: str = ""  # why a skipped parser read nothing


def build_request(
    incoming: IncomingRequest,
    parsers: Parsers,
    objectives: Mapping[str, int],
    rules: ModelRules,
    random: Random,
    access: Access,
    propagates_priority: bool = False,
) -> BuiltRequest:
    """Parse the request and apply rewrites and objectives, whose precedence is llm-d's. Raises RequestRefused."""
    headers, received = incoming.headers, incoming.body
    size_bytes = 0 if received is None else len(received)
    if incoming.unread:
        size_bytes = _announced_size(headers)
        received = None if is_upgrade(headers) else b""
    path = path_of(headers)
    rewrite = objective = fairness_id = None
    if not CONTROLS.isdisjoint(headers):
        rewrite, objective, fairness_id = first_of(headers, MODEL_REWRITE), first_of(headers, OBJECTIVE), first_of(headers, FAIRNESS_ID)

    parser, parsed, unread = None, UNREAD, ""
    if received is not None:
        parser = parsers.usual.get(path) or parsers.for_path(path)
        if parser is None:
            raise RequestRefused(Refused(400, CODE_OF[400], f"no parser is configured for path '{path}'"))
        if "content-encoding" in headers and parser.reads_body:
            refuse_compressed(headers["content-encoding"])
        answer = parsed_by(parser, path, headers, received, access)
        if isinstance(answer, Fault):
            refuse_unreadable(answer, changes_model=bool(rewrite or rules.rewrites))
            parser, unread = None, str(answer)
        else:
            parsed = answer

    target = rewrite or parsed.model
    if rules.rewrites and parser is not None:
        target = choose_model(rules.rewrites, parsed.model, random.random()) or target
    if parsed.needs_model and not target:
        raise RequestRefused(NO_MODEL)
    if max(len(parsed.model), len(target), len(parsed.cache_salt), len(fairness_id or "")) > MAX_NAME_CHARACTERS:
        raise RequestRefused(LONG_NAME)
    body = None
    if parser is not None and received is not None and target != parsed.model:
        body = rewritten(parser.rewrite_model, received, parsed, target, access)
    priority = objectives.get(objective, rules.objectives.get(objective, 0)) if objective else 0
    if propagates_priority and parser is not None and received is not None and not incoming.unread:
        body = rewritten(parser.rewrite_priority, body or received, parsed, priority, access) or body
    # Positional: with keywords, Python builds a dictionary first.
    request = InferenceRequest(
        headers.get(REQUEST_ID) or new_id(),
        target,
        parsed.model,
        path,
        MappingProxyType({name: value for name, value in headers.items() if name[:1] != ":"}),
        parsed.prompt,
        parsed.streaming,
        parsed.max_output_tokens,
        priority,
        fairness_id or DEFAULT_FAIRNESS_ID,
        parsed.cache_salt,
        size_bytes,
        incoming.received_at,
        None if parsed.payload is None else MappingProxyType(parsed.payload),
        headers.get(":method", "POST"),
    )
    return BuiltRequest(request, None if parsed.skip_response else parser, body, unread)


def _announced_size(headers: Mapping[str, str]) -> int:
    length = headers.get("content-length", "")
    return int(length) if length.isdecimal() and len(length) <= _MAX_LENGTH_DIGITS else 0


def within(subset: Iterable[str] | None, endpoints: Endpoints) -> Endpoints:
    """Return the endpoints in `subset`: `host:port`, or `host` for all its ports; None keeps all."""
    if subset is None:
        return endpoints
    allowed = frozenset(entry[1:-1] if entry.startswith("[") and entry.endswith("]") else entry for entry in subset)
    members = endpoints.members
    keep = np.fromiter((e.address in allowed or e.host in allowed for e in members), dtype=np.bool_, count=len(members))
    return endpoints.where(keep)
