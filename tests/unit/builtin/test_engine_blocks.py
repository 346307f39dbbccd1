"""One engine's events applied to the index."""

from __future__ import annotations

import msgspec
import pytest

from endpick_kv_events import engine_blocks
from endpick_kv_events.block_index import BlockKeys, HashAlgorithm, TierIndex
from endpick_kv_events.engine_blocks import EngineBlocks
from endpick_kv_events.messages import decode
from unit.builtin.kv_publisher import CLEARED, removed

KEYS = BlockKeys(16, HashAlgorithm.XXH64)


def engine(capacity=100_000):
    index = TierIndex({})
    return index, EngineBlocks(index, index.slot("a"), KEYS, capacity)


def stored(hashes, size, parent=None, **more):
    hashes = list(hashes)
    tokens = [one % 1000 for one in range(len(hashes) * size)]
    return {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens, "block_size": size, **more}


def events(*documents):
    return decode(msgspec.msgpack.encode([1.0, documents])).events


@pytest.mark.parametrize("size", [1, 16, 48])
@pytest.mark.parametrize("end", [lambda count: removed(*range(count)), lambda count: CLEARED], ids=["removed", "cleared"])
def test_engine_blocks_of_any_size_come_and_go(size, end):
    index, blocks = engine()
    count = 16 * 96 // size
    blocks.apply(events(stored(range(count), size)), "m")
    assert index.size == 96
    blocks.apply(events(end(count)), "m")
    assert (index.size, len(blocks)) == (0, 0)


def test_small_engine_blocks_are_found_like_large_ones():
    (one, small), (other, large) = engine(), engine()
    small.apply(events(stored(range(40), 1)), "m")
    small.apply(events({**stored(range(40, 64), 1, parent=39), "token_ids": list(range(40, 64))}), "m")
    large.apply(events(stored(range(4), 16)), "m")
    assert one._holders == other._holders


def test_capacity_counts_our_blocks_and_drops_the_oldest():
    index, blocks = engine(capacity=1000)
    dropped = 0
    for number in range(20):
        dropped += blocks.apply(events(stored([number], 16 * 100, extra_keys=[[str(number)]])), "m").dropped
        assert len(blocks) == index.size <= 1000
    assert index.size >= 800
    assert len(blocks._keys) + dropped == 20
    assert 19 in blocks._keys


def test_a_partial_block_keeps_only_its_own_tokens():
    _, blocks = engine()
    blocks.apply(events(stored([1], 16 * 500 + 3)), "m")
    (partial,) = blocks._partial.values()
    assert partial.tokens.base is None
    assert len(partial.tokens) == 3


@pytest.mark.parametrize(("recent", "disproved"), [(3, 0), (100, 2)])
def test_disprove_keeps_what_was_stored_since(monkeypatch, recent, disproved):
    monkeypatch.setattr(engine_blocks, "RECENT_BLOCKS", recent)
    index, blocks = engine()
    blocks.apply(events(stored(range(4), 16)), "m")
    since, keys = blocks.stores, KEYS.chain(KEYS.root("m"), events(stored(range(4), 16))[0].tokens)
    blocks.apply(events(stored(range(2), 16), stored(range(2), 16)), "m")
    assert blocks.disprove(keys, since) == disproved
    assert index.size == 4 - disproved
