"""Header messages parsed without protobuf equal protobuf's result."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from endpick._proto.ext_proc_pb2 import HttpBody, HttpHeaders, ProcessingMode, ProcessingRequest
from endpick.extproc.messages import MAX_NAMES, MessageContext, _names, context_of, header_message, read_headers, varint
from endpick.requests.model import BodyMode

KINDS = ("request_headers", "response_headers")


def by_protobuf(message: bytes) -> tuple[dict[str, str], bool, MessageContext]:
    parsed = ProcessingRequest.FromString(message)
    head = getattr(parsed, parsed.WhichOneof("request"))
    return read_headers(head.headers), head.end_of_stream, context_of(parsed)


def read(message: bytes) -> tuple[dict[str, str], bool, MessageContext] | None:
    return header_message(message)


def written(kind: str, headers: list[tuple[str, dict[str, object]]], end: bool = False) -> ProcessingRequest:
    message = ProcessingRequest()
    head: HttpHeaders = getattr(message, kind)
    for name, value in headers:
        head.headers.headers.add(key=name, **value)
    head.headers.SetInParent()
    head.end_of_stream = end
    return message


names = st.sampled_from([":path", "Content-Type", "x", "x-" + "y" * 120, "ünicode"]) | st.text(min_size=1, max_size=12)
values = st.one_of(
    st.binary(min_size=1, max_size=300).map(lambda raw: {"raw_value": raw}),
    st.text(min_size=1, max_size=40).map(lambda text: {"raw_value": text.encode()}),
    st.text(max_size=40).map(lambda text: {"value": text}),
    st.just({}),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", [False, True])
def test_usual_header_messages_are_parsed(kind, end):
    message = written(
        kind, [(":path", {"raw_value": b"/v1"}), ("X-Long", {"raw_value": b"v" * 5000}), ("old", {"value": "text"}), ("e", {})], end
    )
    message.protocol_config.request_body_mode = ProcessingMode.FULL_DUPLEX_STREAMED
    message.metadata_context.filter_metadata["envoy.lb"].fields["served"].string_value = "10.0.0.1:8000"
    expected = {":path": "/v1", "x-long": "v" * 5000, "old": "text", "e": ""}
    assert read(message.SerializeToString()) == (expected, end, by_protobuf(message.SerializeToString())[2])


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x12",
        b"\x12\x00",
        b"\x12\x02\x18\x01",
        ProcessingRequest(request_body=HttpBody(body=b"body")).SerializeToString(),
        written("request_headers", [("x", {"raw_value": b"\xff"})]).SerializeToString(),
        written("request_headers", [("x", {"value": "a", "raw_value": b"b"})]).SerializeToString(),
        written("request_headers", [("x", {"raw_value": b"v" * 2**21})]).SerializeToString(),
        written("request_headers", [("x", {"raw_value": b"v"})]).SerializeToString() * 2,
        written("request_headers", [("x", {"raw_value": b"v"})]).SerializeToString() + b"\x2a\x03\x0a\x01x",
        written("request_headers", [("x", {"raw_value": b"value"})]).SerializeToString()[:-1],
    ],
)
def test_unusual_messages_are_left_to_protobuf(message):
    assert header_message(message) is None


def test_invalid_context_is_a_decode_error():
    message = written("request_headers", [("x", {"raw_value": b"v"})]).SerializeToString() + b"\x42\xff"
    with pytest.raises(DecodeError):
        ProcessingRequest.FromString(message)
    with pytest.raises(DecodeError):
        header_message(message)


def test_name_cache_is_bounded():
    for number in range(2 * MAX_NAMES):
        name = f"X-{number}"
        message = written("request_headers", [(name, {"raw_value": b"v"}), (name * 20, {"raw_value": b"w"})])
        assert header_message(message.SerializeToString())[0] == {name.lower(): "v", name.lower() * 20: "w"}
    assert len(_names) == MAX_NAMES


def test_gateways_with_different_settings():
    modes = (ProcessingMode.FULL_DUPLEX_STREAMED, ProcessingMode.BUFFERED, ProcessingMode.NONE, ProcessingMode.BUFFERED)
    for turn in range(3):
        for number, mode in enumerate(modes):
            message = written("request_headers", [("x", {"raw_value": b"%d" % number})])
            message.protocol_config.request_body_mode = mode
            message.protocol_config.response_body_mode = ProcessingMode.NONE
            headers, _, context = header_message(message.SerializeToString())
            expected = {"x": str(number)}, BodyMode(mode), BodyMode.NONE
            assert (headers, context.modes.request_body, context.modes.response_body) == expected, turn
        headers, _, context = header_message(written("request_headers", [("x", {"raw_value": b"v"})]).SerializeToString())
        assert (headers, context.modes.request_body) == ({"x": "v"}, BodyMode.FULL_DUPLEX_STREAMED)


@given(st.sampled_from(KINDS), st.lists(st.tuples(names, values), max_size=8), st.booleans())
def test_headers_equal_protobufs(kind, headers, end):
    message = written(kind, headers, end).SerializeToString()
    found = read(message)
    assert found is None or found == by_protobuf(message)
    if headers and all(len(name.encode()) < 128 and is_text(value.get("raw_value", b"")) for name, value in headers):
        assert found is not None, "what gateways send is not left to protobuf"


def is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


parts = st.one_of(
    st.binary(max_size=8),
    st.sampled_from(
        [b"\x0a\x01x", b"\x1a\x01v", b"\x12\x01w", b"\x18\x01", b"\x0a\x06\x0a\x01x\x1a\x01v", b"\x0a\x86\x00\x0a\x01x\x1a\x01v"]
    ),
)
wild = st.builds(
    lambda tag, inner, after, wrong: (
        bytes((tag,)) + varint(max(0, len(block := b"\x0a" + varint(len(inner)) + inner + after) + wrong)) + block
    ),
    st.sampled_from([0x12, 0x1A]),
    st.lists(parts, max_size=5).map(b"".join),
    st.sampled_from([b"", b"\x18\x01", b"\x18\x00", b"\x12\x00"]),
    st.sampled_from([0, 0, 0, 1, -1]),
)


@given(wild | st.binary(max_size=40).map(b"\x12".__add__))
def test_malformed_messages_equal_protobufs(message):
    try:
        found = read(message)
    except DecodeError:
        with pytest.raises(DecodeError):
            ProcessingRequest.FromString(message)
        return
    if found is not None:
        assert found == by_protobuf(message)
