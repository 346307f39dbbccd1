"""Resolves parsers, saturation detector, candidate filters and endpoint discovery, with their defaults."""

from __future__ import annotations

from endpick.api import Parser, SaturationDetector
from endpick.config import PluginRef
from endpick.diagnostics import Code
from endpick.host.kinds import KINDS, Kind
from endpick.host.planning.builder import DraftInstance, PlanBuilder, add_instance, look_up_kind
from endpick.host.planning.data import injects_defaults

DEFAULT_PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
DEFAULT_DETECTOR = "utilization-detector"
DEFAULT_CANDIDATE_FILTER = "silent-endpoint-screener"


def plan_parsers(builder: PlanBuilder) -> tuple[str, ...]:
    """Parsers in the order in which they are tried: the named ones, or llm-d's defaults as far as they are installed."""
    if builder.config.parser_refs:
        return _named_parsers(builder)
    if builder.loaded.is_damaged(("requestHandler",)) or builder.loaded.is_damaged(("parser",)):
        return ()
    chosen = []
    for parser in DEFAULT_PARSERS:
        defined = builder.instances.get(parser)
        if defined is not None and defined.may_be_a(Parser):
            builder.used.add(parser)
            chosen.append(parser)
        elif defined is None and builder.catalog.offers(parser):
            reason = "requestHandler.parsers names no parser"
            chosen.append(add_instance(builder, parser, reason, "parser").name)
    return tuple(chosen)


def _named_parsers(builder: PlanBuilder) -> tuple[str, ...]:
    """The named parsers; warns of a second one of a type and of parsers after a fallback, which are never tried."""
    kept: dict[str, str] = {}
    fallback = ""
    for reference in builder.config.parser_refs:
        instance = _named_or_added(reference, Parser, builder)
        if instance is None:
            continue
        if fallback or instance.type in kept:
            why = f"'{fallback}' takes every path" if fallback else f"'{kept[instance.type]}' is of the same type and takes the same paths"
            message = f"parser '{instance.name}' is never asked: {why}"
            builder.report(Code.W0502, message, (*reference.path, "pluginRef"), help="name it further up, or remove it")
            continue
        kept[instance.type] = instance.name
        parser = instance.loaded.plugin if instance.loaded is not None else None
        if isinstance(parser, type) and issubclass(parser, Parser) and not parser.claims:
            fallback = instance.name
    return tuple(kept.values())


def plan_detector(builder: PlanBuilder) -> str | None:
    """The named saturation detector, or llm-d's default if it is installed."""
    reference = builder.config.saturation_detector_ref
    if reference is not None:
        named = _named_or_added(reference, SaturationDetector, builder)
        return None if named is None else named.name
    defined = builder.instances.get(DEFAULT_DETECTOR)
    if defined is not None:
        builder.used.add(DEFAULT_DETECTOR)
        return DEFAULT_DETECTOR if defined.may_be_a(SaturationDetector) else None
    if not builder.catalog.offers(DEFAULT_DETECTOR):
        return None
    return add_instance(builder, DEFAULT_DETECTOR, "no saturation detector is named", "saturation detector").name


def plan_candidate_filters(builder: PlanBuilder) -> None:
    """Add the filter that excludes silent endpoints, unless the document defines one or forbids additions."""
    taken = any(DEFAULT_CANDIDATE_FILTER in (instance.name, instance.type) for instance in builder.instances.values())
    if taken or not injects_defaults(builder) or not builder.catalog.offers(DEFAULT_CANDIDATE_FILTER):
        return
    reason = "a model server that dies keeps its last values, which would go on attracting requests"
    add_instance(builder, DEFAULT_CANDIDATE_FILTER, reason, "candidate filter")


def _named_or_added(reference: PluginRef, kind: Kind, builder: PlanBuilder) -> DraftInstance | None:
    """The named instance; if there is none but a type has that name, a new instance of it, as in llm-d."""
    name, path = reference.plugin_ref, (*reference.path, "pluginRef")
    if name not in builder.instances and builder.catalog.offers(name) and not builder.loaded.may_define(name):
        reason = f"it is named at {builder.source.value_span(path)} and not defined under plugins"
        add_instance(builder, name, reason, KINDS[kind].noun)
    return look_up_kind(name, path, kind, builder)
