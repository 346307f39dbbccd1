"""The blocks of one engine, by the engine's own hashes: what each event means for the index."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from endpick_builtin.producers.precise.block_keys import BlockKeys, Tokens
from endpick_builtin.producers.precise.kv_events import AllBlocksCleared, BlocksRemoved, BlocksStored, KvEvent
from endpick_builtin.producers.precise.tier_index import TierIndex

FULL_ATTENTION = frozenset({"", "full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of cache that a whole prefix can be found in; those of sliding windows and of states hold parts of it only."""
_DROPPED_AT_ONCE = 16
MAX_RESTORED = 100_000
OVER_TIERS = "tier"
"""Why a store was skipped: its tier is one too many."""
_MOST_GROUPS = 64
"""Of caches, in all tiers together; an engine has some. Each costs a look for each block that leaves."""
_BLOCKS_PER_STEP = 64
"""Their keys take some 10 µs each."""
_PLACED_PER_STEP = 512
"""Blocks that are put into the index, or taken out of it."""
_LISTED_AT_ONCE = 65_536
"""Blocks to be dropped; an engine may hold millions, and a list of all of them takes a tenth of a second."""


@dataclass(slots=True)
class Applied:
    """What became of events; counts.

    Attributes:
        admitted: Blocks that were stored.
        evicted: Blocks that were removed.
        suppressed: Blocks whose removal left them stored once more.
        dropped: Blocks forgotten because there were too many.
        skipped_stores, skipped_removals: Events, by kind of cache and reason.
    """

    admitted: int = 0
    evicted: int = 0
    suppressed: int = 0
    dropped: int = 0
    skipped_stores: dict[tuple[str, str], int] | None = None
    skipped_removals: dict[tuple[str, str], int] | None = None

    def skip_store(self, kind: str, reason: str) -> None:
        """A store that the index can do nothing with."""
        self.skipped_stores = _counted(self.skipped_stores, (kind or "unknown", reason))

    def skip_removal(self, kind: str, reason: str) -> None:
        """A removal of blocks that the index does not have."""
        self.skipped_removals = _counted(self.skipped_removals, (kind or "unknown", reason))


def _counted(counts: dict[tuple[str, str], int] | None, key: tuple[str, str]) -> dict[tuple[str, str], int]:
    counts = {} if counts is None else counts
    counts[key] = counts.get(key, 0) + 1
    return counts


@dataclass(frozen=True, slots=True)
class _Open:
    """Where an engine's block ends inside one of ours: what has come of ours so far."""

    key: int
    tokens: Tokens
    extras: tuple[str, ...]
    hashes: tuple[int, ...]


class EngineBlocks:
    """What one engine says that it holds.

    A block may be stored several times in one tier and group: it is there until it was removed as often. Engines and picker may cut
    prompts differently: a block of the picker is held when all of the engine's blocks that it consists of are.

    One message may speak of tens of thousands of blocks: events are followed in steps, between which everything else has its turn.
    """

    def __init__(self, index: TierIndex, name: str, keys: BlockKeys, capacity: int, max_restored: int = MAX_RESTORED) -> None:
        """`capacity`: blocks to remember; beyond it the oldest are dropped, some at once. `max_restored` of them are while watched."""
        self._index, self._name, self._slot, self._block_keys, self._capacity = index, name, index.slot(name), keys, capacity
        self._keys: dict[int, tuple[int, ...]] = {}
        self._size = 0
        """Of our blocks in `_keys`, or of the engine's where these are smaller."""
        self._open: dict[int, _Open] = {}
        self._places: dict[tuple[str, int], dict[int, int]] = {}
        self._excluded: dict[int, str] = {}
        self._watchers, self._max_restored = 0, max_restored
        self._restored: set[int] | None = None

    def __len__(self) -> int:
        return self._size

    def apply(self, events: Iterable[KvEvent | None], model: str) -> Applied:
        """As `steps`, at once; what became of the events."""
        applied = Applied()
        for _ in self.steps(events, model, applied):
            pass
        return applied

    def steps(self, events: Iterable[KvEvent | None], model: str, applied: Applied) -> Iterator[None]:
        """Follow the events of one message, of which None stands for nothing, and count in `applied` what becomes of them.

        `model` is that of blocks without an adapter.
        """
        for event in events:
            if isinstance(event, BlocksStored):
                yield from self._store(event, event.adapter or model, applied)
            elif isinstance(event, BlocksRemoved):
                yield from self._remove(event, applied)
            elif isinstance(event, AllBlocksCleared):
                before = len(self._keys)
                yield from self.clearing()
                applied.evicted += before
            yield
        if self._size > self._capacity:
            before = len(self._keys)
            yield from self._drop_to(self._capacity - self._capacity // _DROPPED_AT_ONCE)
            applied.dropped += before - len(self._keys)

    def leaving(self) -> Iterator[None]:
        """The endpoint has left. What it held is forgotten in steps, and no other endpoint gets its slot before the last of them."""
        self._index.retire(self._name)
        return self._forgetting()

    def _forgetting(self) -> Iterator[None]:
        yield from self.clearing()
        self._index.free(self._slot)

    def clearing(self) -> Iterator[None]:
        """Nothing is held, after steps."""
        yield from self._drop_to(0)
        self._places = {group: place for group, place in self._places.items() if place}

    def forget_oldest(self, count: int) -> None:
        """Forget so many, those that have been known for longest."""
        for engine_hash in list(islice(self._keys, count)):
            self._drop(engine_hash)

    def watch(self) -> None:
        """From now on remember which blocks are stored, until as many calls of `unwatch`."""
        self._watchers += 1
        if self._restored is None:
            self._restored = set()

    def unwatch(self) -> None:
        """The end of a `watch`."""
        self._watchers -= 1
        if not self._watchers:
            self._restored = None

    @property
    def is_overlooked(self) -> bool:
        """Whether more was stored while it was watched than is remembered: then nothing can be disproved."""
        return self._restored is not None and len(self._restored) >= self._max_restored

    def disprove(self, keys: Iterable[int]) -> int:
        """Forget blocks that the engine turned out not to hold, except those that it has stored while watched; how many."""
        if self._restored is None or self.is_overlooked:
            return 0
        wrong = [key for key in keys if key not in self._restored]
        self._index.discard_everywhere(self._slot, wrong)
        return len(wrong)

    def _store(self, event: BlocksStored, model: str, applied: Applied) -> Iterator[None]:
        if event.cache_kind not in FULL_ATTENTION:
            if len(self._excluded) < _MOST_GROUPS or event.group in self._excluded:
                self._excluded[event.group] = event.cache_kind
            applied.skip_store(event.cache_kind, "cache-kind")
        elif not self._index.admits(event.tier):
            applied.skip_store(event.cache_kind, OVER_TIERS)
        elif len(self._places) >= _MOST_GROUPS and (event.tier, event.group) not in self._places:
            applied.skip_store(event.cache_kind, "group")
        elif not len(event.tokens):
            known = [engine_hash for engine_hash in event.hashes if engine_hash in self._keys]
            if not known:
                applied.skip_store(event.cache_kind, "no-tokens")
            yield from self._place(event, known, applied)
        elif event.parent is not None and event.parent not in self._keys:
            applied.skip_store(event.cache_kind, "unknown-parent")
        else:
            yield from self._map(event, model)
            yield from self._place(event, event.hashes, applied)

    def _assign(self, engine_hash: int, keys: tuple[int, ...]) -> None:
        before = self._keys.get(engine_hash)
        self._size += max(1, len(keys)) - (0 if before is None else max(1, len(before)))
        self._keys[engine_hash] = keys

    def _chain(self, parent: int, tokens: Tokens, extras: Sequence[tuple[str, ...]]) -> Generator[None, None, list[int]]:
        chain: list[int] = []
        for key in self._block_keys.walk(parent, tokens, extras):
            chain.append(key)
            if not len(chain) % _BLOCKS_PER_STEP:
                yield
        return chain

    def _map(self, event: BlocksStored, model: str) -> Iterator[None]:
        """Find our blocks for the engine's."""
        start = self._beginning(event, model)
        ours, theirs = self._block_keys.block_size_tokens, event.block_size
        if ours == theirs and not start.hashes:
            chain = yield from self._chain(start.key, event.tokens, event.extras)
            for position, (engine_hash, key) in enumerate(zip(event.hashes, chain, strict=True), 1):
                self._assign(engine_hash, (key,))
                if not position % _PLACED_PER_STEP:
                    yield
            return
        tokens = np.concatenate((start.tokens, event.tokens))
        spans = _spans(len(start.tokens), theirs, len(event.hashes))
        extras = _realigned(start, event, spans, ours, len(tokens))
        chain = yield from self._chain(start.key, tokens, extras[: len(tokens) // ours])
        if chain:
            for engine_hash in start.hashes:
                self._assign(engine_hash, (*self._keys.get(engine_hash, ()), chain[0]))
                self._index_completed(event, engine_hash)
        for position, (engine_hash, (begin, end)) in enumerate(zip(event.hashes, spans, strict=True)):
            self._assign(engine_hash, tuple(chain[begin // ours : -(-end // ours)]))
            full, rest = divmod(end, ours)
            if rest:
                first = max(0, (full * ours - len(start.tokens)) // theirs)
                inside = event.hashes[first : position + 1]
                before = start.hashes if not full else ()
                key = chain[full - 1] if full else start.key
                # A copy: a view would keep the tokens of the whole event.
                self._open[engine_hash] = _Open(key, tokens[full * ours : end].copy(), extras[full], (*before, *inside))
            if not position % _PLACED_PER_STEP:
                yield

    def _index_completed(self, event: BlocksStored, engine_hash: int) -> None:
        """A block that an earlier event had begun is complete now."""
        if engine_hash in self._places.get((event.tier, event.group), {}):
            self._index.add(self._slot, event.tier, self._keys[engine_hash])

    def _beginning(self, event: BlocksStored, model: str) -> _Open:
        """What comes before the event's first token."""
        nothing = event.tokens[:0]
        if event.parent is None:
            return _Open(self._block_keys.root(model), nothing, (), ())
        begun = self._open.get(event.parent)
        return begun or _Open(self._keys[event.parent][-1], nothing, (), ())

    def _place(self, event: BlocksStored, hashes: Sequence[int], applied: Applied) -> Iterator[None]:
        place = self._places.setdefault((event.tier, event.group), {})
        stored: list[int] = []
        for position, engine_hash in enumerate(hashes, 1):
            keys = self._keys.get(engine_hash)
            if keys is not None:  # since it was mapped, memory may have got short and the block been forgotten
                place[engine_hash] = place.get(engine_hash, 0) + 1
                stored += keys
                applied.admitted += 1
            if len(stored) >= _PLACED_PER_STEP or not position % _PLACED_PER_STEP:
                self._index_stored(event.tier, stored)
                stored = []
                yield
        self._index_stored(event.tier, stored)

    def _index_stored(self, tier: str, stored: Sequence[int]) -> None:
        self._index.add(self._slot, tier, stored)
        if self._restored is not None and len(self._restored) < self._max_restored:
            self._restored.update(stored)

    def _remove(self, event: BlocksRemoved, applied: Applied) -> Iterator[None]:
        place = self._places.get((event.tier, event.group), {})
        removed = 0
        for engine_hash in event.hashes:
            removed += max(1, len(self._keys.get(engine_hash, ())))
            if removed >= _PLACED_PER_STEP:
                removed = 0
                yield
            count = place.get(engine_hash)
            if count is None:
                kind = self._excluded.get(event.group, "")
                applied.skip_removal(kind, "cache-kind" if kind else "unknown-block")
            elif count > 1:
                place[engine_hash] = count - 1
                applied.suppressed += 1
            else:
                del place[engine_hash]
                applied.evicted += 1
                self._leave(engine_hash, event.tier)

    def _leave(self, engine_hash: int, tier: str) -> None:
        """The block has left one place; it may be in others."""
        places = [other for (other, _), place in self._places.items() if engine_hash in place]
        if tier not in places:
            self._index.discard(self._slot, tier, self._keys[engine_hash])
        if not places:
            self._forget(engine_hash)

    def _drop_to(self, size: int) -> Iterator[None]:
        """Forget the oldest until no more than `size` is held, or what there was at the beginning has gone."""
        began_with, left = self._size, self._size - size
        while left > 0:
            oldest = list(islice(self._keys, min(left, _LISTED_AT_ONCE)))
            left -= len(oldest) or left
            for engine_hash in oldest:
                if self._size <= size:
                    return
                if began_with - self._size >= _PLACED_PER_STEP:
                    yield
                    began_with = self._size
                self._drop(engine_hash)

    def _drop(self, engine_hash: int) -> None:
        keys = self._keys.get(engine_hash, ())
        for (tier, _), place in self._places.items():
            if place.pop(engine_hash, 0):
                self._index.discard(self._slot, tier, keys)
        self._forget(engine_hash)

    def _forget(self, engine_hash: int) -> None:
        self._open.pop(engine_hash, None)
        keys = self._keys.pop(engine_hash, None)
        if keys is not None:
            self._size -= max(1, len(keys))


def _spans(offset: int, size: int, count: int) -> list[tuple[int, int]]:
    """From which token to which each block reaches."""
    return [(offset + number * size, offset + (number + 1) * size) for number in range(count)]


def _realigned(start: _Open, event: BlocksStored, spans: list[tuple[int, int]], ours: int, length: int) -> list[tuple[str, ...]]:
    """Extras of each of our blocks, the incomplete last one included: those of every block of the engine that it overlaps."""
    found: list[dict[str, None]] = [{} for _ in range(-(-length // ours) + 1)]
    found[0].update(dict.fromkeys(start.extras))
    for extras, (begin, end) in zip(event.extras, spans, strict=False):
        for number in range(begin // ours, -(-end // ours)):
            found[number].update(dict.fromkeys(extras))
    return [tuple(one) for one in found]
