from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.transport.h2.headers import HeaderDecoder
from endpick.transport.h2.stream import MESSAGE_HEAD, CompressedMessageError, MessageAssembler, MessageTooLargeError, trailers


@given(st.lists(st.binary(max_size=80), max_size=10), st.lists(st.integers(0, 5000), max_size=20))
def test_messages_are_assembled_however_they_are_cut(messages, places):
    wire = b"".join(MESSAGE_HEAD.pack(0, len(message)) + message for message in messages)
    edges = [0, *sorted(place % (len(wire) + 1) for place in places), len(wire)]
    assembler = MessageAssembler(100)
    found = [message for a, b in itertools.pairwise(edges) for message in assembler.feed(wire, a, b)]
    assert found == messages
    assert assembler.is_empty


@given(
    st.lists(st.sampled_from((0, 1, 4, 5, 1000, 1023, 1024, 1025, 3000, 70_000)), max_size=6), st.lists(st.integers(0, 70_000), max_size=30)
)
def test_long_messages_are_assembled_however_they_are_cut(lengths, places):
    messages = [bytes([number]) * length for number, length in enumerate(lengths)]
    wire = b"".join(MESSAGE_HEAD.pack(0, len(message)) + message for message in messages)
    edges = [0, *sorted(place % (len(wire) + 1) for place in places), len(wire)]
    assembler = MessageAssembler(100_000)
    assert [message for a, b in itertools.pairwise(edges) for message in assembler.feed(wire, a, b)] == messages
    assert assembler.is_empty


def test_too_large_message_is_refused_at_its_head():
    with pytest.raises(MessageTooLargeError, match="11 bytes, the maximum is 10"):
        MessageAssembler(10).feed(MESSAGE_HEAD.pack(0, 11), 0, 5)


def test_compressed_message_is_refused():
    with pytest.raises(CompressedMessageError):
        MessageAssembler(10).feed(MESSAGE_HEAD.pack(1, 3) + b"abc", 0, 8)


def test_status_message_is_percent_encoded():
    block = trailers(13, "50% of é\nis gone")
    assert HeaderDecoder(1000).decode(block) == [
        (b"grpc-status", b"13", False),
        (b"grpc-message", b"50%25 of %C3%A9%0Ais gone", False),
    ]
