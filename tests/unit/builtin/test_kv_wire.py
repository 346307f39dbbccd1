"""Messages of KV events off the wire: the same as decoded ones, and no more is made of them than an engine would send."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import msgspec
import pytest

from endpick_builtin.producers.precise import kv_events
from endpick_builtin.producers.precise.kv_events import TooManyEventsError, read_batch
from endpick_builtin.producers.precise.kv_wire import WireReader

MEBIBYTE = 1024 * 1024
MANY = 8000
ROW = ["BlockStored", list(range(MANY)), 7, [5] * MANY, 1, None, "GPU", "lora", [["a", b"\x01"], [["b", 3]], None] + [None] * (MANY - 3)]
NAMES = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys")


def reader(*limits):
    bad = Counter()
    return WireReader(lambda reason: bad.update([reason]), *limits), bad


def fields(event):
    return [list(value) if name == "tokens" else value for name, value in ((name, getattr(event, name)) for name in event.__slots__)]


@pytest.mark.parametrize(
    "event",
    [
        ROW,
        dict(zip(NAMES, ROW, strict=True)),
        ["BlockRemoved", [bytes(32)] * MANY, "cpu", 3],
        {"type": "BlockRemoved", "block_hashes": [2**63 + one for one in range(MANY)]},
        ["BlockRemoved", [1, 2]],
        ["AllBlocksCleared"],
    ],
    ids=["row", "map", "removed row", "removed map", "small", "cleared"],
)
def test_an_event_is_read_as_if_it_had_been_decoded_however_large_it_is(event):
    payload = msgspec.msgpack.encode([1.5, [event], 0])
    wire, bad = reader()
    batch = wire.read(payload)
    (expected,) = read_batch(msgspec.msgpack.decode(payload)).events
    (found,) = filter(None, batch.events)
    assert batch.time == 1.5
    assert fields(found) == fields(expected)
    assert not bad


def filled(size, begin=b""):
    """A list of so many empty lists, after what it begins with."""
    return b"\xdd" + (size + (1 if begin else 0)).to_bytes(4, "big") + begin + b"\x90" * size


TIME = b"\xcb" + b"\0" * 8


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"\x92" + TIME + filled(4 * MEBIBYTE), "longer than any engine's"),
        (b"\x91" * 4 * MEBIBYTE, "Expected"),
        (b"\x92" + TIME + b"\x80", "a list"),
        (b"\x92\xcb" + b"\x7f\xf8" + b"\0" * 6 + b"\x90", "its time"),
        (b"\xc1", "."),
        (b"", "."),
    ],
    ids=["lists for events", "nested", "no list", "no time", "no type", "empty"],
)
def test_what_is_no_message_is_refused_before_anything_is_made_of_it(payload, why):
    wire, _ = reader()
    tracemalloc.start()
    try:
        with pytest.raises(wire.problems, match=why):
            wire.read(payload)
        assert tracemalloc.get_traced_memory()[1] < MEBIBYTE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "event",
    [
        filled(MEBIBYTE, b"\xabBlockStored"),
        b"\x92\xacBlockRemoved" + filled(MEBIBYTE),
        b"\x85\xa4type\xabBlockStored\xacblock_hashes\x91\x01\xaablock_size\x01\xa9token_ids\x91\x01\xaaextra_keys\x91" + filled(MEBIBYTE),
        b"\x82\xa4type\xaaBlockOther\xa1x" + filled(MEBIBYTE),
        msgspec.msgpack.encode(["BlockRemoved", [1] * (kv_events._MOST_BLOCKS + 1)]),
        msgspec.msgpack.encode(["BlockStored", [1], None, [1], 1, None, "gpu" * 1000]),
        msgspec.msgpack.encode(["BlockStored", [1], None, [1], 1, None, None, "lora" * 1000]),
        msgspec.msgpack.encode(["BlockStored", [1], None, [1], 1, None, None, None, [["x" * 2000]]]),
        msgspec.msgpack.encode(["BlockStored", [1], None, [1], 1, None, None, None, [["x"] * (kv_events._MOST_EXTRAS + 1)]]),
        msgspec.msgpack.encode(["BlockStored", [1], None, b"\1\0\0\0", 1]),
        msgspec.msgpack.encode(["BlockStored", [1], None, [-1], 1]),
        msgspec.msgpack.encode(["BlockStored", [1], None, [2**32], 1]),
    ],
    ids=range(12),
)
def test_an_event_that_no_engine_sends_is_counted_and_the_others_are_read(event):
    wire, bad = reader()
    tracemalloc.start()
    try:
        events = list(wire.read(b"\x92" + TIME + b"\x92" + event + b"\x91\xb0AllBlocksCleared").events)
        assert tracemalloc.get_traced_memory()[1] < 12 * MEBIBYTE
    finally:
        tracemalloc.stop()
    assert set(events[:-1]) == {None}
    assert events[-1] == kv_events.AllBlocksCleared()
    assert sum(bad.values()) == 1


def test_more_events_than_a_message_may_have_are_told_apart():
    with pytest.raises(TooManyEventsError):
        reader(1)[0].read(msgspec.msgpack.encode([1.0, [["AllBlocksCleared"]] * 2]))


def test_a_message_may_have_more_events_where_the_operator_says_so():
    payload = msgspec.msgpack.encode([1.0, [["AllBlocksCleared"]] * (kv_events.MAX_EVENTS + 1)])
    with pytest.raises(TooManyEventsError):
        reader()[0].read(payload)
    assert len(list(reader(kv_events.MAX_EVENTS + 1)[0].read(payload).events)) == kv_events.MAX_EVENTS + 1
