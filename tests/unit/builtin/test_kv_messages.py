"""Decoding of KV-event messages in both shapes."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from endpick_kv_events.messages import AllBlocksCleared, BlocksRemoved, BlocksStored, decode

FIELDS = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys")
ROW = ["BlockStored", [1, -1, b"\x01" * 32], 7, list(range(6)), 2, None, "GPU", "lora", [["a", "lora", b"\x01"], [["b", 3]], None]]


def decoded(*events):
    return decode(msgspec.msgpack.encode([1.5, events, 0]))


@pytest.mark.parametrize("event", [ROW, dict(zip(FIELDS, ROW, strict=True))], ids=["array", "map"])
def test_a_stored_event_is_decoded_in_both_shapes(event):
    batch = decoded(event)
    (found,) = batch.events
    assert batch.time == 1.5
    assert found.tokens.tolist() == list(range(6))
    hashes = (1, 2**64 - 1, 0x0101010101010101)
    expected = BlocksStored(hashes, 7, found.tokens, 2, "gpu", "lora", (("a", "01"), ("b",), ()), 0, "")
    assert dataclasses.replace(found, tokens=expected.tokens) == expected


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (["BlockRemoved", [bytes(32), 2], "cpu", 3], BlocksRemoved((0, 2), "cpu", 3)),
        ({"type": "BlockRemoved", "block_hashes": [2**63]}, BlocksRemoved((2**63,), "gpu", 0)),
        (["AllBlocksCleared", "of the future"], AllBlocksCleared()),
        ({"type": "AllBlocksCleared"}, AllBlocksCleared()),
    ],
)
def test_other_events_are_decoded_with_their_defaults(event, expected):
    assert decoded(event).events == [expected]


@pytest.mark.parametrize(
    "event",
    [
        ["BlockMoved", [1]],
        ["BlockRemoved", "hashes"],
        ["BlockStored", [1], None, [1, 2, 3], 2],
        ["BlockStored", [1], None, [-1], 1],
        ["BlockStored", [1], None, [1], 1, None, None, None, [["a"], ["b"]]],
        7,
    ],
)
def test_a_malformed_event_is_counted_and_others_are_read(event):
    batch = decoded(event, ["AllBlocksCleared"])
    assert batch.events == [AllBlocksCleared()]
    assert batch.undecodable == 1


@pytest.mark.parametrize("payload", [b"", b"\x91" * 100_000, b"\x92\x01\x80"])
def test_a_malformed_message_is_refused(payload):
    with pytest.raises((msgspec.DecodeError, RecursionError)):
        decode(payload)
