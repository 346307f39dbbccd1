from __future__ import annotations

import pytest

from endpick.transport.h2.headers import MalformedError, check_trailers, parse_timeout, read_head
from unit.transport.peer import REQUEST


def fields(*extra: tuple[str, str], without: str = "") -> list[tuple[bytes, bytes, bool]]:
    named = [(name, value) for name, value in REQUEST.items() if name != without]
    return [(name.encode("latin-1"), value.encode("latin-1"), False) for name, value in [*named, *extra]]


def test_grpc_request_is_recognised():
    head = read_head(fields(("grpc-timeout", "250m"), ("content-length", "12"), ("x-custom_1", "any thing")))
    assert (head.method, head.path, head.is_grpc, head.timeout_seconds, head.content_length) == (b"POST", REQUEST[":path"], True, 0.25, 12)


def test_the_gateways_span_is_read():
    assert read_head(fields(("traceparent", "00-0a-0b-01"))).traceparent == "00-0a-0b-01"
    assert read_head(fields()).traceparent == ""


@pytest.mark.parametrize(
    ("content_type", "is_grpc"),
    [
        ("application/grpc", True),
        ("application/grpc+proto", True),
        ("application/grpc;charset=utf-8", True),
        ("application/grpc+json", False),
        ("application/grpc-web", False),
        ("application/json", False),
    ],
)
def test_content_type_decides_whether_it_is_grpc(content_type, is_grpc):
    assert read_head(fields(("content-type", content_type), without="content-type")).is_grpc is is_grpc


@pytest.mark.parametrize(
    "extra",
    [
        (":path", "/again"),
        (":status", "200"),
        (":unknown", "x"),
        ("Upper", "x"),
        ("sp ace", "x"),
        ("connection", "close"),
        ("transfer-encoding", "chunked"),
        ("te", "gzip"),
        ("x", "line\nbreak"),
        ("x", "nul\0"),
        ("content-length", "-1"),
    ],
)
def test_forbidden_field_is_malformed(extra):
    with pytest.raises(MalformedError):
        read_head(fields(extra))


@pytest.mark.parametrize("missing", [":method", ":scheme", ":path"])
def test_missing_pseudo_header_is_malformed(missing):
    with pytest.raises(MalformedError):
        read_head(fields(without=missing))


def test_different_content_lengths_are_malformed():
    assert read_head(fields(("content-length", "3"), ("content-length", "3"))).content_length == 3
    with pytest.raises(MalformedError):
        read_head(fields(("content-length", "3"), ("content-length", "4")))


def test_pseudo_header_in_trailers_is_malformed():
    check_trailers([(b"x-checksum", b"1", False)])
    with pytest.raises(MalformedError):
        check_trailers([(b":path", b"/", False)])


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1H", 3600),
        (b"4m", 0.004),
        (b"6n", 6e-9),
        (b"", None),
        (b"5", None),
        (b"123456789S", None),
    ],
)
def test_grpc_timeout_in_seconds(value, seconds):
    assert parse_timeout(value) == (None if seconds is None else pytest.approx(seconds))
