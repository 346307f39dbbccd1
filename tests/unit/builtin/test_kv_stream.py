"""The order of messages, whatever is lost, repeated or restarted: the stream against what the engine holds."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from endpick_builtin.producers.precise.block_keys import BlockKeys, HashAlgorithm
from endpick_builtin.producers.precise.engine_blocks import EngineBlocks
from endpick_builtin.producers.precise.kv_events import Batch, read_batch
from endpick_builtin.producers.precise.kv_stream import KvStream, Message
from endpick_builtin.producers.precise.tier_index import TierIndex
from unit.builtin.kv_publisher import BLOCK, CLEARED, removed, stored

BLOCKS = st.integers(1, 6)


def followed(stream):
    """Do what there is to be done."""
    for _ in stream.work():
        pass


class StreamAgainstEngine(RuleBasedStateMachine):
    """An engine that publishes, a network that loses and repeats, and a replay port that has everything since the engine's start."""

    def __init__(self):
        super().__init__()
        self.index = TierIndex({})
        self.blocks = EngineBlocks(self.index, "a", BlockKeys(BLOCK, HashAlgorithm.XXH64), 100)
        self.asked: list[int] = []
        self.stream = KvStream(self.blocks, self.ask, lambda applied: None, lambda verdict: None, lambda limit: None)
        self.held: set[int] = set()
        self.kept: list[Message] = []
        self.time = 0.0
        self.delivered = True

    def ask(self, number):
        self.asked.append(number)
        return True

    def publish(self, *events, lost):
        self.time += 1.0
        message = Message(len(self.kept), Batch(self.time, read_batch([self.time, list(events)]).events), "m")
        self.kept.append(message)
        self.delivered = not lost
        if not lost:
            self.stream.message(message)
            followed(self.stream)

    @rule(block=BLOCKS, lost=st.booleans())
    def store(self, block, lost):
        if block not in self.held:
            self.held.add(block)
            self.publish(stored(block), lost=lost)

    @rule(block=BLOCKS, lost=st.booleans())
    def remove(self, block, lost):
        if block in self.held:
            self.held.discard(block)
            self.publish(removed(block), lost=lost)

    @rule(lost=st.booleans())
    def clear(self, lost):
        self.held.clear()
        self.publish(CLEARED, lost=lost)

    @rule(lost=st.booleans(), block=BLOCKS)
    def restart(self, lost, block):
        self.held, self.kept = {block}, []
        self.asked.clear()
        self.stream.replay_ended(complete=True)
        self.publish(stored(block), lost=False)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def repeat(self, data):
        self.stream.message(data.draw(st.sampled_from(self.kept[: self.stream.next_number] or self.kept[:1])))
        followed(self.stream)

    @precondition(lambda self: self.asked)
    @rule()
    def replay(self):
        first = self.asked.pop()
        for message in self.kept[first:]:
            self.stream.replayed(message)
        self.stream.replay_ended(complete=True)
        followed(self.stream)
        self.delivered = True

    @invariant()
    def nothing_is_wrong_once_all_has_arrived(self):
        if self.delivered and not self.asked and self.kept:
            assert set(self.blocks._keys) == self.held
            assert self.index.size == len(self.held)


TestStreamAgainstEngine = StreamAgainstEngine.TestCase
TestStreamAgainstEngine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_replay_that_fails_costs_what_was_known_and_keeps_what_came_meanwhile():
    index = TierIndex({})
    blocks = EngineBlocks(index, "a", BlockKeys(BLOCK), 100)
    asked: list[int] = []
    stream = KvStream(blocks, lambda number: not asked.append(number), lambda applied: None, lambda verdict: None, lambda limit: None)
    batch = [Message(n, Batch(float(n), read_batch([0.0, [stored(n + 1)]]).events), "m") for n in range(6)]
    stream.message(batch[0])
    assert asked == []
    stream.message(batch[4])
    stream.message(batch[5])
    followed(stream)
    assert asked == [1]
    assert len(blocks) == 1
    stream.replay_ended(complete=False)
    followed(stream)
    assert set(blocks._keys) == {5, 6}


def test_an_engine_with_too_many_blocks_loses_the_oldest():
    index = TierIndex({})
    blocks = EngineBlocks(index, "a", BlockKeys(BLOCK), 32)
    dropped = 0
    for number in range(100):
        dropped += blocks.apply(read_batch([0.0, [stored(number)]]).events, "m").dropped
        assert len(blocks) <= 32
    assert len(blocks) + dropped == 100
    assert 99 in blocks._keys
    assert index.size == len(blocks)
