"""Fourth step of a plan: who reads requests, who says that the pool is full, who finds endpoints."""

from __future__ import annotations

from endpick.api import EndpointDiscovery, Parser, SaturationDetector
from endpick.config import PluginRef
from endpick.diagnostics import Code
from endpick.planning.builder import DraftInstance, PlanBuilder, look_up_kind
from endpick.planning.data import injects_defaults
from endpick.planning.instances import add_instance
from endpick.planning.pool import PoolSettings, add_pool_discovery
from endpick.plugins.catalog import PluginCatalog
from endpick.plugins.kinds import KINDS, Kind

DEFAULT_PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
DEFAULT_DETECTOR = "utilization-detector"
DEFAULT_CANDIDATE_FILTER = "silent-endpoint-screener"


def plan_parsers(builder: PlanBuilder, installed: PluginCatalog) -> tuple[str, ...]:
    """Parsers in the order in which they are asked: those named, or else llm-d's, as far as they are installed."""
    if builder.config.parser_refs:
        named = [_named_or_added(reference, Parser, builder, installed) for reference in builder.config.parser_refs]
        return tuple(dict.fromkeys(instance.name for instance in named if instance is not None))
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


def plan_detector(builder: PlanBuilder, installed: PluginCatalog) -> str | None:
    """The saturation detector: the one named, or else llm-d's if it is installed."""
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
    """Add the candidate filter that leaves out endpoints which fell silent, unless the document defines one or wants no additions."""
    taken = any(DEFAULT_CANDIDATE_FILTER in (instance.name, instance.type) for instance in builder.instances.values())
    if taken or not injects_defaults(builder) or not installed.offers(DEFAULT_CANDIDATE_FILTER):
        return
    reason = "a model server that dies keeps its last values, which would go on attracting requests"
    builder.announce(Code.N0501, DEFAULT_CANDIDATE_FILTER, f"added candidate filter '{DEFAULT_CANDIDATE_FILTER}': {reason}")
    add_instance(builder, installed, DEFAULT_CANDIDATE_FILTER, reason)


def plan_discovery(builder: PlanBuilder, installed: PluginCatalog, pool: PoolSettings) -> str | None:
    """What finds endpoints: what the document names, or else what follows from flags."""
    layer = builder.config.data_layer
    if layer is None or layer.discovery is None:
        damaged = builder.loaded.is_damaged(("dataLayer",))
        return None if damaged else add_pool_discovery(pool, builder, installed)
    named = look_up_kind(layer.discovery, EndpointDiscovery, builder)
    return None if named is None else named.name


def _named_or_added(reference: PluginRef, kind: Kind, builder: PlanBuilder, installed: PluginCatalog) -> DraftInstance | None:
    """The instance a reference names; where none is defined, but an installed type has that name, a new one of it, as in llm-d."""
    name = reference.plugin_ref
    if name in builder.instances or not installed.offers(name) or builder.loaded.may_define(name):
        return look_up_kind(reference, kind, builder)
    path = (*reference.path, "pluginRef")
    reason = f"it is named at {builder.source.value_span(path)} and not defined under plugins"
    builder.announce(Code.N0501, name, f"added {KINDS[kind].noun} '{name}': {reason}")
    add_instance(builder, installed, name, reason)
    return look_up_kind(reference, kind, builder)
