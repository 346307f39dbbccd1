"""Builds the inference request that plugins see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Final
from uuid import uuid4

import numpy as np

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints
from endpick.api.request import InferenceRequest, ParsedRequest, Rejection, check_headers, shown
from endpick.api.request_control import MetadataValue, Parser
from endpick.data.model_rules import ModelRules, choose_model
from endpick.host.boundary import Fault, Step, bind
from endpick.host.instance import Instance
from endpick.host.telemetry import Telemetry
from endpick.requests.compressed_body import refuse_compressed
from endpick.requests.model import (
    CODE_OF,
    LONG_NAME,
    MAX_NAME_CHARACTERS,
    NO_MODEL,
    IncomingRequest,
    Refused,
    RequestRefused,
    is_upgrade,
    refused,
)

LARGE_BODY_BYTES: Final = 256 * 1024


class PatientStep(Step):
    """Has no time budget: the time depends on the body."""

    __slots__ = ()

    def held(self, seconds: float) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class CompiledParser:
    """`usage` is None if it reads none."""

    claims: tuple[str, ...]
    reads_body: bool
    parse: Step
    parse_large: Step
    rewrite_model: Step
    rewrite_priority: Step
    usage: Step | None
    usage_mark: bytes


@dataclass(frozen=True, slots=True)
class Parsers:
    """Longest suffix first, exact usual paths, and a fallback."""

    by_suffix: tuple[tuple[str, CompiledParser], ...]
    fallback: CompiledParser | None
    usual: Mapping[str, CompiledParser] = field(default_factory=dict)

    @property
    def each(self) -> tuple[CompiledParser, ...]:
        """All parsers."""
        named = {id(parser): parser for _, parser in self.by_suffix}
        return (*named.values(), *(() if self.fallback is None else (self.fallback,)))

    def for_path(self, path: str) -> CompiledParser | None:
        """The parser for a path without query."""
        for suffix, parser in self.by_suffix:
            if path.endswith(suffix):
                return parser
        return self.fallback


def compile_parsers(instances: Sequence[Instance], telemetry: Telemetry) -> Parsers:
    """As in llm-d, parsers after a fallback are unused."""
    claims: dict[str, CompiledParser] = {}
    fallback: CompiledParser | None = None
    for instance in instances:
        parser = _compile(instance, telemetry)
        if not parser.claims:
            fallback = parser
            break
        for suffix in parser.claims:
            claims.setdefault(suffix if suffix.startswith(".") else "/" + suffix.lstrip("/"), parser)
    usual = {f"/v1{suffix}": parser for suffix, parser in claims.items()}
    return Parsers(tuple(sorted(claims.items(), key=lambda claim: -len(claim[0]))), fallback, usual)


def _compile(instance: Instance, telemetry: Telemetry) -> CompiledParser:
    parse = bind(instance, Parser, "parse", telemetry)
    plugin = instance.plugin
    assert isinstance(plugin, Parser)
    parse_large = PatientStep(plugin.parse, instance, parse.extension_point, telemetry)
    rewrite_model = PatientStep(plugin.rewrite_model, instance, parse.extension_point, telemetry)
    rewrite_priority = PatientStep(plugin.rewrite_priority, instance, parse.extension_point, telemetry)
    usage = bind(instance, Parser, "usage", telemetry) if plugin.reads_usage else None
    return CompiledParser(plugin.claims, plugin.reads_body, parse, parse_large, rewrite_model, rewrite_priority, usage, plugin.usage_mark)


_MAX_LENGTH_DIGITS: Final = 18
REQUEST_ID: Final = "x-request-id"
FAIRNESS_ID: Final = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
OBJECTIVE: Final = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
MODEL_REWRITE: Final = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
CONTROLS: Final = frozenset((*FAIRNESS_ID, *OBJECTIVE, *MODEL_REWRITE))
PATH: Final = (":path", "x-original-path", "x-forwarded-path")
DEFAULT_PATH: Final = "/v1/completions"
DEFAULT_FAIRNESS_ID: Final = "default-flow"
OWNED: Final = CONTROLS | {
    "x-gateway-destination-endpoint",
    "x-gateway-destination-endpoint-served",
    "x-gateway-destination-endpoint-subset",
    "content-length",
}
UNREAD: Final = ParsedRequest(needs_model=False)  # the gateway kept the body, or a skipped parser failed


def first_of(headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """The first non-empty header."""
    for name in names:
        value = headers.get(name)
        if value:
            return value
    return None


def new_id() -> str:
    """A request id."""
    return str(uuid4())


class HeadersForUpstream:
    """The `UpstreamHeaders` of one request."""

    __slots__ = ("_metadata", "_removed", "_values")

    def __init__(self, values: Mapping[str, str], removed: tuple[str, ...] = ()) -> None:
        self._removed = removed
        self._values = {name.lower(): value for name, value in values.items() if name.lower() not in OWNED} if values else {}
        self._metadata: dict[str, dict[str, MetadataValue]] = {}

    def set_metadata(self, namespace: object, key: object, value: object) -> None:
        """See `UpstreamHeaders`."""
        if not isinstance(namespace, str) or not isinstance(key, str) or not isinstance(value, str | float | int):
            raise TypeError(f"metadata {shown(namespace)}, {shown(key)} is set to {shown(value)}; it takes strings, numbers and booleans")
        self._metadata.setdefault(namespace, {})[key] = value

    def set(self, name: str, value: str) -> None:
        """See `UpstreamHeaders`."""
        check_headers(((name, value),))
        self._values[_allowed(name)] = value

    def remove(self, name: str) -> None:
        """See `UpstreamHeaders`."""
        check_headers(((name, ""),))
        lowered = _allowed(name)
        self._values.pop(lowered, None)
        self._removed = (*self._removed, lowered)


def _allowed(name: str) -> str:
    lowered = name.lower()
    if lowered in OWNED or lowered.startswith(":"):
        raise ValueError(f"header '{lowered}' belongs to endpick and cannot be set by a plugin")
    return lowered


@dataclass(slots=True)
class BuiltRequest:
    """A parsed request."""

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
    """As in llm-d, rules override headers, and configured objectives discovered ones (unknown: 0). Raises RequestRefused."""
    headers, came = incoming.headers, incoming.body
    size_bytes = 0 if came is None else len(came)
    if incoming.unread:
        size_bytes = _announced_size(headers)
        came = None if is_upgrade(headers) else b""
    path = _path_of(headers)
    rewrite = objective = fairness_id = None
    if not CONTROLS.isdisjoint(headers):
        rewrite, objective, fairness_id = first_of(headers, MODEL_REWRITE), first_of(headers, OBJECTIVE), first_of(headers, FAIRNESS_ID)

    parser, parsed, unread = None, UNREAD, ""
    if came is not None:
        parser = parsers.usual.get(path) or parsers.for_path(path)
        if parser is None:
            raise RequestRefused(Refused(400, CODE_OF[400], f"no parser is configured for path '{path}'"))
        if "content-encoding" in headers and parser.reads_body:
            refuse_compressed(headers["content-encoding"])
        answer = _parsed(parser, path, headers, came, access)
        if isinstance(answer, Fault):
            _refuse_unreadable(answer, changes_model=bool(rewrite or rules.rewrites))
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
    if parser is not None and came is not None and target != parsed.model:
        body = _rewritten(parser.rewrite_model, came, parsed, target, access)
    priority = objectives.get(objective, rules.objectives.get(objective, 0)) if objective else 0
    if propagates_priority and parser is not None and came is not None and not incoming.unread:
        body = _rewritten(parser.rewrite_priority, body or came, parsed, priority, access) or body
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


def wants_body(headers: Mapping[str, str], parsers: Parsers) -> bool:
    """False if the body may stay open, or no parser reads it."""
    if is_upgrade(headers):
        return False
    path = _path_of(headers)
    parser = parsers.usual.get(path) or parsers.for_path(path)
    return parser is not None and parser.reads_body


def _path_of(headers: Mapping[str, str]) -> str:
    return (headers.get(":path") or first_of(headers, PATH) or DEFAULT_PATH).partition("?")[0]


def _announced_size(headers: Mapping[str, str]) -> int:
    length = headers.get("content-length", "")
    return int(length) if length.isdecimal() and len(length) <= _MAX_LENGTH_DIGITS else 0


def _parsed(parser: CompiledParser, path: str, headers: Mapping[str, str], body: bytes, access: Access) -> ParsedRequest | Fault:
    step = parser.parse if len(body) <= LARGE_BODY_BYTES else parser.parse_large
    answer = step.run(access, path, MappingProxyType(headers), body)
    if isinstance(answer, ParsedRequest):
        return answer
    if isinstance(answer, Rejection):
        raise RequestRefused(refused(answer))
    return answer if isinstance(answer, Fault) else step.fault(f"answered {type(answer).__name__}, not a ParsedRequest or Rejection")


def _refuse_unreadable(fault: Fault, *, changes_model: bool) -> None:
    if fault.refuses:
        raise RequestRefused(refused(fault))
    if changes_model:
        problem = f"plugin '{fault.instance}' failed, and the model cannot be changed in a body that was not read"
        raise RequestRefused(Refused(500, CODE_OF[500], problem))


def _rewritten(step: Step, body: bytes, parsed: ParsedRequest, value: str | int, access: Access) -> bytes | None:
    answer = step.run(access, body, parsed, value)
    if isinstance(answer, bytes):
        return None if answer == body else answer
    if not isinstance(answer, Fault):
        answer = step.fault(f"answered {type(answer).__name__}, not the bytes of a body")
    raise RequestRefused(refused(answer))


def within(subset: Iterable[str] | None, endpoints: Endpoints) -> Endpoints:
    """Entries are `host:port`, or `host` for all ports; None allows all."""
    if subset is None:
        return endpoints
    allowed = frozenset(entry[1:-1] if entry.startswith("[") and entry.endswith("]") else entry for entry in subset)
    members = endpoints.members
    keep = np.fromiter((e.address in allowed or e.host in allowed for e in members), dtype=np.bool_, count=len(members))
    return endpoints.where(keep)
