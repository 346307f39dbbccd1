"""A configuration for each plugin type, found by trying the places for its kinds until endpick accepts one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from generate_schemas import builtin_candidates

from endpick.api import DataSource, Parser, PreRequest, ProfileHandler, SaturationDetector
from endpick.api.discovery import EndpointDiscovery
from endpick.api.flow_control import EvictionFilter, EvictionOrderingPolicy, FairnessPolicy, OrderingPolicy, UsageLimitPolicy
from endpick.cli.describe import entry_of
from endpick.config import load_config
from endpick.host.discovery import Candidate
from endpick.host.kinds import KINDS
from endpick.host.loader import LoadedPlugin
from endpick.host.planning.planner import make_plan

_HEAD = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins:\n"
_PROFILES = (("default",), ("decode",), ("decode", "prefill"), ("decode", "prefill", "encode"))
"""Some handlers need profiles with these names."""

_OTHERS = (
    "- type: always-disagg-pd-decider\n",
    "- type: disagg-profile-handler\n",
    "- type: concurrency-detector\n- type: utilization-detector\n",
)
"""Instances that some plugins refer to or need."""

_QUEUEING = {
    FairnessPolicy: "  defaultPriorityBand: {{fairnessPolicyRef: {}}}\n",
    OrderingPolicy: "  defaultPriorityBand: {{orderingPolicyRef: {}}}\n",
    UsageLimitPolicy: "  usageLimitPolicyPluginRef: {}\n",
    EvictionFilter: "  enableEviction: true\n",
    EvictionOrderingPolicy: "  enableEviction: true\n",
}
"""The lines of `flowControl` that use a policy of each kind."""


def example(loaded: LoadedPlugin) -> str | None:
    """A complete configuration with an instance of the type; None if endpick accepts none."""
    return next((text for text in _attempts(loaded) if _is_accepted(text, loaded.type)), None)


def _attempts(loaded: LoadedPlugin) -> Iterator[str]:
    kinds = set(loaded.kinds)
    in_profile = any(KINDS[kind].in_profile for kind in kinds)
    discovers = EndpointDiscovery in kinds
    plugins = entry_of(loaded)
    layer = "dataLayer:\n" if discovers or DataSource in kinds else ""
    if discovers:
        layer += f"  discovery: {{endpoints: {{pluginRef: {loaded.type}}}}}\n"
    if DataSource in kinds:
        layer += f"  sources:\n  - pluginRef: {loaded.type}\n"
    if Parser in kinds:
        layer += f"requestHandler:\n  parsers:\n  - pluginRef: {loaded.type}\n"
    if SaturationDetector in kinds and not in_profile:
        layer += f"flowControl:\n  saturationDetector: {{pluginRef: {loaded.type}}}\n"
    if kinds & _QUEUEING.keys():
        named = "".join(line.format(loaded.type) for kind, line in _QUEUEING.items() if kind in kinds)
        layer += f"featureGates: [flowControl]\nflowControl:\n{named}"
    for more in ("", *_OTHERS):
        for names in _PROFILES if ProfileHandler in kinds or PreRequest in kinds or more else _PROFILES[:1]:
            listed = f"  - pluginRef: {loaded.type}\n" if in_profile else "  - pluginRef: queue-scorer\n"
            scorer = "" if in_profile else "- type: queue-scorer\n"
            profiles = "".join(f"- name: {name}\n  plugins:\n{listed}" for name in names)
            named = "" if names == _PROFILES[0] else f"schedulingProfiles:\n{profiles}"  # the default profile lists every plugin
            yield f"{_HEAD}{plugins}{more}{scorer}{named}{layer}"


@cache
def _candidates() -> tuple[Candidate, ...]:
    return builtin_candidates()


def _is_accepted(text: str, plugin_type: str) -> bool:
    outcome = make_plan(load_config(text=text, name="config.yaml"), _candidates())
    return outcome.plan is not None and any(planned.loaded.type == plugin_type for planned in outcome.plan.instances)
