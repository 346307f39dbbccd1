"""Which parser reads a body, and what becomes of a request whose parser fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from endpick.api.request import ParsedRequest
from endpick.api.request_control import Parser
from endpick.data.model_rules import RewriteTable
from endpick.host.boundary import Fault, Step, bind
from endpick.host.instance import Instance
from endpick.host.telemetry import Telemetry
from endpick.requests.model import CODE_OF, Refused, refused

UNSEEN: Final = ParsedRequest(needs_model=False)
"""What is known of a body that the gateway keeps to itself, or that its parser, which may be skipped, failed to read."""


@dataclass(frozen=True, slots=True)
class CompiledParser:
    """A parser's methods; `usage` is None when it reads none, so that response bodies need not be looked at."""

    claims: tuple[str, ...]
    parse: Step
    rewrite_model: Step
    usage: Step | None
    usage_mark: bytes
    """See `Parser.usage_mark`."""


@dataclass(frozen=True, slots=True)
class Parsers:
    """All parsers of a plan."""

    by_suffix: tuple[tuple[str, CompiledParser], ...]
    """Longest suffix first; of equal ones the first configured parser wins."""
    fallback: CompiledParser | None
    usual: Mapping[str, CompiledParser] = field(default_factory=dict)
    """What `for_path` finds for the paths that nearly all requests have."""

    @property
    def each(self) -> tuple[CompiledParser, ...]:
        """Every parser once, the fallback last."""
        named = {id(parser): parser for _, parser in self.by_suffix}
        return (*named.values(), *(() if self.fallback is None else (self.fallback,)))

    def for_path(self, path: str) -> CompiledParser | None:
        """The parser for a path without query; None when no parser claims it and there is no fallback."""
        for suffix, parser in self.by_suffix:
            if path.endswith(suffix):
                return parser
        return self.fallback


def compile_parsers(instances: Sequence[Instance], telemetry: Telemetry) -> Parsers:
    """Order the parsers. As in llm-d, parsers behind a fallback are never asked."""
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
    mark = plugin.usage_mark if plugin.reads_usage else None
    usage = None if mark is None else bind(instance, Parser, "usage", telemetry)
    return CompiledParser(plugin.claims, parse, bind(instance, Parser, "rewrite_model", telemetry), usage, mark or b"")


def no_parser(path: str) -> Refused:
    """The answer to a body that no parser reads."""
    return Refused(400, CODE_OF[400], f"no parser is configured for path '{path}'")


def unread_refusal(fault: Fault, rewrite: str | None, rewrites: RewriteTable) -> Refused | None:
    """Why a request may not go on with a body that its parser failed to read; None where it may.

    Args:
        fault: Of the parser.
        rewrite: The model that the client's headers ask for; None for no other than the one in the body.
        rewrites: Any of them may be for the model in the body, which is not known.
    """
    if fault.refuses:
        return refused(fault)
    if rewrite or rewrites:
        return Refused(500, CODE_OF[500], f"plugin '{fault.instance}' failed, and no model can be exchanged in a body that was not read")
    return None
