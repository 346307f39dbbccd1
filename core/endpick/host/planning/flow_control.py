"""Resolves parsers, candidate filters, the saturation detector and flow control, with their defaults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

from endpick.api import Parser, SaturationDetector
from endpick.api.flow_control import EvictionFilter, EvictionOrderingPolicy, FairnessPolicy, OrderingPolicy, UsageLimitPolicy
from endpick.config import FlowControl, PluginRef, PriorityBand
from endpick.config.shape import show_path
from endpick.diagnostics import Code, DocumentPath
from endpick.host.kinds import KINDS, Kind, OnFault, titles
from endpick.host.planning.builder import STRICT_BAND_SELECTION, DraftInstance, PlanBuilder, add_instance, look_up, look_up_kind
from endpick.host.planning.data import injects_defaults
from endpick.host.planning.plan import (
    DEFAULT_BAND_BYTES,
    DEFAULT_BAND_REQUESTS,
    DEFAULT_TTL_SECONDS,
    BandSettings,
    EvictionSettings,
    FlowControlSettings,
)

DEFAULT_PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
DEFAULT_DETECTOR = "utilization-detector"
DEFAULT_CANDIDATE_FILTER = "endpoint-health"


def plan_parsers(builder: PlanBuilder) -> tuple[str, ...]:
    """Return the parsers in the order of trial: the named ones, or llm-d's defaults if installed."""
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
    """Warns of a second parser of a type and of parsers after a fallback."""
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
    """Return the named saturation detector, or llm-d's default if it is installed."""
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
    """Add the filter of failing endpoints, unless the document defines one or forbids additions."""
    taken = any(DEFAULT_CANDIDATE_FILTER in (instance.name, instance.type) for instance in builder.instances.values())
    if taken or not injects_defaults(builder) or not builder.catalog.offers(DEFAULT_CANDIDATE_FILTER):
        return
    reason = "a model server that fails at once or is dead looks idle, and would attract requests"
    added = add_instance(builder, DEFAULT_CANDIDATE_FILTER, reason, "candidate filter")
    # The operator did not ask for it, so its faults must not refuse requests.
    builder.instances[added.name] = replace(added, on_fault=OnFault.SKIP)


def _named_or_added(reference: PluginRef, kind: Kind, builder: PlanBuilder) -> DraftInstance | None:
    name, path = reference.plugin_ref, (*reference.path, "pluginRef")
    if name not in builder.instances and builder.catalog.offers(name) and not builder.loaded.may_define(name):
        reason = f"it is named at {builder.source.value_span(path)} and not defined under plugins"
        add_instance(builder, name, reason, KINDS[kind].noun)
    return look_up_kind(name, path, kind, builder)


DEFAULT_FAIRNESS = "global-strict-fairness-policy"
DEFAULT_ORDERING = "fcfs-ordering-policy"
DEFAULT_USAGE_LIMIT = "static-usage-limit-policy"
DEFAULT_EVICTION_FILTER = "sheddable-eviction-filter"
DEFAULT_EVICTION_ORDERING = "priority-then-time-eviction-order-policy"
_DEFAULTS = {FairnessPolicy: DEFAULT_FAIRNESS, OrderingPolicy: DEFAULT_ORDERING, UsageLimitPolicy: DEFAULT_USAGE_LIMIT}


def plan_flow_control(builder: PlanBuilder) -> FlowControlSettings | None:
    """Return the queue settings; None if the feature gate is off or a policy is missing."""
    section = builder.config.flow_control or FlowControl()
    if not builder.config.gates["flowControl"]:
        builder.used.update(name for name in _named(section) if name is not None and name in builder.instances)
        return None
    _check_band_selection(section, builder)
    for template in (section.default_priority_band, section.default_negative_priority_band):
        _warn_of_priority(template, builder)
    general = _band(section.default_priority_band, builder)
    negative = general
    if section.default_negative_priority_band is not None:
        negative = _band(section.default_negative_priority_band, builder)
    listed = {band.priority: _band(band, builder) for band in section.priority_bands}
    usage_limit = _policy(section.usage_limit_policy_plugin_ref, ("flowControl",), UsageLimitPolicy, builder)
    eviction = _eviction(section, builder)
    bands = {priority: band for priority, band in listed.items() if band is not None}
    if general is None or negative is None or usage_limit is None or len(bands) < len(listed):
        return None
    ttl = section.default_request_ttl
    without_endpoints = section.no_endpoint_request_ttl
    waits = DEFAULT_TTL_SECONDS if ttl is None else ttl
    return FlowControlSettings(
        max_bytes=section.max_bytes or 0,
        max_requests=section.max_requests or 0,
        ttl_seconds=waits,
        no_endpoint_ttl_seconds=waits if without_endpoints is None else without_endpoints,
        bands=MappingProxyType(bands),
        template=general,
        negative_template=negative,
        usage_limit=usage_limit,
        eviction=eviction,
    )


def _check_band_selection(section: FlowControl, builder: PlanBuilder) -> None:
    """Only llm-d's default, from the highest priority to the lowest, is available."""
    name, path = section.band_selection_policy_plugin_ref, ("flowControl", "bandSelectionPolicyPluginRef")
    if name is None or name in builder.skipped or (name == STRICT_BAND_SELECTION and name not in builder.instances):
        return
    named = look_up(name, path, builder)
    if named is not None and named.loaded is not None:
        builder.report(
            Code.E0503,
            f"'{name}' is {titles(named.loaded.kinds)}; a band selection policy is needed here",
            path,
            help=f"remove the field, or name {STRICT_BAND_SELECTION}, the only one in this release",
            plugin=named.plugin,
        )


def _band(band: PriorityBand | None, builder: PlanBuilder) -> BandSettings | None:
    given = PriorityBand() if band is None else band
    path: DocumentPath = given.path or ("flowControl", "defaultPriorityBand")
    fairness = _policy(given.fairness_policy_ref, path, FairnessPolicy, builder)
    ordering = _policy(given.ordering_policy_ref, path, OrderingPolicy, builder)
    if fairness is None or ordering is None:
        return None
    return BandSettings(
        given.max_bytes or DEFAULT_BAND_BYTES,
        given.max_requests or DEFAULT_BAND_REQUESTS,
        fairness,
        ordering,
        given.default_request_ttl,
    )


def _policy(name: str | None, path: DocumentPath, kind: Kind, builder: PlanBuilder) -> str | None:
    default = _DEFAULTS[kind]
    field = KINDS[kind].named_at.rpartition(".")[2]
    if name is not None and (name != default or name in builder.instances or builder.loaded.may_define(name)):
        if name not in builder.instances and builder.catalog.offers(name) and not builder.loaded.may_define(name):
            message = f"'{name}' is a plugin type, and no instance of it is defined under plugins"
            builder.report(Code.E0501, message, (*path, field), help=f"add `- type: {name}` under `plugins:`")
            return None
        found = look_up_kind(name, (*path, field), kind, builder)
        return None if found is None else found.name
    where = builder.source.value_span((*path, field)) if name else ""
    why = f"it is named at {where} and not defined under plugins" if name else f"{show_path(path)} has no {field}"
    return _default(kind, default, why, builder)


def _default(kind: Kind, plugin_type: str, reason: str, builder: PlanBuilder) -> str | None:
    defined = builder.instances.get(plugin_type)
    if defined is not None and defined.may_be_a(kind):
        builder.used.add(plugin_type)
        return plugin_type
    if not builder.catalog.offers(plugin_type):
        return None
    added = add_instance(builder, plugin_type, reason, KINDS[kind].noun)
    return added.name if added.loaded is not None else None


def _eviction(section: FlowControl, builder: PlanBuilder) -> EvictionSettings | None:
    """The only instance of each eviction kind, or llm-d's default; None if off or missing."""
    if not section.enable_eviction:
        _report_idle((EvictionFilter, EvictionOrderingPolicy), "flowControl.enableEviction is off", builder)
        return None
    chosen = _only(EvictionFilter, DEFAULT_EVICTION_FILTER, builder)
    ordering = _only(EvictionOrderingPolicy, DEFAULT_EVICTION_ORDERING, builder)
    return None if chosen is None or ordering is None else EvictionSettings(chosen, ordering)


def _only(kind: Kind, default: str, builder: PlanBuilder) -> str | None:
    defined = builder.configured(kind)
    if not defined:
        reason = f"flowControl.enableEviction is on, and no {KINDS[kind].noun} is defined"
        return _default(kind, default, reason, builder) if builder.is_complete else None
    _report_idle((kind,), f"'{defined[0].name}' is the {KINDS[kind].noun}, and there is one", builder, first=1)
    return defined[0].name


def _report_idle(kinds: tuple[Kind, ...], why: str, builder: PlanBuilder, first: int = 0) -> None:
    for instance in (configured for kind in kinds for configured in builder.configured(kind)[first:]):
        builder.report_instance(instance, Code.W0502, f"'{instance.name}' has no effect: {why}", "remove it")


def _warn_of_priority(template: PriorityBand | None, builder: PlanBuilder) -> None:
    if template is not None and "priority" in template.model_fields_set:
        builder.report(
            Code.W0204,
            f"'priority' has no effect in '{template.path[-1]}', which is for priorities that are not listed",
            (*template.path, "priority"),
            at_key=True,
            help="remove it, or list the band under `priorityBands`",
        )


def _named(section: FlowControl) -> Iterator[str | None]:
    yield section.usage_limit_policy_plugin_ref
    for band in (*section.priority_bands, section.default_priority_band, section.default_negative_priority_band):
        if band is not None:
            yield band.fairness_policy_ref
            yield band.ordering_policy_ref
