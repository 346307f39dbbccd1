"""Selects the parser of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from endpick.api.request_control import Parser
from endpick.host.boundary import Step, bind
from endpick.host.instance import Instance
from endpick.host.telemetry import Telemetry

LARGE_BODY_BYTES: Final = 256 * 1024


class PatientStep(Step):
    """A step without a time budget: the time depends on the client's body."""

    __slots__ = ()

    def held(self, seconds: float) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class CompiledParser:
    """A parser's methods; `usage` is None when it reads none."""

    claims: tuple[str, ...]
    parse: Step
    parse_large: Step
    rewrite_model: Step
    usage: Step | None
    usage_mark: bytes


@dataclass(frozen=True, slots=True)
class Parsers:
    """The parsers of a plan: longest suffix first, exact usual paths, and a fallback."""

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
    """Bind the parsers; as in llm-d, those after a fallback are unused."""
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
    usage = bind(instance, Parser, "usage", telemetry) if plugin.reads_usage else None
    return CompiledParser(plugin.claims, parse, parse_large, rewrite_model, usage, plugin.usage_mark)
