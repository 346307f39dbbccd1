"""Chooses the parser of a request, and has it read and rewrite the body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from endpick.api.access import Access
from endpick.api.request import ParsedRequest, Rejection, Usage
from endpick.api.request_control import Parser
from endpick.host.boundary import Fault, Step, bind
from endpick.host.instance import Instance
from endpick.host.methods import PARSE, PARSE_LARGE, REWRITE_MODEL, REWRITE_PRIORITY, USAGE
from endpick.host.telemetry import Telemetry
from endpick.requests.headers import first_of
from endpick.requests.model import CODE_OF, Refused, RequestRefused, is_upgrade, refused

PATH: Final = (":path", "x-original-path", "x-forwarded-path")
DEFAULT_PATH: Final = "/v1/completions"
LARGE_BODY_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class CompiledParser:
    """A parser's methods, bound to the boundary. `usage` is None if it reads no token usage."""

    claims: tuple[str, ...]
    reads_body: bool
    parse: Step[ParsedRequest | Rejection]
    parse_large: Step[ParsedRequest | Rejection]
    rewrite_model: Step[bytes]
    rewrite_priority: Step[bytes]
    usage: Step[Usage | None] | None
    usage_mark: bytes


@dataclass(frozen=True, slots=True)
class Parsers:
    """The configured parsers: by path suffix, longest first, by exact usual path, and a fallback."""

    by_suffix: tuple[tuple[str, CompiledParser], ...]
    fallback: CompiledParser | None
    usual: Mapping[str, CompiledParser] = field(default_factory=dict)

    @property
    def all(self) -> tuple[CompiledParser, ...]:
        """Every parser once, with the fallback last."""
        named = {id(parser): parser for _, parser in self.by_suffix}
        return (*named.values(), *(() if self.fallback is None else (self.fallback,)))

    def for_path(self, path: str) -> CompiledParser | None:
        """Return the parser for a path without query, or None."""
        for suffix, parser in self.by_suffix:
            if path.endswith(suffix):
                return parser
        return self.fallback


def compile_parsers(instances: Sequence[Instance], telemetry: Telemetry) -> Parsers:
    """Bind the parsers in order. As in llm-d, those after a fallback are unused."""
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
    plugin = instance.plugin
    assert isinstance(plugin, Parser)
    return CompiledParser(
        plugin.claims,
        plugin.reads_body,
        bind(instance, PARSE, telemetry),
        bind(instance, PARSE_LARGE, telemetry),
        bind(instance, REWRITE_MODEL, telemetry),
        bind(instance, REWRITE_PRIORITY, telemetry),
        bind(instance, USAGE, telemetry) if plugin.reads_usage else None,
        plugin.usage_mark,
    )


def wants_body(headers: Mapping[str, str], parsers: Parsers) -> bool:
    """Return False for upgrades, whose body may stay open, and if no parser reads the body."""
    if is_upgrade(headers):
        return False
    path = path_of(headers)
    parser = parsers.usual.get(path) or parsers.for_path(path)
    return parser is not None and parser.reads_body


def path_of(headers: Mapping[str, str]) -> str:
    """Return the path without its query, as reported by the gateway or an earlier proxy."""
    return (headers.get(":path") or first_of(headers, PATH) or DEFAULT_PATH).partition("?")[0]


def parsed_by(parser: CompiledParser, path: str, headers: Mapping[str, str], body: bytes, access: Access) -> ParsedRequest | Fault:
    """Return the parsed body, or the parser's fault. Raises RequestRefused for a rejection."""
    step = parser.parse if len(body) <= LARGE_BODY_BYTES else parser.parse_large
    answer = step.run(access, path, MappingProxyType(headers), body)
    if isinstance(answer, Rejection):
        raise RequestRefused(refused(answer))
    return answer


def refuse_unreadable(fault: Fault, *, changes_model: bool) -> None:
    """Raise RequestRefused after a parser's fault, unless the request can proceed without its body."""
    if fault.refuses:
        raise RequestRefused(refused(fault))
    if changes_model:
        problem = f"plugin '{fault.instance}' failed, and the model cannot be changed in a body that was not read"
        raise RequestRefused(Refused(500, CODE_OF[500], problem))


def rewritten(step: Step[bytes], body: bytes, parsed: ParsedRequest, value: str | int, access: Access) -> bytes | None:
    """Return the body with the new value, or None if unchanged. Raises RequestRefused after a fault."""
    answer = step.run(access, body, parsed, value)
    if isinstance(answer, Fault):
        raise RequestRefused(refused(answer))
    return None if answer == body else answer
