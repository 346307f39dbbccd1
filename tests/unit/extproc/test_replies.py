"""Replies serialised by hand equal protobuf's."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from endpick._proto.ext_proc_pb2 import ProcessingResponse
from endpick.extproc import replies
from endpick.extproc.replies import MAX_CHUNK_BYTES, Direction, destination_only, piece_heads, response_headers, streamed, streamed_chunk

FIELDS = {Direction.REQUEST: "request_body", Direction.RESPONSE: "response_body"}


def by_protobuf(direction: Direction, body: bytes, end: bool) -> ProcessingResponse:
    message = ProcessingResponse()
    piece = getattr(message, FIELDS[direction]).response.body_mutation.streamed_response
    piece.SetInParent()
    piece.body = body
    piece.end_of_stream = end
    return message


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("end", [False, True])
@given(size=st.integers(0, 70_000))
@example(size=0)
@example(size=117)
@example(size=127)
@example(size=128)
@example(size=16_383)
@example(size=16_384)
def test_streamed_chunk_equals_protobufs(direction, end, size):
    body = bytes(size)
    assert ProcessingResponse.FromString(streamed_chunk(direction, body, end)) == by_protobuf(direction, body, end)


@pytest.mark.parametrize("direction", Direction)
def test_streamed_chunk_has_protobufs_bytes(direction):
    assert streamed_chunk(direction, b"data: {}\n\n", True) == by_protobuf(direction, b"data: {}\n\n", True).SerializeToString()


@given(size=st.integers(0, 4 * MAX_CHUNK_BYTES), end=st.booleans())
@example(size=MAX_CHUNK_BYTES, end=True)
@example(size=2 * MAX_CHUNK_BYTES, end=False)
@example(size=0, end=False)
def test_streamed_chunks_join_to_the_body(size, end):
    body = bytes(number % 256 for number in range(256)) * (size // 256 + 1)
    body = body[:size]
    pieces = [ProcessingResponse.FromString(reply) for reply in streamed(Direction.RESPONSE, body, end)]
    streamed_pieces = [piece.response_body.response.body_mutation.streamed_response for piece in pieces]
    assert b"".join(piece.body for piece in streamed_pieces) == body
    assert all(len(piece.body) <= MAX_CHUNK_BYTES for piece in streamed_pieces)
    assert [piece.end_of_stream for piece in streamed_pieces] == [False] * (len(pieces) - 1) + [end] * bool(pieces)
    assert bool(pieces) == bool(size or end)


@pytest.mark.parametrize("length", [0, 1, 4, 5, 6, 70_000])
def test_pass_through_exists_for_possible_lengths_only(length):
    before, size, instead = piece_heads(length)
    assert len(before) == size <= length
    assert bool(instead) == (length in (5, 6)), "a tag and a length, twice, and at least one byte"


def test_only_short_replies_are_cached():
    known = replies._cached_response_headers, replies._cached_destination
    before = [each.cache_info().currsize for each in known]
    for length in (8, 60_000):
        changed = ProcessingResponse.FromString(response_headers((("x-served", "s" * length),)))
        assert changed.response_headers.response.header_mutation.set_headers[0].header.raw_value == b"s" * length
        routed = ProcessingResponse.FromString(destination_only("d" * length))
        assert routed.request_headers.response.header_mutation.set_headers[0].header.raw_value == b"d" * length
    assert [each.cache_info().currsize for each in known] == [size + 1 for size in before]
