"""Which sources feed which collectors, as the plan decided."""

from __future__ import annotations

from dataclasses import dataclass

from endpick.plugins.instance import Instance


@dataclass(frozen=True, slots=True)
class SourceBinding:
    """One source and the collectors that take its payloads, in configuration order."""

    source: Instance
    collectors: tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class Collection:
    """Everything that is collected. A source without collectors is left alone: nobody would see what it brings."""

    bindings: tuple[SourceBinding, ...] = ()
