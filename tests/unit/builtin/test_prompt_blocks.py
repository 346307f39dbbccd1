"""Fingerprints of blocks: equal for equal blocks, whatever stands before them, and different for all others."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick_builtin.producers.prompt_blocks import FINGERPRINT_BYTES, block_hashes, chain_root, fingerprints


def cut(text, tokens=4, root=7, limit=None):
    found = fingerprints(text, root, tokens, limit)
    return [found[start : start + FINGERPRINT_BYTES] for start in range(0, len(found), FINGERPRINT_BYTES)]


@given(st.binary(max_size=800), st.integers(1, 20), st.none() | st.integers(0, 40))
def test_there_are_as_many_as_hashes(text, tokens, limit):
    assert len(cut(text, tokens, limit=limit)) == len(block_hashes(text, 7, tokens, limit))


@given(st.binary(min_size=640, max_size=800), st.integers(1, 5), st.integers(0, 639), st.integers(1, 255))
def test_one_other_byte_changes_the_fingerprint_of_its_block_alone(text, tokens, position, change):
    other = bytearray(text)
    other[position] ^= change
    before, after = cut(text, tokens), cut(bytes(other), tokens)
    assert [number for number, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]] == [position // (4 * tokens)]


@pytest.mark.parametrize("position", [0, 8, 7, 15], ids=["first", "next", "end", "next-end"])
@pytest.mark.parametrize("other", [1, 128, 255])
def test_changes_that_could_cancel_out_do_not(position, other):
    """Two numbers of a block that change by the same amount, in the highest byte as well: a sum of words alone would not tell."""
    block = bytearray(Random(1).randbytes(64))
    changed = bytearray(block)
    changed[position] ^= other
    changed[position + 16] ^= other
    head = bytes(64 * 16)
    assert cut(head + bytes(block), 16)[-1] != cut(head + bytes(changed), 16)[-1]


def test_a_block_has_the_same_fingerprint_wherever_the_prompt_ends():
    text = Random(2).randbytes(40 * 16)
    whole = cut(text)
    assert [cut(text[: count * 16]) for count in range(41)] == [whole[:count] for count in range(41)]


def test_a_short_last_block_is_not_the_whole_one_that_begins_like_it():
    text = Random(3).randbytes(20 * 16)
    assert cut(text[:-12])[-1] != cut(text)[-1]
    assert cut(text[:-12] + bytes(12))[-1] != cut(text[:-12])[-1]


def test_models_and_salts_change_the_first_block():
    roots = [chain_root(model, salt) for model, salt in (("m", ""), ("n", ""), ("m", "tenant-a"), ("m", "tenant-b"))]
    found = [cut(b"same text of two blocks, both whole.", 4, root) for root in roots]
    assert len({each[0] for each in found}) == 4
    assert len({tuple(each[1:]) for each in found}) == 1


def test_no_two_of_many_different_blocks_have_the_same_fingerprint():
    numbers = b"".join(b"%-16d" % number for number in range(20_000))
    assert len(set(cut(numbers))) == 20_000
