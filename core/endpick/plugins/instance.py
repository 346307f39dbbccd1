"""A configured plugin object together with what the host knows about it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from endpick.api.access import AccessScope
from endpick.api.data import Subscriptions
from endpick.api.plugin import Kind, Parameters, Plugin

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from endpick.plugins.placing import Place


class OnFault(enum.StrEnum):
    """What the host does when an instance raises or answers nonsense."""

    SKIP = "skip"
    """Go on as if the instance were not there for this request."""
    REFUSE = "refuse"
    """Refuse the request."""


def default_on_fault(kinds: tuple[Kind, ...]) -> OnFault:
    """Fail closed where an answer decides who may serve (filters, pickers, handlers, admitters), open elsewhere."""
    decisive = {Kind.FILTER, Kind.PICKER, Kind.PROFILE_HANDLER, Kind.ADMITTER, Kind.SCREENER, Kind.PARSER}
    return OnFault.REFUSE if decisive & set(kinds) else OnFault.SKIP


@dataclass(frozen=True, slots=True)
class Instance:
    """One built plugin.

    Attributes:
        scope: What its views are checked against while it runs.
        registry: The metrics it keeps for itself.
        place: Where the configuration asks for it.
    """

    name: str
    type: str
    distribution: str
    version: str
    kinds: tuple[Kind, ...]
    plugin: Plugin[Parameters]
    subscriptions: Subscriptions
    on_fault: OnFault
    scope: AccessScope
    registry: CollectorRegistry | None = None
    place: Place | None = None

    @property
    def origin(self) -> str:
        """How logs and diagnostics name it: `queue (queue-scorer, endpick 0.1.0)`."""
        return f"{self.name} ({self.type}, {self.distribution} {self.version})"


def scope_of(name: str, subscriptions: Subscriptions) -> AccessScope:
    """The keys an instance may touch: it reads what it consumes or produces, and writes what it produces."""
    produced = frozenset(key.name for key in subscriptions.produces)
    consumed = frozenset(key.name for key in (*subscriptions.consumes, *subscriptions.consumes_optional))
    return AccessScope(name, consumed | produced, produced)
