"""What one engine says that it holds, followed in steps: none of them long, whatever a message says, and no more kept than is counted."""

from __future__ import annotations

from itertools import pairwise

import pytest

from endpick_builtin.producers.precise import kv_stream
from endpick_builtin.producers.precise.block_keys import BlockKeys, HashAlgorithm
from endpick_builtin.producers.precise.engine_blocks import Applied, EngineBlocks
from endpick_builtin.producers.precise.kv_events import Batch, read_batch
from endpick_builtin.producers.precise.kv_stream import KvStream, Message, Room
from endpick_builtin.producers.precise.limits import MANY_HELD, MUCH_HELD
from endpick_builtin.producers.precise.tier_index import TierIndex
from unit.builtin.kv_publisher import CLEARED, removed

KEYS = BlockKeys(16, HashAlgorithm.XXH64)
MANY = 4096


def engine(capacity=100_000):
    index = TierIndex({})
    return index, EngineBlocks(index, "a", KEYS, capacity)


def stored(hashes, size, parent=None, **more):
    hashes = list(hashes)
    tokens = [one % 1000 for one in range(len(hashes) * size)]
    return {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens, "block_size": size, **more}


def events(*documents):
    return read_batch([1.0, list(documents)]).events


class Hash(int):
    """Counts how often hashes are compared."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other):
        Hash.compared += 1
        return int(self) == int(other)


def test_blocks_of_one_token_are_found_as_larger_ones_are_and_in_a_time_that_grows_with_their_number():
    index, blocks = engine()
    small = events(stored(range(MANY), 1))
    object.__setattr__(small[0], "hashes", tuple(map(Hash, small[0].hashes)))
    blocks.apply(small, "m")
    compared, Hash.compared = Hash.compared, 0
    other, large = engine()
    large.apply(events(stored(range(MANY // 16), 16)), "m")

    assert index._holders == other._holders
    assert len(index._holders["gpu"]) == MANY // 16
    assert compared < 10 * MANY

    blocks.apply(events(stored([MANY + 1], 1, parent=MANY - 1), removed(*range(MANY), MANY + 1)), "m")
    assert (index.size, len(blocks)) == (0, 0)


@pytest.mark.parametrize("size", [1, 16, 48, 16 * 300])
@pytest.mark.parametrize("last", [lambda count: removed(*range(count)), lambda count: CLEARED], ids=["removed", "cleared"])
def test_a_message_of_many_blocks_is_followed_in_many_steps(size, last):
    index, blocks = engine()
    count = 16 * 4096 // size
    sizes = [index.size for _ in blocks.steps(events(stored(range(count), size), last(count)), "m", Applied())]

    assert max(sizes) >= 3900
    assert max(abs(after - before) for before, after in pairwise([0, *sizes])) <= 1024
    assert len(sizes) >= 8
    assert (index.size, len(blocks)) == (0, 0)


def test_a_block_of_an_engine_counts_for_all_of_ours_that_are_in_it():
    index, blocks = engine(capacity=1000)
    for number in range(20):
        blocks.apply(events(stored([number], 16 * 100, extra_keys=[[str(number)]])), "m")
        assert len(blocks) == index.size <= 1000
    assert index.size >= 800


def test_of_many_groups_of_caches_some_are_followed_and_the_others_counted():
    _, blocks = engine()
    told = blocks.apply(events(*(stored([group], 16, group_idx=group) for group in range(1000))), "m")
    assert len(blocks) == 64
    assert told.skipped_stores == {("unknown", "group"): 936}
    told = blocks.apply(events(*(stored([group], 16, group_idx=group, kv_cache_spec_kind="mamba") for group in range(1000))), "m")
    assert len(blocks._excluded) == 64
    assert told.skipped_stores == {("mamba", "cache-kind"): 1000}


def test_the_tokens_of_an_event_are_not_kept_for_the_few_that_fill_no_block():
    _, blocks = engine()
    blocks.apply(events(stored([1], 16 * 500 + 3)), "m")
    (begun,) = blocks._open.values()
    assert begun.tokens.base is None
    assert len(begun.tokens) == 3


def test_blocks_that_are_forgotten_while_they_are_stored_are_not_in_the_index():
    index, blocks = engine()
    steps = blocks.steps(events(stored(range(1024), 16)), "m", Applied())
    while len(blocks) < 1024:
        next(steps)
    blocks.forget_oldest(1000)
    for _ in steps:
        pass
    assert index.size == len(blocks) == 24


def stream_of(blocks, **more):
    told = []
    return KvStream(blocks, lambda number: True, told.append, lambda verdict: None, told.append, **more), told


def test_an_endpoint_that_leaves_in_the_middle_of_a_message_leaves_nothing_behind():
    index, blocks = engine()
    stream, told = stream_of(blocks)
    stream.message(Message(0, Batch(1.0, events(stored(range(4096), 16))), "m"))
    work = stream.work()
    while not index.size:
        next(work)
    stream.close()
    assert sum(1 for _ in work) < 20
    stream.message(Message(1, Batch(2.0, events(stored([1], 16))), "m"))
    assert (list(stream.work()), index.size, told) == ([], 0, [])


def test_of_an_endpoint_that_leaves_with_much_some_is_forgotten_in_each_step_and_its_slot_is_no_others_before():
    index, blocks = engine()
    blocks.apply(events(stored(range(MANY), 16)), "m")
    stream, _ = stream_of(blocks)
    stream.close()
    left, again = index.size, EngineBlocks(index, "a", KEYS, 100_000)
    again.apply(events(stored(range(3), 16)), "m")
    for _ in stream.work():
        assert left - index.size <= 512
        left = index.size
        assert index.slots("ab").tolist() == [1, 2]
    assert index.size == 3
    assert index.slots("c").tolist() == [0]


def test_messages_wait_as_far_as_there_is_room_for_all_publishers_together():
    room = Room(100)
    (one, told), (other, told_of_other) = (stream_of(engine()[1], room=room) for _ in range(2))
    for stream in (one, other):
        assert stream.begin_replay(0)
        stream.message(Message(5, Batch(1.0, ()), "m", 60))
    assert (told, told_of_other) == ([], [MUCH_HELD])
    one.replay_ended(complete=True)
    assert room.left == 100
    other.message(Message(6, Batch(1.0, ()), "m", 60))
    assert other.waiting == 1
    other.close()
    assert room.left == 100
    assert Room().left == kv_stream.MAX_HELD_BYTES


@pytest.mark.parametrize(("most", "dropped"), [(1, [MANY_HELD]), (2, [])])
def test_no_more_messages_of_a_publisher_wait_than_may(most, dropped):
    stream, told = stream_of(engine()[1], max_held=most)
    assert stream.begin_replay(0)
    for number in (5, 6):
        stream.message(Message(number, Batch(1.0, ()), "m", 60))
    assert told == dropped


@pytest.mark.parametrize(("most", "disproved"), [(4, 0), (5, 2)])
def test_what_is_wrong_is_known_while_no_more_blocks_are_stored_than_are_judged(most, disproved):
    blocks = EngineBlocks(TierIndex({}), "a", KEYS, 100, max_restored=most)
    blocks.watch()
    blocks.apply(events(stored(range(4), 16)), "m")
    assert blocks.is_overlooked == (not disproved)
    assert blocks.disprove([1, 2]) == disproved
