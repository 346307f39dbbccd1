"""The KV cache: sharing, eviction order, and that nothing leaks."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from endpick_lab.caches import BlockPool


def filled(pool: BlockPool, hashes: list[int]) -> list[int]:
    shared = pool.match(hashes)
    blocks = pool.claim(shared, len(hashes) - len(shared))
    assert blocks is not None
    for block, chained in zip(blocks, hashes, strict=True):
        pool.publish(block, chained)
    return blocks


def test_released_prefix_is_found_as_far_as_it_matches():
    pool = BlockPool(4)
    blocks = filled(pool, [1, 2])
    pool.release(blocks)
    assert pool.in_use == 0
    assert pool.match([1, 2, 3]) == blocks
    assert pool.match([9, 1]) == []


def test_shared_block_is_in_use_until_its_last_release():
    pool = BlockPool(4)
    first = filled(pool, [1, 2])
    second = filled(pool, [1, 2])
    assert first == second
    assert pool.in_use == 2
    pool.release(first)
    assert pool.in_use == 2
    pool.release(second)
    assert pool.in_use == 0


def test_the_tail_of_the_prefix_idle_longest_is_evicted_first():
    pool = BlockPool(4)
    pool.release(filled(pool, [1, 2]))
    pool.release(filled(pool, [8, 9]))
    assert pool.claim((), 1) is not None
    assert len(pool.match([1, 2])) == 1
    assert len(pool.match([8, 9])) == 2


def test_block_without_hash_is_evicted_first():
    pool = BlockPool(2)
    cached = filled(pool, [1])
    private = pool.claim((), 1)
    assert private is not None
    pool.release(cached)
    pool.release(private)
    assert pool.claim((), 1) == private
    assert pool.match([1]) == cached


def test_a_claim_that_does_not_fit_changes_nothing():
    pool = BlockPool(3)
    pool.release(filled(pool, [1, 2]))
    shared = pool.match([1, 2])
    assert pool.claim(shared, 2) is None
    assert pool.in_use == 0
    assert pool.claim(shared, 1) is not None
    assert pool.in_use == 3


class Holders(RuleBasedStateMachine):
    """Sequences of few distinct prefixes come and go in a pool too small for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12)
        self.held: list[list[int]] = []

    @rule(family=st.integers(0, 3), shared_length=st.integers(0, 5), private=st.integers(0, 3))
    def claim(self, family: int, shared_length: int, private: int) -> None:
        hashes = [family * 100 + position for position in range(shared_length)]
        shared = self.pool.match(hashes)
        free = self.pool.capacity - self.pool.in_use
        before = self.pool.in_use
        blocks = self.pool.claim(shared, shared_length - len(shared) + private)
        if blocks is None:
            assert self.pool.in_use == before
            assert shared_length + private > free
            return
        assert len(blocks) == shared_length + private
        assert len(set(blocks)) == len(blocks)
        assert blocks[: len(shared)] == shared
        for block, chained in zip(blocks, hashes, strict=False):
            self.pool.publish(block, chained)
        self.held.append(blocks)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.held:
            self.pool.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def blocks_in_use_are_exactly_those_held(self) -> None:
        assert self.pool.in_use == len({block for blocks in self.held for block in blocks})

    @invariant()
    def the_index_never_holds_more_than_the_pool(self) -> None:
        assert self.pool.cached <= self.pool.capacity


TestHolders = Holders.TestCase
