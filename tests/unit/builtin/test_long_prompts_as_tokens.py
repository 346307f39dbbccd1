"""Prompts of megabytes as tokens: the same as short ones, without copies."""

from __future__ import annotations

import numpy as np
import pytest
from xxhash import xxh64_intdigest

from endpick.api import Media, Modality
from endpick_builtin.producers.token_estimate import identifier_of, packed

MEBIBYTE = 1 << 20


@pytest.mark.parametrize("content", ["é" * MEBIBYTE + "x\ud800y", "A" * (3 * MEBIBYTE + 1)])
def test_media_of_megabytes_are_known_by_the_hash_of_all_they_hold(content):
    whole = xxh64_intdigest(content.encode("utf-8", "surrogatepass"))
    assert identifier_of(Media(Modality.IMAGE, content)) == f"{whole:016x}"


def test_a_long_text_is_read_where_it_is_and_its_last_bytes_are_no_token():
    text = bytes(range(256)) * 8192 + b"abc"
    token_ids = packed(text).token_ids
    assert np.array_equal(token_ids, np.frombuffer(text[:-3], dtype="<u4"))
    assert np.shares_memory(token_ids, np.frombuffer(text, dtype=np.uint8))
    assert packed(b"abcde").token_ids.tolist() == [0x64636261, 0x65]
