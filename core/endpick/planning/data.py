"""Last step of a plan: all data that is needed gets produced, by default producers where the document names none."""

from __future__ import annotations

from dataclasses import replace

from endpick.api.data import AnyKey
from endpick.api.plugin import Kind
from endpick.datalayer.participant import Participant
from endpick.datalayer.subscriptions import SubscriptionGraph, missing_keys, resolve_subscriptions
from endpick.diagnostics import Code, DocumentPath
from endpick.planning.definitions import add_instance
from endpick.planning.draft import Draft, DraftInstance
from endpick.planning.installed import Installed
from endpick.planning.offers import types_that_produce
from endpick.planning.sources import Feeding, feed_by_default_source, injects_defaults

_PURE_PRODUCERS = frozenset({Kind.DATA_PRODUCER, Kind.DATA_COLLECTOR, Kind.PRE_REQUEST, Kind.RESPONSE_OBSERVER, Kind.DATA_SOURCE})


def plan_data(draft: Draft, feeding: Feeding, installed: Installed) -> SubscriptionGraph:
    """Who reads what from whom; empty when that cannot work, or cannot be known."""
    add_default_producers(draft, feeding, installed)
    participants = _participants(draft)
    resolution = resolve_subscriptions(participants, lambda key: _advice(key, draft, installed))
    # An instance that is unknown may produce what seems to be missing.
    certain = draft.is_complete and len(participants) == len(draft.instances)
    found = (one for one in resolution.diagnostics if certain or one.code is not Code.E0601)
    # What only instances that were added are to blame for has no place of its own.
    draft.diagnostics.extend(replace(one, span=one.span or draft.source.key_span(())) for one in found)
    if resolution.graph is None:
        return SubscriptionGraph()
    if certain:
        _warn(resolution.graph, draft)
    return resolution.graph


def add_default_producers(draft: Draft, feeding: Feeding, installed: Installed) -> None:
    """Add producers until nothing is missing that has a default producer: what is added may itself need data."""
    if not draft.is_complete:
        return
    while True:
        wanted = [
            (consumer, key)
            for consumer, key in missing_keys(_participants(draft))
            if key.default_producer and _may_add(key.default_producer, draft, installed)
        ]
        if not wanted:
            return
        consumer, key = wanted[0]
        producer = key.default_producer
        assert producer is not None
        reason = f"'{consumer.name}' needs '{key.name}' and nothing else produces it"
        draft.announce(Code.N0601, producer, f"added producer '{producer}': {reason}")
        feed_by_default_source(add_instance(draft, installed, producer, reason), feeding, draft, installed)


def _may_add(plugin_type: str, draft: Draft, installed: Installed) -> bool:
    """A type that is installed and not in use; nothing that collects where the document forbids adding such."""
    in_use = any(plugin_type in (instance.type, instance.place.reference.type) for instance in draft.instances.values())
    if in_use or not installed.offers(plugin_type):
        return False
    if injects_defaults(draft):
        return True
    loaded = installed.peek(plugin_type)
    return loaded is None or Kind.DATA_COLLECTOR not in loaded.kinds


def _participants(draft: Draft) -> list[Participant]:
    found = []
    for instance in draft.instances.values():
        if instance.loaded is not None and instance.subscriptions is not None:
            path = _path(instance, draft)
            span = None if path is None else draft.source.value_span(path)
            kinds = instance.loaded.kinds
            found.append(Participant(instance.name, instance.type, kinds, instance.subscriptions, span, instance.plugin, path or ()))
    return found


def _path(instance: DraftInstance, draft: Draft) -> DocumentPath | None:
    """Where a diagnostic about an instance's data points: its first place in a profile, or else its definition."""
    for profile in draft.config.scheduling_profiles:
        for reference in profile.plugins:
            if reference.plugin_ref == instance.name:
                return (*reference.path, "pluginRef")
    return None if instance.path is None else (*instance.path, "type")


def _advice(key: AnyKey, draft: Draft, installed: Installed) -> str:
    """What to do about a key that nobody produces."""
    shared, _, wanted = key.name.partition("@")
    if wanted:
        giving = [
            one.name for one in draft.instances.values() if one.subscriptions and shared in {key.name for key in one.subscriptions.produces}
        ]
        return f"'{wanted}' does not produce it; " + (
            f"name one of {', '.join(giving)}" if giving else f"define '{wanted}' under `plugins:`"
        )
    default = key.default_producer
    if default is not None and installed.offers(default) and not injects_defaults(draft):
        return f"remove `injectDefaults: false`, so that endpick adds '{default}', or add a collector that produces it"
    if default is not None and not installed.offers(default):
        return f"install a plugin that offers '{default}', its default producer"
    types = types_that_produce(key.name, installed)
    if types:
        return f"add an instance of a type that produces it: {', '.join(types)}"
    return "no installed plugin type produces it; install one that does"


def _warn(graph: SubscriptionGraph, draft: Draft) -> None:
    for need in graph.unmet:
        instance = draft.instances[need.consumer]
        if instance.path is not None:
            draft.report(
                Code.W0603,
                f"nothing produces '{need.key}', which '{need.consumer}' would use",
                (*instance.path, "type"),
                help="add a producer for it, or leave it: the instance works without",
                plugin=instance.plugin,
            )
    for name in graph.unread:
        instance = draft.instances[name]
        if instance.path is not None and instance.loaded is not None and _PURE_PRODUCERS.issuperset(instance.loaded.kinds):
            keys = ", ".join(f"'{key.name}'" for key in instance.subscriptions.produces) if instance.subscriptions else ""
            draft.report(
                Code.W0602,
                f"nothing uses what '{name}' produces: {keys}",
                (*instance.path, "type"),
                help="remove it, or add a plugin that reads its data",
                plugin=instance.plugin,
            )
