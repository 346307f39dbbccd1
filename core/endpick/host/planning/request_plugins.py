"""Resolves parsers, saturation detector, candidate filters and endpoint discovery, with their defaults."""

from __future__ import annotations

from endpick.api import Parser, SaturationDetector
from endpick.api.discovery import EndpointDiscovery
from endpick.config import LoadedConfig, PluginRef
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Span
from endpick.host.catalog import PluginCatalog
from endpick.host.kinds import KINDS, Kind
from endpick.host.planning.builder import DraftInstance, PlanBuilder, look_up_kind
from endpick.host.planning.data import injects_defaults
from endpick.host.planning.instances import add_instance
from endpick.host.planning.pool import PoolSettings, add_pool_discovery, says_nothing_of_election

DEFAULT_PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
DEFAULT_DETECTOR = "utilization-detector"
DEFAULT_DISCOVERY = "file-discovery"
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


def plan_discovery(builder: PlanBuilder, installed: PluginCatalog, pool: PoolSettings) -> str | None:
    """The discovery in the document, or the one selected by `--endpoints` or by pool flags."""
    layer = builder.config.data_layer
    if layer is not None and layer.discovery is not None:
        if builder.endpoints_file is not None:
            builder.report(
                Code.W0204,
                f"--endpoints has no effect: the configuration names the discovery '{layer.discovery.plugin_ref}'",
                (*layer.discovery.path, "pluginRef"),
                help="remove the flag, or the discovery",
            )
        named = look_up_kind(layer.discovery, EndpointDiscovery, builder)
        if named is not None and says_nothing_of_election(pool, named):
            builder.report(
                Code.W0204,
                f"--ha-enable-leader-election has no effect: the configuration names the discovery '{named.name}' without it",
                (*layer.discovery.path, "pluginRef"),
                help=f"write `leaderElection: true` into the parameters of '{named.name}'",
            )
        return None if named is None else named.name
    if builder.loaded.is_damaged(("dataLayer",)):
        return None
    if builder.endpoints_file is None:
        return add_pool_discovery(pool, builder, installed)
    reason = f"--endpoints names {builder.endpoints_file}, and the document names no discovery"
    added = add_instance(builder, installed, DEFAULT_DISCOVERY, reason, {"path": str(builder.endpoints_file.absolute()), "watchFile": True})
    builder.announce(Code.N0501, added.name, f"added discovery '{added.name}': {reason}")
    return added.name


def missing_discovery(loaded: LoadedConfig) -> Diagnostic | None:
    """The error for a document without a discovery; None if it has one, or may have lost it to a mistake."""
    layer = None if loaded.config is None else loaded.config.data_layer
    damaged = loaded.config is None or loaded.is_damaged(("dataLayer",))
    if damaged or (layer is not None and layer.discovery is not None):
        return None
    path: DocumentPath = ("dataLayer",)
    return Diagnostic(
        Code.E0806,
        "the configuration names no endpoint discovery, so there are no endpoints to route to",
        span=loaded.source.key_span(path) if path in loaded.source else Span.start_of(loaded.path),
        help="name one at `dataLayer.discovery`, for example file-discovery, or give a file of endpoints with --endpoints",
        notes=("llm-d finds the endpoints of such a configuration in Kubernetes, by its flags --pool-name or --endpoint-selector",),
        path=path if path in loaded.source else (),
    )


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
