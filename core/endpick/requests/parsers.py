"""Selects the parser that reads a request body by the request path."""

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
    """A step whose circuit does not open when calls are slow: how long they take depends on the size of the client's body."""

    __slots__ = ()

    def held(self, seconds: float) -> None:
        """Do not report a slow call."""


@dataclass(frozen=True, slots=True)
class CompiledParser:
    """The bound methods of a parser.

    Attributes:
        claims: Path suffixes; none for a fallback.
        parse: Reads a request body of at most `LARGE_BODY_BYTES`.
        parse_large: Reads a larger one.
        rewrite_model: Changes the model name in a body.
        usage: Reads token counts from a response; None when the parser reads none, so responses are not inspected.
        usage_mark: See `Parser.usage_mark`.
    """

    claims: tuple[str, ...]
    parse: Step
    parse_large: Step
    rewrite_model: Step
    usage: Step | None
    usage_mark: bytes


@dataclass(frozen=True, slots=True)
class Parsers:
    """The parsers of a plan.

    Attributes:
        by_suffix: Longest suffix first; of equal suffixes the first configured parser wins.
        fallback: Takes every other path, if configured.
        usual: Exact paths `/v1/...` of nearly all requests, so that they need no search.
    """

    by_suffix: tuple[tuple[str, CompiledParser], ...]
    fallback: CompiledParser | None
    usual: Mapping[str, CompiledParser] = field(default_factory=dict)

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
    """Bind and order the parsers. As in llm-d, parsers after a fallback are never used."""
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
