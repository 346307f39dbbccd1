"""The prefix tree against a model: for each endpoint, prefixes in the order of their last use."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from endpick_builtin.producers.prefix_tree import PrefixTree


def prompt(*blocks):
    return b"".join(block.to_bytes(8, "big") for block in blocks)


def matches(tree, blocks, names):
    return tree.match(prompt(*blocks))[tree.slots(names)].tolist()


def known(*names):
    tree = PrefixTree()
    tree.slots(names)
    return tree


def test_a_match_ends_at_the_first_missing_block():
    tree = known("a", "b", "c")
    tree.insert("a", prompt(1, 2, 3), 100)
    tree.insert("b", prompt(1, 3), 100)
    assert matches(tree, [1, 2, 3, 4], "abc") == [3, 1, 0]
    assert matches(tree, [1, 2], "abc") == [2, 1, 0]
    assert matches(tree, [9, 1, 2], "abc") == [0, 0, 0]
    assert matches(tree, [], "abc") == [0, 0, 0]


def test_long_prompts_match_in_full():
    tree = known("a", "b")
    tree.insert("a", prompt(*range(1, 2049)), 31250)
    tree.insert("b", prompt(*range(1, 300)), 31250)
    assert matches(tree, range(1, 2049), "ab") == [2048, 299]


def test_the_oldest_prompt_makes_room_from_its_end():
    tree = known("a")
    tree.insert("a", prompt(1, 2, 3), 5)
    tree.insert("a", prompt(11, 12, 13), 5)
    assert matches(tree, [1, 2, 3], "a") == [2]
    tree.insert("a", prompt(1, 2), 5)
    tree.insert("a", prompt(21, 22), 5)
    assert matches(tree, [1, 2], "a") == [2]
    assert matches(tree, [11, 12, 13], "a") == [1]
    assert tree.entries == 5


def test_a_prompt_beyond_capacity_is_held_in_part():
    tree = known("a")
    tree.insert("a", prompt(1, 2, 3, 4, 5), 3)
    assert matches(tree, [1, 2, 3, 4, 5], "a") == [3]
    assert tree.entries == 3


def test_a_reused_slot_inherits_nothing():
    tree = known("a", "b")
    tree.insert("a", prompt(1, 2), 10)
    tree.insert("b", prompt(1), 10)
    tree.remove("a")
    tree.remove("unknown")
    assert tree.slots(["c"]).tolist() == [0]
    assert matches(tree, [1, 2], "bc") == [1, 0]
    tree.insert("a", prompt(1, 2), 10)
    assert tree.entries == 1


def test_many_endpoints_share_one_branch():
    names = [f"e{number}" for number in range(40)]
    tree = known(*names)
    for name in names:
        tree.insert(name, prompt(1, 2, 3), 10)
    for name in names[:20]:
        tree.insert(name, prompt(1, 2, 4), 10)
    assert matches(tree, [1, 2, 4], names) == [3] * 20 + [2] * 20


class TreeAgainstModel(RuleBasedStateMachine):
    """The tree against one ordered dictionary of prefixes per endpoint."""

    names = st.sampled_from("abcd")
    prompts = st.lists(st.integers(1, 2), max_size=7)
    """Two distinct blocks, so that prompts often share prefixes."""

    def __init__(self):
        super().__init__()
        self.tree = PrefixTree()
        self.model: dict[str, OrderedDict[tuple[int, ...], int]] = {}
        self.insertions = 0
        self.sent: set[tuple[int, ...]] = set()

    @rule(name=names)
    def join(self, name):
        self.tree.slots([name])
        self.model.setdefault(name, OrderedDict())

    @rule(name=names, blocks=prompts, capacity=st.integers(1, 9))
    def insert(self, name, blocks, capacity):
        self.tree.insert(name, prompt(*blocks), capacity)
        if name not in self.model:
            return
        held = self.model[name]
        self.sent.add(tuple(blocks))
        self.insertions += bool(blocks)
        for length in range(len(blocks), 0, -1):
            held.pop(tuple(blocks[:length]), None)
            held[tuple(blocks[:length])] = self.insertions
        while len(held) > capacity:
            held.popitem(last=False)

    @rule(name=names)
    def leave(self, name):
        self.tree.remove(name)
        self.model.pop(name, None)

    @rule(name=names, ago=st.integers(0, 5))
    def forget_unused_since(self, name, ago):
        since = self.insertions - ago
        gone = self.tree.forget_unused_since(name, since)
        old = [beginning for beginning, use in self.model.get(name, {}).items() if use <= since]
        assert gone == len(old)
        for beginning in old:
            del self.model[name][beginning]

    @rule(name=names, blocks=prompts, position=st.integers(0, 6))
    def forget_the_end(self, name, blocks, position):
        gone = self.tree.forget(name, prompt(*blocks), position)
        missing = tuple(blocks[: position + 1]) if position < len(blocks) else None
        after = [each for each in self.model.get(name, {}) if missing is not None and each[: len(missing)] == missing]
        assert gone == len(after)
        for beginning in after:
            del self.model[name][beginning]

    @rule()
    def another_tree_takes_a_snapshot(self):
        other = known(*self.model)
        for name in self.tree.names():
            other.restore(name, *self.tree.snapshot(name))
        assert other.entries == self.tree.entries
        for blocks in self.sent:
            assert matches(other, blocks, self.model) == matches(self.tree, blocks, self.model)

    @invariant()
    def agrees_with_the_model(self):
        assert self.tree.entries == sum(map(len, self.model.values()))
        for blocks in self.sent:
            counts = self.tree.match(prompt(*blocks))
            for name, held in self.model.items():
                beginnings = [blocks[:length] for length in range(1, len(blocks) + 1)]
                found = [held[beginning] for beginning in beginnings if beginning in held]
                assert counts[self.tree.slots([name])[0]] == len(found)
                assert [use for count, use in self.tree.uses(name, prompt(*blocks)) for _ in range(count)] == found
        if not any(self.model.values()):
            assert not self.tree._root.children


TestTreeAgainstModel = TreeAgainstModel.TestCase
TestTreeAgainstModel.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
