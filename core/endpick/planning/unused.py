"""Instances that the document defines and gives no place: their authors believe that they do something."""

from __future__ import annotations

from endpick.api.plugin import Kind
from endpick.diagnostics import Code, did_you_mean
from endpick.planning.draft import Draft

ACTIVE_WHEN_DEFINED = frozenset(
    {Kind.PROFILE_HANDLER, Kind.DATA_PRODUCER, Kind.SCREENER, Kind.ADMITTER, Kind.PRE_REQUEST, Kind.RESPONSE_OBSERVER}
)
"""Kinds that have no place to be named in: as in llm-d, an instance of them takes part because it is defined."""

_PLACE = {
    Kind.FILTER: "no scheduling profile names it",
    Kind.SCORER: "no scheduling profile names it",
    Kind.PICKER: "no scheduling profile names it",
    Kind.DATA_SOURCE: "dataLayer.sources does not name it",
    Kind.DATA_COLLECTOR: "no data source names it",
    Kind.ENDPOINT_DISCOVERY: "dataLayer.discovery does not name it",
    Kind.PARSER: "requestHandler.parsers does not name it",
    Kind.SATURATION_DETECTOR: "flowControl.saturationDetector does not name it",
}


def warn_unused(draft: Draft) -> None:
    """A warning for each, unless the document wants none; of no use while a reference may be missing."""
    policy = draft.config.plugin_policy
    if (policy is not None and policy.on_unused == "Ignore") or draft.loaded.faulty:
        return
    unknown = [one.message for one in draft.diagnostics if one.code in (Code.E0501, Code.E0607)]
    for instance in draft.instances.values():
        if instance.spec is None or instance.loaded is None or instance.name in draft.used:
            continue
        if ACTIVE_WHEN_DEFINED.intersection(instance.loaded.kinds):
            continue
        if any(did_you_mean(message.split("'")[1], [instance.name]) for message in unknown):
            continue  # the misspelt reference is reported, and most probably means this instance
        reasons = dict.fromkeys(_PLACE[kind] for kind in instance.loaded.kinds)
        draft.report(
            Code.W0301,
            f"'{instance.name}' is not used: {' and '.join(reasons)}",
            (*instance.spec.path, "type"),
            help="remove it, or name it where it belongs",
            plugin=instance.plugin,
        )
