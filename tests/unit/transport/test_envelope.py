"""What of a message is not a body, found before the rest has arrived."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick._proto import ext_proc_pb2 as pb
from endpick.extproc.pieces import varint
from endpick.transport.envelope import EnvelopeCheck, EnvelopeError, LongMessageReader

BODIES = frozenset({4, 5})


def check(message: bytes, arrived: int | None = None, max_bytes: int = 1000) -> None:
    EnvelopeCheck(BODIES, max_bytes).add(message, 0, len(message) if arrived is None else arrived)


def check_in_parts(message: bytes, arriving: int) -> None:
    envelope = EnvelopeCheck(BODIES, 100_000)
    for start in range(0, len(message), arriving):
        envelope.add(message, start, min(len(message), start + arriving))


def headers(count: int) -> bytes:
    return pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(headers=pb.HeaderMap(headers=[pb.HeaderValue()] * count))
    ).SerializeToString()


def test_a_body_of_any_length_is_no_envelope():
    check(pb.ProcessingRequest(request_body=pb.HttpBody(body=b"x" * 100_000)).SerializeToString())
    check(pb.ProcessingRequest(response_body=pb.HttpBody(body=b"x" * 100_000)).SerializeToString())


def test_headers_beyond_the_limit_are_found_in_the_first_bytes():
    message = headers(50_000)
    with pytest.raises(EnvelopeError, match="more than 1000 bytes beside its body"):
        check(message, arrived=8)
    check(headers(400))


def test_many_small_fields_count_together():
    with pytest.raises(EnvelopeError, match="more than 64 fields"):
        check(b"\x48\x00" * 100)
    with pytest.raises(EnvelopeError, match="more than 100 bytes"):
        check(b"\x49" + b"x" * 8 + b"\x4d" + b"x" * 4 + b"\x4a\x60" + b"x" * 96, max_bytes=100)


@pytest.mark.parametrize("field", [b"\x0a\x00", b"\x10\x01", b"\x78\x00"])
@pytest.mark.parametrize("arriving", [1, 7, 4096])
def test_a_body_of_many_small_fields_is_refused_before_it_is_decoded(field, arriving):
    inside = pb.HttpBody(body=b"x" * 100).SerializeToString() + field * 2000
    message = b"\x22" + varint(len(inside)) + inside
    with pytest.raises(EnvelopeError, match="more than 64 fields"):
        check_in_parts(message, arriving)


def test_a_body_ends_where_its_length_says():
    message = pb.ProcessingRequest(request_body=pb.HttpBody(body=b"x" * 5000, end_of_stream=True)).SerializeToString()
    check(message + b"\x48\x00", max_bytes=4)
    with pytest.raises(EnvelopeError, match="more than 3 bytes"):
        check(message + b"\x48\x00", max_bytes=3)
    with pytest.raises(EnvelopeError, match="no protobuf"):
        check(b"\x22\x05\x0a\xff\x7f" + b"x" * 5000)


@pytest.mark.parametrize("message", [b"\x0b" + b"x" * 2000, b"\xff" * 2000])
def test_what_is_no_protobuf_is_refused(message):
    with pytest.raises(EnvelopeError, match="no protobuf"):
        check(message)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_whatever_comes_either_passes_or_is_refused(message, arrived):
    try:
        check(message, min(arrived, len(message)), max_bytes=100)
    except EnvelopeError:
        return


FIELDS = st.one_of(
    st.tuples(st.integers(1, 2000), st.integers(0, 2**64 - 1)).map(lambda field: varint(field[0] << 3) + varint(field[1])),
    st.tuples(st.integers(1, 6), st.binary(max_size=60)).map(lambda field: varint(field[0] << 3 | 2) + varint(len(field[1])) + field[1]),
    st.sampled_from((b"\x49" + b"x" * 8, b"\x4d" + b"x" * 4, b"\x0b", b"\xff" * 10)),
)


def verdict(pieces: list[bytes]) -> str:
    envelope = EnvelopeCheck(BODIES, 100)
    try:
        for piece in pieces:
            envelope.add(b"<" + piece + b">", 1, 1 + len(piece))
    except EnvelopeError as error:
        return str(error)
    return ""


@given(st.lists(FIELDS, max_size=80).map(b"".join), st.lists(st.integers(0, 5000), max_size=20))
def test_the_verdict_is_the_same_however_the_message_is_cut(message, places):
    edges = [0, *sorted(place % (len(message) + 1) for place in places), len(message)]
    assert verdict([message[a:b] for a, b in itertools.pairwise(edges)]) == verdict([message])


def taken_apart(message: bytes, arriving: int):
    reader = LongMessageReader(BODIES, 1000)
    for start in range(0, len(message), arriving):
        reader.add(message, start, min(len(message), start + arriving))
    return reader.message()


@given(st.sampled_from(["request_body", "response_body"]), st.binary(max_size=300), st.booleans(), st.booleans(), st.integers(1, 50))
def test_a_message_that_is_taken_apart_is_the_same_however_it_comes(kind, body, end, has_metadata, arriving):
    message = pb.ProcessingRequest()
    part = getattr(message, kind)
    part.SetInParent()
    part.body, part.end_of_stream = body, end
    if has_metadata:
        message.metadata_context.filter_metadata["n"].update({"k": "v"})
    written = message.SerializeToString()
    found = taken_apart(written, arriving)
    put_together = pb.ProcessingRequest.FromString(found.rest)
    getattr(put_together, kind).body = found.body.whole()
    assert put_together == message
    assert len(found) == len(written)


def test_a_message_with_two_bodies_is_none():
    both = b"".join(
        pb.ProcessingRequest(**{kind: pb.HttpBody(body=b"x")}).SerializeToString() for kind in ("request_body", "response_body")
    )
    twice = pb.ProcessingRequest(request_body=pb.HttpBody(body=b"x")).SerializeToString() * 2
    for message in (both, twice):
        with pytest.raises(EnvelopeError, match="two bodies"):
            taken_apart(message, 3)


@pytest.mark.parametrize("missing", [1, 5, 99, 101, 103])
def test_a_message_that_ends_within_a_field_is_none(missing):
    message = pb.ProcessingRequest(request_body=pb.HttpBody(body=b"x" * 100, end_of_stream=True)).SerializeToString()
    with pytest.raises(EnvelopeError, match="no protobuf"):
        taken_apart(message[:-missing], 7)
