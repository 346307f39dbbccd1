"""Which parser reads a request: the one that claims the longest suffix of its path, else the fallback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from endpick.api.requests import ParsedRequest, Parser
from endpick.observability.instruments import Instruments
from endpick.plugins.instance import Instance
from endpick.requests.headers import PATH, first_of
from endpick.scheduling.step import ExtensionPoint, Step, bind, wrong_kind

ParseStep: TypeAlias = Step[[str, Mapping[str, str], bytes], object]
RewriteStep: TypeAlias = Step[[bytes, ParsedRequest, str], object]
UsageStep: TypeAlias = Step[[bytes, bool], object]

DEFAULT_PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class CompiledParser:
    """A parser's methods; `usage` is None when it reads none, so that response bodies need not be looked at."""

    claims: tuple[str, ...]
    parse: ParseStep
    rewrite_model: RewriteStep
    usage: UsageStep | None


@dataclass(frozen=True, slots=True)
class Parsers:
    """All parsers of a plan."""

    by_suffix: tuple[tuple[str, CompiledParser], ...]
    """Longest suffix first; of equal ones the first configured parser wins."""
    fallback: CompiledParser | None

    @property
    def each(self) -> tuple[CompiledParser, ...]:
        """Every parser once, the fallback last."""
        named = {id(parser): parser for _, parser in self.by_suffix}
        return (*named.values(), *(() if self.fallback is None else (self.fallback,)))

    def for_path(self, path: str) -> CompiledParser | None:
        """The parser for a path without query; None when nobody claims it and there is no fallback."""
        for suffix, parser in self.by_suffix:
            if path.endswith(suffix):
                return parser
        return self.fallback


def compile_parsers(instances: Sequence[Instance], instruments: Instruments) -> Parsers:
    """Order the parsers. As in llm-d, whatever stands behind a fallback is never asked."""
    claims: dict[str, CompiledParser] = {}
    fallback: CompiledParser | None = None
    for instance in instances:
        parser = _compile(instance, instruments)
        if not parser.claims:
            fallback = parser
            break
        for suffix in parser.claims:
            claims.setdefault("/" + suffix.lstrip("/"), parser)
    return Parsers(tuple(sorted(claims.items(), key=lambda claim: -len(claim[0]))), fallback)


def path_of(headers: Mapping[str, str]) -> str:
    """The path without its query."""
    return (first_of(headers, PATH) or DEFAULT_PATH).partition("?")[0]


def _compile(instance: Instance, instruments: Instruments) -> CompiledParser:
    plugin = instance.plugin
    if not isinstance(plugin, Parser):
        raise wrong_kind(instance, "parser")
    return CompiledParser(
        plugin.claims,
        bind(plugin.parse, instance, ExtensionPoint.REQUEST_PARSING, instruments),
        bind(plugin.rewrite_model, instance, ExtensionPoint.REQUEST_PARSING, instruments),
        bind(plugin.usage, instance, ExtensionPoint.RESPONSE_PARSING, instruments) if plugin.reads_usage else None,
    )
