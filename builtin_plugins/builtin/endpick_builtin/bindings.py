"""Bindings of client ids to endpoints or revisions, shared between pickers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from endpick.api import PluginContext
from endpick.api.fleet import LearntState
from endpick_builtin.recency import Recency, kept_id

_SAME_SECONDS: Final = 1.0
_IN_PART: Final = 1000  # of a snapshot
_encode: Final = msgspec.msgpack.encode
_read: Final = msgspec.msgpack.Decoder(dict[str, tuple[str, float]]).decode


@dataclass(frozen=True, slots=True)
class Binding:
    """The endpoint or revision of an id."""

    name: str
    bound_at: float


class Bindings:
    """Bindings by id, least recent first."""

    def __init__(self, ttl_seconds: float, sweep_seconds: float, most: int, context: PluginContext) -> None:
        self._ttl = ttl_seconds
        self._sweep_every = sweep_seconds
        self._most = most
        self._clock = context.clock
        self._is_shared = context.is_shared
        self._next_sweep = context.clock() + sweep_seconds
        self._kept: Recency[str, Binding] = Recency()
        self._untold: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def name_of(self, chosen: str) -> str | None:
        """The bound name, or None."""
        binding = self._kept.get(kept_id(chosen))
        return None if binding is None or self._clock() - binding.bound_at > self._ttl else binding.name

    def bind(self, chosen: str, name: str) -> int:
        """Bind an id, or bind it again; returns the number of displaced ones."""
        now, key = self._clock(), kept_id(chosen)
        if now >= self._next_sweep:
            self._next_sweep = now + self._sweep_every
            self._kept.expire(lambda binding: now - binding.bound_at > self._ttl)
        self._kept.use(key, Binding(name, now))
        if self._is_shared:
            self._untold[key] = None
        return len(self._kept.trim(self._most))

    def merge(self, bindings: Mapping[str, tuple[str, float]]) -> None:
        """Add bindings of other pickers: name and age by `kept_id`, the oldest first. The later one counts.

        Of two at almost the same time, all pickers take the one with the greater name.
        """
        now = self._clock()
        for key, (name, age) in bindings.items():
            known, theirs = self._kept.get(key), Binding(name, now - age)
            if known is not None and abs(known.bound_at - theirs.bound_at) < _SAME_SECONDS:
                self._kept.use(key, max(known, theirs, key=lambda binding: (binding.name, binding.bound_at)))
            elif known is None or theirs.bound_at > known.bound_at:
                self._kept.use(key, theirs)
        self._kept.trim(self._most)

    def keys(self) -> list[str]:
        """All ids, the oldest first."""
        return list(self._kept)

    def ages(self, keys: Iterable[str]) -> dict[str, tuple[str, float]]:
        """Name and age by those of the ids that are still bound."""
        now, kept = self._clock(), self._kept
        return {key: (kept[key].name, now - kept[key].bound_at) for key in keys if key in kept}

    def untold(self) -> dict[str, tuple[str, float]]:
        """Name and age by the ids that were bound since the last call."""
        keys, self._untold = self._untold, {}
        return self.ages(keys)


class LearntBindings(LearntState):
    """Bindings as learnt state."""

    _bindings: Bindings

    def snapshot(self) -> Iterable[bytes]:
        keys = self._bindings.keys()
        for start in range(0, len(keys), _IN_PART):
            yield _encode(self._bindings.ages(keys[start : start + _IN_PART]))

    def restore(self, part: bytes) -> None:
        self._bindings.merge(_read(part))

    def drain_deltas(self) -> bytes:
        untold = self._bindings.untold()
        return _encode(untold) if untold else b""

    def apply(self, deltas: bytes, origin: str) -> None:
        self._bindings.merge(_read(deltas))
