"""Body messages parsed without protobuf equal protobuf's result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick._proto.ext_proc_pb2 import HttpBody, HttpHeaders, ProcessingRequest
from endpick.extproc.messages import body_piece, varint

SIZES = (1, 2, 122, 123, 124, 125, 127, 128, 16_376, 16_378, 16_380, 62_000, 2_097_146, 2_097_152)


def read(message: bytes) -> tuple[bytes, bool] | None:
    piece = body_piece(message)
    if piece is None:
        return None
    start, stop, end = piece
    return message[start:stop], end


def by_protobuf(message: bytes) -> tuple[bytes, bool]:
    parsed = ProcessingRequest.FromString(message)
    body = getattr(parsed, parsed.WhichOneof("request"))
    return body.body, body.end_of_stream


@pytest.mark.parametrize(("kind", "end"), [("request_body", False), ("response_body", True)])
@pytest.mark.parametrize("size", SIZES)
def test_body_of_any_size_is_parsed(kind, end, size):
    chunk = b"\x10\x01" * (size // 2) + b"\x0a" * (size % 2)
    message = ProcessingRequest(**{kind: HttpBody(body=chunk, end_of_stream=end)}).SerializeToString()
    assert read(message) == (chunk, end)


@pytest.mark.parametrize("kind", ["request_body", "response_body"])
def test_end_without_bytes_is_parsed(kind):
    assert read(ProcessingRequest(**{kind: HttpBody(end_of_stream=True)}).SerializeToString()) == (b"", True)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x2a",
        b"\x2a\x00",
        ProcessingRequest(request_headers=HttpHeaders(end_of_stream=True)).SerializeToString(),
        ProcessingRequest(response_body=HttpBody(body=b"x"), observability_mode=True).SerializeToString(),
        ProcessingRequest(response_body=HttpBody(body=b"x")).SerializeToString() + b"\x50\x01",
        ProcessingRequest(response_body=HttpBody(body=b"x")).SerializeToString() * 2,
        b"\x2a\x05\x10\x01\x0a\x01x",
        b"\x2a\x83\x00\x0a\x01x",
    ],
)
def test_unusual_messages_are_left_to_protobuf(message):
    assert read(message) is None


fields = st.one_of(
    st.binary(max_size=300).map(lambda chunk: b"\x0a" + varint(len(chunk)) + chunk),
    st.sampled_from([b"\x10\x01", b"\x10\x00", b"\x18\x01", b"\x0a\x00"]),
)
messages = st.builds(
    lambda tag, parts, wrong, rest: bytes((tag,)) + varint(max(0, sum(map(len, parts)) + wrong)) + b"".join(parts) + rest,
    st.sampled_from([0x22, 0x2A]),
    st.lists(fields, max_size=4),
    st.sampled_from([0, 0, 0, 1, -1, 2]),
    st.sampled_from([b"", b"", b"\x50\x01", b"\x10\x01"]),
)


@given(messages | st.binary(max_size=40).map(b"\x2a".__add__))
def test_malformed_messages_equal_protobufs(message):
    piece = read(message)
    if piece is not None:
        assert piece == by_protobuf(message)


@given(st.integers(0, 2**40))
def test_varints_equal_protobufs(number):
    assert ProcessingRequest(response_body=HttpBody(body=b"")).SerializeToString() == b"\x2a\x00"
    assert HttpBody.FromString(b"\x98\x06" + varint(number)).SerializeToString() == b"\x98\x06" + varint(number), "an unknown field is kept"
