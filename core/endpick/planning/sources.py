"""Fifth step of a plan: which data source feeds which collectors, and the metrics that llm-d collects unasked."""

from __future__ import annotations

from endpick.api.plugin import Kind
from endpick.config import DataSourceSpec
from endpick.diagnostics import Code, Label
from endpick.planning.definitions import add_instance
from endpick.planning.draft import Draft, DraftInstance
from endpick.planning.installed import Installed
from endpick.planning.references import look_up, look_up_kind, report_wrong_kind

METRICS_SOURCE = "metrics-data-source"
METRICS_COLLECTOR = "core-metrics-extractor"

Feeding = dict[str, list[str]]
"""Collectors by the source that feeds them, both in the order of the document."""


def plan_sources(draft: Draft, installed: Installed) -> Feeding:
    """What the document says, plus defaults."""
    feeding: Feeding = {}
    for spec in () if draft.config.data_layer is None else draft.config.data_layer.sources:
        _feed(spec, feeding, draft, installed)
    if injects_defaults(draft) and not draft.loaded.is_damaged(("dataLayer",)):
        _add_metrics(feeding, draft, installed)
    for collector in draft.configured(Kind.DATA_COLLECTOR):
        feed_by_default_source(collector, feeding, draft, installed)
    return feeding


def injects_defaults(draft: Draft) -> bool:
    """Whether the host may add sources and collectors by itself."""
    return draft.config.data_layer is None or draft.config.data_layer.inject_defaults


def feed_by_default_source(collector: DraftInstance, feeding: Feeding, draft: Draft, installed: Installed) -> None:
    """Bind a collector that no source feeds to the type of source it asks for."""
    if collector.loaded is None or any(collector.name in collectors for collectors in feeding.values()):
        return
    wanted = collector.loaded.meta.default_source
    if wanted is None or not injects_defaults(draft):
        return
    reason = f"no source feeds collector '{collector.name}'"
    source = next((one for one in draft.of_kind(Kind.DATA_SOURCE) if one.loaded and one.loaded.type == wanted), None)
    if source is None:
        draft.announce(Code.N0501, wanted, f"added data source '{wanted}': {reason}")
        source = add_instance(draft, installed, wanted, reason)
    else:
        draft.announce(Code.N0501, source.name, f"bound collector '{collector.name}' to data source '{source.name}': {reason}")
    _bind(source, collector, feeding, draft)


def _feed(spec: DataSourceSpec, feeding: Feeding, draft: Draft, installed: Installed) -> None:
    path = (*spec.path, "pluginRef")
    source = look_up(spec.plugin_ref, path, draft, Code.E0607)
    if source is not None and not source.may_be_a(Kind.DATA_SOURCE):
        report_wrong_kind(source, Kind.DATA_SOURCE, path, draft)
        source = None
    collectors = feeding.setdefault(source.name, []) if source is not None else []
    for reference in spec.collector_refs:
        collector = look_up_kind(reference, Kind.DATA_COLLECTOR, draft)
        if collector is not None and collector.name not in collectors:
            if source is not None:
                _check_payload(source, collector, draft, (*reference.path, "pluginRef"))
            collectors.append(collector.name)
    if source is not None and not spec.collector_refs and not draft.loaded.is_damaged(spec.path):
        _add_collectors(source, feeding, draft, installed)


def _add_collectors(source: DraftInstance, feeding: Feeding, draft: Draft, installed: Installed) -> None:
    """The collectors a source brings along when none is named for it."""
    for wanted in () if source.loaded is None else source.loaded.meta.default_collectors:
        reason = f"data source '{source.name}' names no collectors"
        draft.announce(Code.N0501, wanted, f"added collector '{wanted}' to data source '{source.name}': it names none")
        collector = _of_type(wanted, Kind.DATA_COLLECTOR, draft) or add_instance(draft, installed, wanted, reason)
        _bind(source, collector, feeding, draft)


def _add_metrics(feeding: Feeding, draft: Draft, installed: Installed) -> None:
    """llm-d's default, unless some source in use is of the metrics type already."""
    if any(draft.instances[name].type == METRICS_SOURCE for name in feeding):
        return
    source = _of_type(METRICS_SOURCE, Kind.DATA_SOURCE, draft)
    collector = _of_type(METRICS_COLLECTOR, Kind.DATA_COLLECTOR, draft)
    if (source is None and not installed.offers(METRICS_SOURCE)) or (collector is None and not installed.offers(METRICS_COLLECTOR)):
        return
    reason = "dataLayer.injectDefaults is not false, and no source collects metrics"
    draft.announce(Code.N0501, METRICS_SOURCE, f"added data source '{METRICS_SOURCE}' with collector '{METRICS_COLLECTOR}': {reason}")
    source = source or add_instance(draft, installed, METRICS_SOURCE, reason)
    collector = collector or add_instance(draft, installed, METRICS_COLLECTOR, reason)
    _bind(source, collector, feeding, draft)


def _of_type(plugin_type: str, kind: Kind, draft: Draft) -> DraftInstance | None:
    """The first instance of a type, which may also be one that could not be loaded."""
    return next((one for one in draft.instances.values() if one.type == plugin_type and one.may_be_a(kind)), None)


def _bind(source: DraftInstance, collector: DraftInstance, feeding: Feeding, draft: Draft) -> None:
    draft.used.update((source.name, collector.name))
    _check_payload(source, collector, draft, None)
    collectors = feeding.setdefault(source.name, [])
    if collector.name not in collectors:
        collectors.append(collector.name)


def _check_payload(source: DraftInstance, collector: DraftInstance, draft: Draft, path: tuple[str | int, ...] | None) -> None:
    """A collector must be able to read what its source delivers; one that names no payload type reads anything."""
    if source.loaded is None or collector.loaded is None:
        return
    given, wanted = source.loaded.meta.payload, collector.loaded.meta.payload
    if wanted is None or given is None or issubclass(given, wanted):
        return
    place = path or (*(collector.path or ()), "type")
    labels: list[Label] = [] if source.path is None else [draft.label((*source.path, "type"), f"'{source.name}' delivers {_name(given)}")]
    draft.report(
        Code.E0606,
        f"collector '{collector.name}' reads {_name(wanted)}, and its source '{source.name}' delivers {_name(given)}",
        place,
        labels=labels,
        help=f"bind '{collector.name}' to a source that delivers {_name(wanted)}",
        plugin=collector.plugin,
    )


def _name(payload: type[object]) -> str:
    return payload.__qualname__ if payload.__module__ == "builtins" else f"{payload.__module__}.{payload.__qualname__}"
