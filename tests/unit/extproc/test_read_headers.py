"""Header maps that protobuf parsed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from endpick._proto.ext_proc_pb2 import HeaderMap
from endpick.extproc.messages import MAX_NAMES, _names, read_headers


def header_map(*headers: tuple[str, bytes]) -> HeaderMap:
    message = HeaderMap()
    for name, value in headers:
        message.headers.add(key=name, raw_value=value)
    return message


@given(st.lists(st.tuples(st.sampled_from(("a", "B", "x-c")), st.binary(min_size=1, max_size=6))))
def test_invalid_utf8_is_replaced(headers):
    assert read_headers(header_map(*headers)) == {name.lower(): value.decode("utf-8", "replace") for name, value in headers}


def test_value_is_read_from_older_gateways():
    message = header_map(("odd", b"\xff"))
    message.headers.add(key="Old", value="text")
    assert read_headers(message) == {"odd": "\N{REPLACEMENT CHARACTER}", "old": "text"}


def test_name_cache_is_bounded():
    for number in range(2 * MAX_NAMES):
        name = f"X-{number}"
        assert read_headers(header_map((name, b"v"), (name * 20, b"w"))) == {name.lower(): "v", name.lower() * 20: "w"}
    assert len(_names) == MAX_NAMES
