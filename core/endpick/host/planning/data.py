"""Binds sources to collectors; adds default sources, collectors and producers."""

from __future__ import annotations

from dataclasses import replace

from endpick.api import DataCollector, DataProducer, DataSource, EndpointEvent, Plugin, PreRequest, ResponseObserver
from endpick.api.data import AnyKey
from endpick.config import DataSourceSpec, PluginRef
from endpick.diagnostics import Code, DocumentPath, Label
from endpick.host.kinds import Kind, payload_of
from endpick.host.planning.builder import DraftInstance, PlanBuilder, add_instance, look_up_kind
from endpick.host.planning.subscriptions import Participant, SubscriptionGraph, missing_keys, resolve_subscriptions, rivals

METRICS_SOURCE = "metrics-data-source"
METRICS_COLLECTOR = "core-metrics-extractor"

SourceBindings = dict[str, list[str]]  # collectors by source, in document order


def plan_sources(builder: PlanBuilder) -> SourceBindings:
    """Return the collectors of each source: the document's bindings and the defaults."""
    bindings: SourceBindings = {}
    for spec in () if builder.config.data_layer is None else builder.config.data_layer.sources:
        _feed(spec, bindings, builder)
    if injects_defaults(builder) and not builder.loaded.is_damaged(("dataLayer",)):
        _add_metrics(bindings, builder)
    for collector in builder.of_kind(DataCollector):
        _feed_by_default_source(collector, bindings, builder)
    return bindings


def injects_defaults(builder: PlanBuilder) -> bool:
    """Return False if the document sets `dataLayer.injectDefaults: false`."""
    return builder.config.data_layer is None or builder.config.data_layer.inject_defaults


def _feed_by_default_source(collector: DraftInstance, bindings: SourceBindings, builder: PlanBuilder) -> None:
    if collector.loaded is None or any(collector.name in collectors for collectors in bindings.values()):
        return
    if collector.is_a(DataSource):
        _bind(collector, collector, bindings, builder)
        return
    plugin = collector.loaded.plugin
    wanted = plugin.default_source if issubclass(plugin, DataCollector) else None
    if wanted is None or not injects_defaults(builder):
        return
    reason = f"no source feeds collector '{collector.name}'"
    source = next((instance for instance in builder.of_kind(DataSource) if instance.loaded and instance.loaded.type == wanted), None)
    if source is None:
        source = add_instance(builder, wanted, reason, "data source")
    else:
        builder.announce(source.name, f"bound collector '{collector.name}' to data source '{source.name}': {reason}")
    _bind(source, collector, bindings, builder)


def _feed(spec: DataSourceSpec, bindings: SourceBindings, builder: PlanBuilder) -> None:
    path = (*spec.path, "pluginRef")
    source = look_up_kind(spec.plugin_ref, path, DataSource, builder, Code.E0607)
    collectors = bindings.setdefault(source.name, []) if source is not None else []
    for reference in spec.collector_refs:
        if source is not None and _is_notified_anyway(source, reference, builder):
            continue
        place = (*reference.path, "pluginRef")
        collector = look_up_kind(reference.plugin_ref, place, DataCollector, builder)
        if collector is not None and collector.name not in collectors:
            if source is not None:
                _check_payload(source, collector, builder, place)
            collectors.append(collector.name)
    if source is not None and not spec.collector_refs and not builder.loaded.is_damaged(spec.path):
        _add_collectors(source, bindings, builder)


def _is_notified_anyway(source: DraftInstance, reference: PluginRef, builder: PlanBuilder) -> bool:
    """llm-d requires listeners to endpoint events to be named here; endpick notifies all of them."""
    named = builder.instances.get(reference.plugin_ref)
    if named is None or named.may_be_a(DataCollector) or source.loaded is None or payload_of(source.loaded.plugin) is not EndpointEvent:
        return False
    builder.used.add(named.name)
    if named.loaded is not None and named.loaded.plugin.endpoint_removed is not Plugin.endpoint_removed:
        return True
    builder.report(
        Code.W0502,
        f"'{named.name}' is no data collector: '{source.name}' has nothing to tell it",
        (*reference.path, "pluginRef"),
        help="remove it here: it keeps nothing about endpoints",
        plugin=named.plugin,
    )
    return True


def _add_collectors(source: DraftInstance, bindings: SourceBindings, builder: PlanBuilder) -> None:
    if source.is_a(DataCollector):
        _bind(source, source, bindings, builder)
        return
    plugin = None if source.loaded is None else source.loaded.plugin
    for wanted in plugin.default_collectors if plugin is not None and issubclass(plugin, DataSource) else ():
        reason = f"data source '{source.name}' names no collectors"
        builder.announce(wanted, f"added collector '{wanted}' to data source '{source.name}': it names none")
        collector = _of_type(wanted, DataCollector, builder) or add_instance(builder, wanted, reason)
        _bind(source, collector, bindings, builder)


def _add_metrics(bindings: SourceBindings, builder: PlanBuilder) -> None:
    if any(builder.instances[name].type == METRICS_SOURCE for name in bindings):
        return
    source, collector = _of_type(METRICS_SOURCE, DataSource, builder), _of_type(METRICS_COLLECTOR, DataCollector, builder)
    offers = builder.catalog.offers
    if not (source or offers(METRICS_SOURCE)) or not (collector or offers(METRICS_COLLECTOR)):
        return
    reason = "dataLayer.injectDefaults is not false, and no source collects metrics"
    builder.announce(METRICS_SOURCE, f"added data source '{METRICS_SOURCE}' with collector '{METRICS_COLLECTOR}': {reason}")
    source = source or add_instance(builder, METRICS_SOURCE, reason)
    collector = collector or add_instance(builder, METRICS_COLLECTOR, reason)
    _bind(source, collector, bindings, builder)


def _of_type(plugin_type: str, kind: Kind, builder: PlanBuilder) -> DraftInstance | None:
    return next((instance for instance in builder.instances.values() if instance.type == plugin_type and instance.may_be_a(kind)), None)


def _bind(source: DraftInstance, collector: DraftInstance, bindings: SourceBindings, builder: PlanBuilder) -> None:
    builder.used.update((source.name, collector.name))
    _check_payload(source, collector, builder, None)
    collectors = bindings.setdefault(source.name, [])
    if collector.name not in collectors:
        collectors.append(collector.name)


def _check_payload(source: DraftInstance, collector: DraftInstance, builder: PlanBuilder, path: tuple[str | int, ...] | None) -> None:
    if source.loaded is None or collector.loaded is None:
        return
    given, wanted = payload_of(source.loaded.plugin), payload_of(collector.loaded.plugin)
    if wanted is None or given is None or issubclass(given, wanted):
        return
    place = path or (*(collector.path or ()), "type")
    labels: list[Label] = [] if source.path is None else [builder.label((*source.path, "type"), f"'{source.name}' delivers {_name(given)}")]
    builder.report(
        Code.E0606,
        f"collector '{collector.name}' reads {_name(wanted)}, and its source '{source.name}' delivers {_name(given)}",
        place,
        labels=labels,
        help=f"bind '{collector.name}' to a source that delivers {_name(wanted)}",
        plugin=collector.plugin,
    )


def _name(payload: type[object]) -> str:
    return payload.__qualname__ if payload.__module__ == "builtins" else f"{payload.__module__}.{payload.__qualname__}"


PURE_PRODUCERS = frozenset({DataProducer, DataCollector, PreRequest, ResponseObserver, DataSource})


def plan_data(builder: PlanBuilder, bindings: SourceBindings) -> SubscriptionGraph:
    """Return the subscription graph; empty if it is inconsistent or unknown."""
    _add_default_producers(builder, bindings)
    participants = _participants(builder)
    resolution = resolve_subscriptions(participants, lambda key: _advice(key, builder))
    # An unknown instance may produce a missing key.
    certain = builder.is_complete and len(participants) == len(builder.instances)
    found = (diagnostic for diagnostic in resolution.diagnostics if certain or diagnostic.code is not Code.E0601)
    # Added instances have no place in the document.
    builder.diagnostics.extend(replace(diagnostic, span=diagnostic.span or builder.source.key_span(())) for diagnostic in found)
    if resolution.graph is None:
        return SubscriptionGraph()
    builder.diagnostics.extend(diagnostic for diagnostic in resolution.notes if diagnostic.span is not None)
    if certain:
        _warn(resolution.graph, builder)
    return resolution.graph


def _add_default_producers(builder: PlanBuilder, bindings: SourceBindings) -> None:
    if not builder.is_complete:
        return
    while True:
        participants = _participants(builder)
        wanted = [
            (key.default_producer, f"'{consumer.name}' needs '{key.name}' and nothing else produces it")
            for consumer, key in missing_keys(participants)
            if key.default_producer and _may_add(key.default_producer, builder)
        ] or [
            (key.default_producer, f"'{name}' is read without naming one of its producers, {', '.join(offer.name for offer in offers)}")
            for name, (key, offers) in rivals(participants).items()
            if key.default_producer and key.default_producer not in builder.instances and builder.catalog.offers(key.default_producer)
        ]
        if not wanted:
            return
        producer, reason = wanted[0]
        builder.announce(producer, f"added producer '{producer}': {reason}", Code.N0601)
        _feed_by_default_source(add_instance(builder, producer, reason), bindings, builder)


def _may_add(plugin_type: str, builder: PlanBuilder) -> bool:
    in_use = any(plugin_type in (instance.type, instance.place.reference.type) for instance in builder.instances.values())
    if in_use or not builder.catalog.offers(plugin_type):
        return False
    if injects_defaults(builder):
        return True
    loaded = builder.catalog.peek(plugin_type)
    return loaded is None or DataCollector not in loaded.kinds


def _participants(builder: PlanBuilder) -> list[Participant]:
    found = []
    for instance in builder.instances.values():
        if instance.loaded is not None and instance.subscriptions is not None:
            path = _path(instance, builder)
            span = None if path is None else builder.source.value_span(path)
            kinds = instance.loaded.kinds
            found.append(Participant(instance.name, instance.type, kinds, instance.subscriptions, span, instance.plugin, path or ()))
    return found


def _path(instance: DraftInstance, builder: PlanBuilder) -> DocumentPath | None:
    for profile in builder.config.scheduling_profiles:
        for reference in profile.plugins:
            if reference.plugin_ref == instance.name:
                return (*reference.path, "pluginRef")
    return None if instance.path is None else (*instance.path, "type")


def _advice(key: AnyKey, builder: PlanBuilder) -> str:
    shared, _, wanted = key.name.partition("@")
    if wanted:
        giving = [
            instance.name
            for instance in builder.instances.values()
            if instance.subscriptions and shared in {key.name for key in instance.subscriptions.produces}
        ]
        return f"'{wanted}' does not produce it; " + (
            f"name one of {', '.join(giving)}" if giving else f"define '{wanted}' under `plugins:`"
        )
    default = key.default_producer
    if default is not None and builder.catalog.offers(default) and not injects_defaults(builder):
        return f"remove `injectDefaults: false`, so that endpick adds '{default}', or add a collector that produces it"
    if default is not None and not builder.catalog.offers(default):
        return f"install a plugin that offers '{default}', its default producer"
    types = builder.catalog.types_that_produce(key.name)
    if types:
        return f"add an instance of a type that produces it: {', '.join(types)}"
    return "no installed plugin type produces it; install one that does"


def _warn(graph: SubscriptionGraph, builder: PlanBuilder) -> None:
    for need in graph.unmet:
        instance = builder.instances[need.consumer]
        if instance.path is not None and not _has_substitute(instance, need.key):
            message = f"nothing produces '{need.key}', which '{need.consumer}' would use"
            builder.report_instance(instance, Code.W0603, message, "add a producer for it, or leave it: the instance works without")
    for name in graph.unread:
        instance = builder.instances[name]
        if instance.path is not None and instance.loaded is not None and PURE_PRODUCERS.issuperset(instance.loaded.kinds):
            keys = ", ".join(f"'{key.name}'" for key in instance.subscriptions.produces) if instance.subscriptions else ""
            message = f"nothing uses what '{name}' produces: {keys}"
            builder.report_instance(instance, Code.W0602, message, "remove it, or add a plugin that reads its data")


def _has_substitute(instance: DraftInstance, name: str) -> bool:
    optional = () if instance.subscriptions is None else instance.subscriptions.consumes_optional
    return any(key.has_substitute for key in optional if key.name == name)
