"""Translates one engine's KV events into block keys and applies them to the index."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from endpick_kv_events.block_index import BlockKeys, TierIndex, Tokens
from endpick_kv_events.messages import BlocksRemoved, BlocksStored, KvEvent

FULL_ATTENTION = frozenset({"", "full_attention", "mla_attention", "sink_full_attention"})
RECENT_BLOCKS = 32_768
MAX_PLACES = 64  # tiers of cache groups, and excluded groups
_DROPPED_SHARE = 16
_MAX_CHILDREN = 64  # that complete a partial block differently


@dataclass(slots=True)
class Applied:
    """Changed blocks, and ignored events by cache kind and reason."""

    admitted: int = 0
    evicted: int = 0
    suppressed: int = 0
    dropped: int = 0
    skipped_stores: Counter[tuple[str, str]] = field(default_factory=Counter)
    skipped_removals: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _PartialBlock:
    """The beginning of one of our blocks, after a key."""

    key: int
    tokens: Tokens
    extras: tuple[str, ...] = ()
    hashes: tuple[int, ...] = ()


class EngineBlocks:
    """The blocks that one engine reports.

    Our block is held when all engine blocks that it overlaps are: block sizes may differ. A block that an engine stored several times in
    one tier and group stays until it was removed as often.
    """

    def __init__(self, index: TierIndex, slot: int, keys: BlockKeys, capacity: int) -> None:
        self._index, self._slot, self._block_keys, self._capacity = index, slot, keys, capacity
        self._keys: dict[int, tuple[int, ...]] = {}  # ours by the engine's, oldest first
        self._size = 0
        self._partial: dict[int, _PartialBlock] = {}
        self._copies: dict[tuple[str, int], dict[int, int]] = {}
        self._excluded: dict[int, str] = {}
        self._recent: OrderedDict[int, int] = OrderedDict()  # when keys were last stored
        self.stores = 0

    def __len__(self) -> int:
        return self._size

    def apply(self, events: Iterable[KvEvent], model: str) -> Applied:
        """Apply events in order; blocks without an adapter belong to `model`."""
        applied = Applied()
        for event in events:
            if isinstance(event, BlocksStored):
                self._store(event, event.adapter or model, applied)
            elif isinstance(event, BlocksRemoved):
                self._remove(event, applied)
            else:
                applied.evicted += len(self._keys)
                self.clear()
        if self._size > self._capacity:
            applied.dropped = self._drop_to(self._capacity - self._capacity // _DROPPED_SHARE)
        return applied

    def clear(self) -> None:
        self._drop_to(0)
        self._keys.clear()  # a dictionary is searched through the places of what it lost
        for copies in self._copies.values():
            copies.clear()

    def disprove(self, keys: Iterable[int], since: int) -> int:
        """Forget blocks that the engine does not hold, unless stored after `since`; returns the count."""
        if self.stores - since > RECENT_BLOCKS:
            return 0
        wrong = [key for key in keys if self._recent.get(key, -1) < since]
        self._index.discard_everywhere(self._slot, wrong)
        return len(wrong)

    def _store(self, event: BlocksStored, model: str, applied: Applied) -> None:
        kind = event.cache_kind or "unknown"
        if event.cache_kind not in FULL_ATTENTION:
            if len(self._excluded) < MAX_PLACES or event.group in self._excluded:
                self._excluded[event.group] = event.cache_kind
            applied.skipped_stores[kind, "cache-kind"] += 1
        elif len(self._copies) >= MAX_PLACES and (event.tier, event.group) not in self._copies:
            applied.skipped_stores[kind, "too-many-tiers"] += 1
        elif not len(event.tokens):
            known = [engine_hash for engine_hash in event.hashes if engine_hash in self._keys]
            if not known:
                applied.skipped_stores[kind, "no-tokens"] += 1
            self._place(event, known, applied)
        elif event.parent is not None and event.parent not in self._keys:
            applied.skipped_stores[kind, "unknown-parent"] += 1
        else:
            self._map(event, model)
            self._place(event, event.hashes, applied)

    def _map(self, event: BlocksStored, model: str) -> None:
        start = self._beginning(event, model)
        ours, theirs = self._block_keys.block_size_tokens, event.block_size
        if ours == theirs and not start.hashes:
            for engine_hash, key in zip(event.hashes, self._block_keys.walk(start.key, event.tokens, event.extras), strict=True):
                self._assign(engine_hash, (key,))
            return
        tokens = np.concatenate((start.tokens, event.tokens))
        spans = [(begin, begin + theirs) for begin in range(len(start.tokens), len(tokens), theirs)]
        extras = _realigned(start, event, spans, ours, len(tokens))
        chain = self._block_keys.chain(start.key, tokens, extras[: len(tokens) // ours])
        if chain:
            for engine_hash in start.hashes:
                keys = self._keys.get(engine_hash)
                if keys is None or len(keys) > theirs // ours + _MAX_CHILDREN or chain[0] in keys:
                    continue
                self._assign(engine_hash, (*keys, chain[0]))
                if engine_hash in self._copies.get((event.tier, event.group), {}):
                    self._index.add(self._slot, event.tier, chain[:1])
        for position, (engine_hash, (begin, end)) in enumerate(zip(event.hashes, spans, strict=True)):
            self._assign(engine_hash, tuple(chain[begin // ours : -(-end // ours)]))
            full, rest = divmod(end, ours)
            if rest:
                first = max(0, (full * ours - len(start.tokens)) // theirs)
                inside = event.hashes[first : position + 1]
                before = start.hashes if not full else ()
                key = chain[full - 1] if full else start.key
                # A view would keep the tokens of the whole event.
                self._partial[engine_hash] = _PartialBlock(key, tokens[full * ours : end].copy(), extras[full], (*before, *inside))

    def _beginning(self, event: BlocksStored, model: str) -> _PartialBlock:
        if event.parent is None:
            return _PartialBlock(self._block_keys.root(model), event.tokens[:0])
        return self._partial.get(event.parent) or _PartialBlock(self._keys[event.parent][-1], event.tokens[:0])

    def _assign(self, engine_hash: int, keys: tuple[int, ...]) -> None:
        before = self._keys.get(engine_hash)
        self._size += max(1, len(keys)) - (0 if before is None else max(1, len(before)))
        self._keys[engine_hash] = keys

    def _place(self, event: BlocksStored, hashes: Sequence[int], applied: Applied) -> None:
        copies = self._copies.setdefault((event.tier, event.group), {})
        stored: list[int] = []
        for engine_hash in hashes:
            copies[engine_hash] = copies.get(engine_hash, 0) + 1
            stored += self._keys[engine_hash]
        applied.admitted += len(hashes)
        self._index.add(self._slot, event.tier, stored)
        for key in stored:
            self._recent[key] = self.stores
            self._recent.move_to_end(key)
            self.stores += 1
        while len(self._recent) > RECENT_BLOCKS:
            self._recent.popitem(last=False)

    def _remove(self, event: BlocksRemoved, applied: Applied) -> None:
        copies = self._copies.get((event.tier, event.group), {})
        for engine_hash in event.hashes:
            count = copies.get(engine_hash)
            if count is None:
                kind = self._excluded.get(event.group, "")
                applied.skipped_removals[kind or "unknown", "cache-kind" if kind else "unknown-block"] += 1
            elif count > 1:
                copies[engine_hash] = count - 1
                applied.suppressed += 1
            else:
                del copies[engine_hash]
                applied.evicted += 1
                self._leave(engine_hash, event.tier)

    def _leave(self, engine_hash: int, tier: str) -> None:
        tiers = [other for (other, _), copies in self._copies.items() if engine_hash in copies]
        if tier not in tiers:
            self._index.discard(self._slot, tier, self._keys[engine_hash])
        if not tiers:
            self._forget(engine_hash)

    def _drop_to(self, size: int) -> int:
        dropped = 0
        while self._size > size:
            for engine_hash in list(islice(self._keys, self._size - size)):
                if self._size <= size:
                    break
                for (tier, _), copies in self._copies.items():
                    if copies.pop(engine_hash, 0):
                        self._index.discard(self._slot, tier, self._keys[engine_hash])
                self._forget(engine_hash)
                dropped += 1
        return dropped

    def _forget(self, engine_hash: int) -> None:
        self._partial.pop(engine_hash, None)
        self._size -= max(1, len(self._keys.pop(engine_hash)))


def _realigned(
    start: _PartialBlock, event: BlocksStored, spans: Sequence[tuple[int, int]], ours: int, length: int
) -> list[tuple[str, ...]]:
    found: list[dict[str, None]] = [{} for _ in range(-(-length // ours) + 1)]
    found[0].update(dict.fromkeys(start.extras))
    for extras, (begin, end) in zip(event.extras, spans, strict=False):
        for number in range(begin // ours, -(-end // ours)):
            found[number].update(dict.fromkeys(extras))
    return [tuple(block) for block in found]
