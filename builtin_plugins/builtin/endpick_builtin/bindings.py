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
_IN_PART: Final = 1000  # bindings per part of a snapshot
_encode: Final = msgspec.msgpack.encode
_read: Final = msgspec.msgpack.Decoder(dict[str, tuple[str, float]]).decode


@dataclass(frozen=True, slots=True)
class Binding:
    """The endpoint or revision that an id is bound to, and the time of the binding."""

    name: str
    bound_at: float


class Bindings:
    """Binds client-chosen ids to names for `ttl_seconds`, keeping the `most` recent."""

    def __init__(self, ttl_seconds: float, sweep_seconds: float, most: int, context: PluginContext) -> None:
        self._ttl = ttl_seconds
        self._sweep_every = sweep_seconds
        self._most = most
        self._clock = context.clock
        self._is_shared = context.is_shared
        self._next_sweep = context.clock() + sweep_seconds
        self._kept: Recency[str, Binding] = Recency()
        self._unpublished: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def name_of(self, chosen: str) -> str | None:
        """Return the name that an id is bound to, or None if it is unbound or expired."""
        binding = self._kept.get(kept_id(chosen))
        return None if binding is None or self._clock() - binding.bound_at > self._ttl else binding.name

    def bind(self, chosen: str, name: str) -> int:
        """Bind an id, or renew its binding; returns the number of bindings that were evicted."""
        now, key = self._clock(), kept_id(chosen)
        if now >= self._next_sweep:
            self._next_sweep = now + self._sweep_every
            self._kept.expire(lambda binding: now - binding.bound_at > self._ttl)
        self._kept.use(key, Binding(name, now))
        if self._is_shared:
            self._unpublished[key] = None
        return len(self._kept.trim(self._most))

    def merge(self, bindings: Mapping[str, tuple[str, float]]) -> None:
        """Merge bindings of other pickers, given as name and age in seconds by `kept_id`, oldest first.

        The later binding of an id wins. If both were made within a second, the greater name wins, so that all pickers agree.
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
        """Return all ids, least recently bound first."""
        return list(self._kept)

    def ages(self, keys: Iterable[str]) -> dict[str, tuple[str, float]]:
        """Return name and age in seconds of those ids that are still bound."""
        now, kept = self._clock(), self._kept
        return {key: (kept[key].name, now - kept[key].bound_at) for key in keys if key in kept}

    def unpublished(self) -> dict[str, tuple[str, float]]:
        """Return name and age in seconds of the ids that were bound since the last call."""
        keys, self._unpublished = self._unpublished, {}
        return self.ages(keys)


class LearntBindings(LearntState):
    """Shares bindings with other pickers, and keeps them across restarts."""

    _bindings: Bindings

    def snapshot(self) -> Iterable[bytes]:
        keys = self._bindings.keys()
        for start in range(0, len(keys), _IN_PART):
            yield _encode(self._bindings.ages(keys[start : start + _IN_PART]))

    def restore(self, part: bytes) -> None:
        self._bindings.merge(_read(part))

    def drain_deltas(self) -> bytes:
        unpublished = self._bindings.unpublished()
        return _encode(unpublished) if unpublished else b""

    def apply(self, deltas: bytes, origin: str) -> None:
        self._bindings.merge(_read(deltas))
