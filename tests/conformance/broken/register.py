"""The register of plugins that each break one rule of the kit: which check has to say so, and in which words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from endpick.api import (
    DataKey,
    PluginMeta,
    Scope,
    Scorer,
)

API = ">=1.0,<2"
TOKENS = DataKey("acme.example/tokens", int, Scope.REQUEST, doc="Tokens of the prompt (count).")
MATCH = DataKey("acme.example/match", float, Scope.CANDIDATE, doc="How well the endpoint fits (0 to 1).")
TENANTS: DataKey[list] = DataKey("acme.example/tenants", list, doc="Tenants that the endpoint serves.")
NAMELESS = DataKey("acme.example/nameless", float)


@dataclass(frozen=True)
class Broken:
    """A class, the one check that has to fail, what it has to say, and what the kit is given."""

    plugin: type
    check: str
    message: str
    material: Mapping[str, object] = field(default_factory=dict)


BROKEN: list[Broken] = []


def breaks(check: str, message: str, **material: object):
    """Note the rule that a class breaks, and give it a type if it has no `meta` yet."""

    def note(plugin: type) -> type:
        BROKEN.append(Broken(plugin, check, message, material))
        return plugin

    return note


def meta(name: str, **facts: object) -> PluginMeta:
    return PluginMeta(**{"type": f"broken.{name}", "api": API, **facts})


class Fair(Scorer):
    """Everybody is equal: a scorer without fault, for others to spoil."""

    def score(self, request, endpoints, state):
        return np.ones(len(endpoints))
