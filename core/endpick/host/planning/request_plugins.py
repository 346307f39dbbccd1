"""Resolves parsers, saturation detector, candidate filters and endpoint discovery, with their defaults."""

from __future__ import annotations

from endpick.api import Parser, SaturationDetector
from endpick.config import PluginRef
from endpick.diagnostics import Code
from endpick.host.kinds import KINDS, Kind
from endpick.host.loader import PluginCatalog
from endpick.host.planning.builder import DraftInstance, PlanBuilder, add_instance, look_up_kind
from endpick.host.planning.data import injects_defaults

DEFAULT_PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
DEFAULT_DETECTOR = "utilization-detector"
DEFAULT_CANDIDATE_FILTER = "silent-endpoint-screener"


def plan_parsers(builder: PlanBuilder, installed: PluginCatalog) -> tuple[str, ...]:
    """Parsers in the order in which they are tried: the named ones, or llm-d's defaults as far as they are installed."""
    if builder.config.parser_refs:
        return _named_parsers(builder, installed)
    if builder.loaded.is_damaged(("requestHandler",)) or builder.loaded.is_damaged(("parser",)):
        return ()
    chosen = []
    for parser in DEFAULT_PARSERS:
        defined = builder.instances.get(parser)
        if defined is not None and defined.may_be_a(Parser):
            builder.used.add(parser)
            chosen.append(parser)
        elif defined is None and installed.offers(parser):
            reason = "requestHandler.parsers names no parser"
            builder.announce(Code.N0501, parser, f"added parser '{parser}': {reason}")
            chosen.append(add_instance(builder, installed, parser, reason).name)
    return tuple(chosen)


def _named_parsers(builder: PlanBuilder, installed: PluginCatalog) -> tuple[str, ...]:
    """The named parsers; warns of a second one of a type and of parsers after a fallback, which are never tried."""
    kept: dict[str, str] = {}
    fallback = ""
    for reference in builder.config.parser_refs:
        instance = _named_or_added(reference, Parser, builder, installed)
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


def plan_detector(builder: PlanBuilder, installed: PluginCatalog) -> str | None:
    """The named saturation detector, or llm-d's default if it is installed."""
    reference = builder.config.saturation_detector_ref
    if reference is not None:
        named = _named_or_added(reference, SaturationDetector, builder, installed)
        return None if named is None else named.name
    defined = builder.instances.get(DEFAULT_DETECTOR)
    if defined is not None:
        builder.used.add(DEFAULT_DETECTOR)
        return DEFAULT_DETECTOR if defined.may_be_a(SaturationDetector) else None
    if not installed.offers(DEFAULT_DETECTOR):
        return None
    reason = "no saturation detector is named"
    builder.announce(Code.N0501, DEFAULT_DETECTOR, f"added saturation detector '{DEFAULT_DETECTOR}': {reason}")
    return add_instance(builder, installed, DEFAULT_DETECTOR, reason).name


def plan_candidate_filters(builder: PlanBuilder, installed: PluginCatalog) -> None:
    """Add the filter that excludes silent endpoints, unless the document defines one or forbids additions."""
    taken = any(DEFAULT_CANDIDATE_FILTER in (instance.name, instance.type) for instance in builder.instances.values())
    if taken or not injects_defaults(builder) or not installed.offers(DEFAULT_CANDIDATE_FILTER):
        return
    reason = "a model server that dies keeps its last values, which would go on attracting requests"
    builder.announce(Code.N0501, DEFAULT_CANDIDATE_FILTER, f"added candidate filter '{DEFAULT_CANDIDATE_FILTER}': {reason}")
    add_instance(builder, installed, DEFAULT_CANDIDATE_FILTER, reason)


def _named_or_added(reference: PluginRef, kind: Kind, builder: PlanBuilder, installed: PluginCatalog) -> DraftInstance | None:
    """The named instance; if there is none but a type has that name, a new instance of it, as in llm-d."""
    name = reference.plugin_ref
    if name in builder.instances or not installed.offers(name) or builder.loaded.may_define(name):
        return look_up_kind(reference, kind, builder)
    path = (*reference.path, "pluginRef")
    reason = f"it is named at {builder.source.value_span(path)} and not defined under plugins"
    builder.announce(Code.N0501, name, f"added {KINDS[kind].noun} '{name}': {reason}")
    add_instance(builder, installed, name, reason)
    return look_up_kind(reference, kind, builder)
