"""Fourth step of a plan: who reads requests, who says that the pool is full, who finds endpoints."""

from __future__ import annotations

from endpick.api.plugin import Kind
from endpick.config import PluginRef
from endpick.diagnostics import Code
from endpick.planning.definitions import add_instance
from endpick.planning.draft import Draft, DraftInstance
from endpick.planning.installed import Installed
from endpick.planning.references import look_up_kind
from endpick.planning.sources import injects_defaults

DEFAULT_PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
DEFAULT_DETECTOR = "utilization-detector"
DEFAULT_SCREENER = "silent-endpoint-screener"


def plan_parsers(draft: Draft, installed: Installed) -> tuple[str, ...]:
    """Parsers in the order in which they are asked: those named, or else llm-d's, as far as they are installed."""
    if draft.config.parser_refs:
        named = [_named_or_added(reference, Kind.PARSER, draft, installed) for reference in draft.config.parser_refs]
        return tuple(dict.fromkeys(instance.name for instance in named if instance is not None))
    if draft.loaded.is_damaged(("requestHandler",)) or draft.loaded.is_damaged(("parser",)):
        return ()
    chosen = []
    for parser in DEFAULT_PARSERS:
        defined = draft.instances.get(parser)
        if defined is not None and defined.may_be_a(Kind.PARSER):
            draft.used.add(parser)
            chosen.append(parser)
        elif defined is None and installed.offers(parser):
            reason = "requestHandler.parsers names no parser"
            draft.announce(Code.N0501, parser, f"added parser '{parser}': {reason}")
            chosen.append(add_instance(draft, installed, parser, reason).name)
    return tuple(chosen)


def plan_detector(draft: Draft, installed: Installed) -> str | None:
    """The saturation detector: the one named, or else llm-d's if it is installed."""
    reference = draft.config.saturation_detector_ref
    if reference is not None:
        named = _named_or_added(reference, Kind.SATURATION_DETECTOR, draft, installed)
        return None if named is None else named.name
    defined = draft.instances.get(DEFAULT_DETECTOR)
    if defined is not None:
        draft.used.add(DEFAULT_DETECTOR)
        return DEFAULT_DETECTOR if defined.may_be_a(Kind.SATURATION_DETECTOR) else None
    if not installed.offers(DEFAULT_DETECTOR):
        return None
    reason = "no saturation detector is named"
    draft.announce(Code.N0501, DEFAULT_DETECTOR, f"added saturation detector '{DEFAULT_DETECTOR}': {reason}")
    return add_instance(draft, installed, DEFAULT_DETECTOR, reason).name


def plan_screeners(draft: Draft, installed: Installed) -> None:
    """Add the screener that leaves out endpoints which have fallen silent, unless the document defines one or wants no additions."""
    taken = any(DEFAULT_SCREENER in (instance.name, instance.type) for instance in draft.instances.values())
    if taken or not injects_defaults(draft) or not installed.offers(DEFAULT_SCREENER):
        return
    reason = "a model server that dies keeps its last values, which would go on attracting requests"
    draft.announce(Code.N0501, DEFAULT_SCREENER, f"added screener '{DEFAULT_SCREENER}': {reason}")
    add_instance(draft, installed, DEFAULT_SCREENER, reason)


def plan_discovery(draft: Draft) -> str | None:
    """What finds endpoints, if the document names it."""
    layer = draft.config.data_layer
    if layer is None or layer.discovery is None:
        return None
    named = look_up_kind(layer.discovery, Kind.ENDPOINT_DISCOVERY, draft)
    return None if named is None else named.name


def _named_or_added(reference: PluginRef, kind: Kind, draft: Draft, installed: Installed) -> DraftInstance | None:
    """The instance a reference names; where none is defined, but an installed type has that name, a new one of it, as in llm-d."""
    name = reference.plugin_ref
    if name in draft.instances or not installed.offers(name) or draft.loaded.may_define(name):
        return look_up_kind(reference, kind, draft)
    path = (*reference.path, "pluginRef")
    reason = f"it is named at {draft.source.value_span(path)} and not defined under plugins"
    draft.announce(Code.N0501, name, f"added {kind.replace('-', ' ')} '{name}': {reason}")
    add_instance(draft, installed, name, reason)
    return look_up_kind(reference, kind, draft)
