"""The register of plugins that each break one rule of the kit: which check has to say so, and in which words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from endpick.api import (
    DataKey,
    Scope,
    Scorer,
)

TOKENS = DataKey("acme.example/tokens", int, Scope.REQUEST, doc="Tokens of the prompt (count).")
TENANTS: DataKey[list] = DataKey("acme.example/tenants", list, doc="Tenants that the endpoint serves.")
NAMELESS = DataKey("acme.example/nameless", float)


@dataclass(frozen=True)
class Broken:
    """A class, the one check that has to fail, what it has to say, its entry point, and what the kit is given."""

    plugin: type
    check: str
    message: str
    plugin_type: str
    distribution: str
    inputs: Mapping[str, object] = field(default_factory=dict)


BROKEN: list[Broken] = []
DISTRIBUTION = "broken-plugins"
"""Says which endpick it needs."""
UNDEMANDING = "undemanding-plugins"
"""Does not say which endpick it needs."""


def breaks(check: str, message: str, *, plugin_type: str | None = None, distribution: str = DISTRIBUTION, **inputs: object):
    """Note the rule that a class breaks, and the entry point that leads to it: `broken.old-signature` unless another is given."""

    def note(plugin: type) -> type:
        name = f"broken.{re.sub('(?<!^)(?=[A-Z])', '-', plugin.__name__).lower()}"
        BROKEN.append(Broken(plugin, check, message, plugin_type or name, distribution, inputs))
        return plugin

    return note


class Fair(Scorer):
    """Every endpoint is equal: a scorer without fault, for others to spoil."""

    def score(self, request, endpoints, state):
        return np.ones(len(endpoints))
