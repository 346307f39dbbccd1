"""Fingerprints of blocks."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick_builtin.producers.prompt_blocks import FINGERPRINT_BYTES, block_hashes, chain_root, fingerprints


def cut(text, tokens=4, root=7, limit=None, seed=0x1234567890ABCDEF):
    found = fingerprints(text, root, tokens, limit, seed)
    return [found[start : start + FINGERPRINT_BYTES] for start in range(0, len(found), FINGERPRINT_BYTES)]


@given(st.binary(max_size=800), st.integers(1, 20), st.none() | st.integers(0, 40))
def test_fingerprints_are_as_many_as_hashes(text, tokens, limit):
    assert len(cut(text, tokens, limit=limit)) == len(block_hashes(text, 7, tokens, limit))


@given(st.binary(min_size=640, max_size=800), st.integers(1, 5), st.integers(0, 639), st.integers(1, 255))
def test_a_changed_byte_changes_only_its_block(text, tokens, position, change):
    other = bytearray(text)
    other[position] ^= change
    before, after = cut(text, tokens), cut(bytes(other), tokens)
    assert [number for number, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]] == [position // (4 * tokens)]


@pytest.mark.parametrize("position", [0, 15], ids=["first", "end"])
@pytest.mark.parametrize("other", [1, 128])
def test_equal_changes_do_not_cancel_out(position, other):
    """A plain sum of words would not notice two equal changes."""
    block = bytearray(Random(1).randbytes(64))
    changed = bytearray(block)
    changed[position] ^= other
    changed[position + 16] ^= other
    head = bytes(64 * 16)
    assert cut(head + bytes(block), 16)[-1] != cut(head + bytes(changed), 16)[-1]


def test_fingerprints_do_not_depend_on_the_prompt_length():
    text = Random(2).randbytes(40 * 16)
    whole = cut(text)
    assert [cut(text[: count * 16]) for count in range(41)] == [whole[:count] for count in range(41)]


def test_a_short_last_block_differs_from_a_whole_one():
    text = Random(3).randbytes(20 * 16)
    assert cut(text[:-12])[-1] != cut(text)[-1]
    assert cut(text[:-12] + bytes(12))[-1] != cut(text[:-12])[-1]


def test_models_and_salts_change_the_first_block():
    roots = [chain_root(model, salt) for model, salt in (("m", ""), ("n", ""), ("m", "tenant-a"), ("m", "tenant-b"))]
    found = [cut(b"same text of two blocks, both whole.", 4, root) for root in roots]
    assert len({each[0] for each in found}) == 4
    assert len({tuple(each[1:]) for each in found}) == 1


def test_many_blocks_have_distinct_fingerprints():
    numbers = b"".join(b"%-16d" % number for number in range(20_000))
    assert len(set(cut(numbers))) == 20_000


def test_a_seed_gives_the_same_in_every_process():
    text = Random(4).randbytes(40 * 16)
    assert [each.hex() for each in cut(text, seed=1)[::39]] == ["50a162ad799cc960", "2a3d3d97a45c1ada"]
    assert not set(cut(text, seed=1)) & set(cut(text, seed=2))
