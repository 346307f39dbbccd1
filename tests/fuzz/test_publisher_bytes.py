"""Arbitrary payloads of KV-event publishers."""

from __future__ import annotations

from contextlib import suppress

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from endpick_kv_events.block_index import BlockKeys, HashAlgorithm, TierIndex
from endpick_kv_events.engine_blocks import EngineBlocks
from endpick_kv_events.messages import decode
from fuzz.bounds import mixed

PIECES = mixed(
    msgspec.msgpack.encode([1.0, [["BlockStored", [1, 2], None, [1, 2], 1, None, "GPU"]], 0]),
    msgspec.msgpack.encode([1.0, [{"type": "BlockRemoved", "block_hashes": [1]}], 0]),
    msgspec.msgpack.encode(["AllBlocksCleared"]),
)
HASHES = st.lists(st.integers(0, 5), max_size=4)
EVENTS = st.one_of(
    st.tuples(st.just("BlockStored"), HASHES, st.none() | st.integers(0, 5), st.lists(st.integers(0, 3), max_size=8), st.integers(0, 4)),
    st.tuples(st.just("BlockRemoved"), HASHES, st.sampled_from(["cpu", "gpu", None]), st.integers(0, 1)),
    st.just(("AllBlocksCleared",)),
)


@given(PIECES)
def test_any_payload_is_decoded_or_refused(payload):
    with suppress(msgspec.DecodeError, RecursionError):
        decode(payload)


@given(st.lists(EVENTS, max_size=12))
def test_any_events_can_be_applied_and_cleared(events):
    index = TierIndex({})
    blocks = EngineBlocks(index, index.slot("a"), BlockKeys(2, HashAlgorithm.XXH64), 6)
    blocks.apply(decode(msgspec.msgpack.encode([1.0, events])).events, "m")
    assert len(blocks) <= 6
    blocks.clear()
    assert (len(blocks), index.size) == (0, 0)
