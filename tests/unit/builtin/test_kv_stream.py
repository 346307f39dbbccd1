"""Message order under loss, repetition and restarts: the stream against a model of the engine."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from endpick_kv_events.block_index import BlockKeys, HashAlgorithm, TierIndex
from endpick_kv_events.engine_blocks import EngineBlocks
from endpick_kv_events.messages import Batch, decode
from endpick_kv_events.stream import KvStream, Message, Verdict
from unit.builtin.kv_publisher import BLOCK, CLEARED, removed, stored

BLOCKS = st.integers(1, 6)


def events(*documents):
    return decode(msgspec.msgpack.encode([0.0, documents])).events


class StreamAgainstEngine(RuleBasedStateMachine):
    """An engine that publishes over a lossy network, with a replay port that keeps everything since its start."""

    def __init__(self):
        super().__init__()
        self.index = TierIndex({})
        self.blocks = EngineBlocks(self.index, self.index.slot("a"), BlockKeys(BLOCK, HashAlgorithm.XXH64), 100)
        self.asked: list[int] = []
        self.stream = KvStream(self.blocks, self.ask, lambda applied: None, lambda verdict: None)
        self.held: set[int] = set()
        self.kept: list[Message] = []
        self.time = 0.0
        self.delivered = True

    def ask(self, number):
        self.asked.append(number)
        return True

    def publish(self, *documents, lost):
        batch = events(*documents)
        self.time += 1.0
        message = Message(len(self.kept), Batch(self.time, batch), "m")
        self.kept.append(message)
        self.delivered = not lost
        if not lost:
            self.stream.published(message)

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
        self.stream.published(data.draw(st.sampled_from(self.kept[: self.stream.next_number] or self.kept[:1])))

    @precondition(lambda self: self.asked)
    @rule()
    def replay(self):
        first = self.asked.pop()
        for message in self.kept[first:]:
            self.stream.replayed(message)
        self.stream.replay_ended(complete=True)
        self.delivered = True

    @invariant()
    def nothing_is_wrong_once_all_has_arrived(self):
        if self.delivered and not self.asked and self.kept:
            assert set(self.blocks._keys) == self.held
            assert self.index.size == len(self.held)


TestStreamAgainstEngine = StreamAgainstEngine.TestCase
TestStreamAgainstEngine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_failed_replay_forgets_blocks_and_keeps_held_messages():
    index = TierIndex({})
    blocks = EngineBlocks(index, index.slot("a"), BlockKeys(BLOCK), 100)
    asked: list[int] = []
    stream = KvStream(blocks, lambda number: not asked.append(number), lambda applied: None, lambda verdict: None)
    batch = [Message(n, Batch(float(n), events(stored(n + 1))), "m") for n in range(6)]
    stream.published(batch[0])
    assert asked == []
    stream.published(batch[4])
    stream.published(batch[5])
    assert asked == [1]
    assert len(blocks) == 1
    stream.replay_ended(complete=False)
    assert set(blocks._keys) == {5, 6}


def test_an_empty_message_does_not_hide_a_restart():
    index = TierIndex({})
    blocks = EngineBlocks(index, index.slot("a"), BlockKeys(BLOCK), 100)
    verdicts: list[Verdict] = []
    stream = KvStream(blocks, lambda number: False, lambda applied: None, verdicts.append)
    stream.published(Message(4, Batch(10.0, events(stored(1))), "m"))
    stream.published(Message(5, Batch(float("-inf"), ()), "m"))
    stream.published(Message(4, Batch(10.0, events(stored(1))), "m"))
    stream.published(Message(0, Batch(11.0, events(stored(2))), "m"))
    assert verdicts == [Verdict.FIRST, Verdict.NEXT, Verdict.SEEN, Verdict.RESET]
    assert set(blocks._keys) == {2}
