"""Header maps that protobuf parsed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from endpick._proto.ext_proc_pb2 import HeaderMap
from endpick.extproc.messages import read_headers


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
