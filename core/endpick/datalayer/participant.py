"""An instance as the subscription graph sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from endpick.api.data import AnyKey, Subscriptions
from endpick.api.plugin import Kind
from endpick.diagnostics import DocumentPath, PluginReference, Span


@dataclass(frozen=True, slots=True)
class Participant:
    """What an instance reads and writes, what it is, and where to point when that cannot work.

    `kinds` holds at least one. `span` and `path` are those of its place in the document; an instance that the host added has none.
    """

    name: str
    type: str
    kinds: tuple[Kind, ...]
    subscriptions: Subscriptions
    span: Span | None = None
    plugin: PluginReference | None = None
    path: DocumentPath = ()

    @property
    def produced(self) -> Mapping[str, AnyKey]:
        """Keys it writes, by name; each a second time under the name by which consumers ask for this very producer."""
        own = {key.name: key for key in self.subscriptions.produces}
        return {f"{name}@{self.name}": key for name, key in own.items()} | own

    @property
    def consumed(self) -> tuple[tuple[AnyKey, bool], ...]:
        """Keys it reads and whether it must have them, sorted by name; a key declared both ways is required."""
        required = {key.name: (key, True) for key in self.subscriptions.consumes}
        optional = {key.name: (key, False) for key in self.subscriptions.consumes_optional}
        return tuple(entry for _, entry in sorted((optional | required).items()))
