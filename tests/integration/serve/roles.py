"""Which roles a configuration names, and which stages it demands of a request: read from the document, not from what endpick does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from integration.serve.disaggregated import ROLE_LABEL

Document = Mapping[str, object]
ROLE_OF_FILTER = {"decode-filter": "decode", "prefill-filter": "prefill", "encode-filter": "encode"}
STAGES = ("encode", "prefill", "decode")
WITHOUT_ROLE = ""


@dataclass(frozen=True)
class Demands:
    """What a configuration asks of its pool."""

    role_of: Mapping[str, str]
    """The role whose servers do a stage; of a configuration without disaggregation there is only decode."""
    optional: frozenset[str]
    """Stages that a decider may leave out."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Each role that is named, once; one empty role where none is."""
        return tuple(dict.fromkeys(self.role_of.values()))

    @property
    def bystander(self) -> str | None:
        """A role that no filter of the document lets through; None where every server may be picked, or every role has work."""
        if self.roles == (WITHOUT_ROLE,):
            return None
        return next((role for role in ("prefill", "encode") if role not in self.roles), None)


def demands_of(document: Document) -> Demands:
    """Read the roles from the filters of the profiles, and the stages from the profile handler."""
    plugins = {str(plugin.get("name", plugin["type"])): plugin for plugin in _mappings(document["plugins"])}
    roles = {str(profile["name"]): _role(profile, plugins) for profile in _mappings(document["schedulingProfiles"])}
    deciders = next((_deciders(plugin) for plugin in plugins.values() if plugin["type"] == "disagg-profile-handler"), None)
    if deciders is None:
        (role,) = roles.values()
        return Demands({"decode": role}, frozenset())
    if "encode" in roles and "prefill" not in roles:
        roles["decode"] = "prefill-decode"
    return Demands({stage: roles[stage] for stage in STAGES if stage in roles}, frozenset(deciders))


def _role(profile: Mapping[str, object], plugins: Mapping[str, Mapping[str, object]]) -> str:
    for step in _mappings(profile["plugins"]):
        plugin = plugins[str(step["pluginRef"])]
        parameters = plugin.get("parameters") or {}
        assert isinstance(parameters, dict)
        if plugin["type"] in ROLE_OF_FILTER:
            return ROLE_OF_FILTER[str(plugin["type"])]
        if plugin["type"] == "by-label" and parameters["label"] == ROLE_LABEL:
            return str(parameters["validValues"][0])
        if plugin["type"] == "label-selector-filter" and ROLE_LABEL in parameters.get("matchLabels", {}):
            return str(parameters["matchLabels"][ROLE_LABEL])
    return WITHOUT_ROLE


def _deciders(handler: Mapping[str, object]) -> frozenset[str]:
    parameters = handler.get("parameters") or {}
    assert isinstance(parameters, dict)
    return frozenset(parameters.get("deciders", {}))


def _mappings(value: object) -> Sequence[Mapping[str, object]]:
    assert isinstance(value, list)
    return value
