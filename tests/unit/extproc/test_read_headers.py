"""How the gateway's header maps are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick._proto.ext_proc_pb2 import HeaderMap
from endpick.extproc.headers import MOST_HEADERS, MOST_NAMES, _names, read_headers
from endpick.extproc.stream import ProtocolError


def header_map(*headers: tuple[str, bytes]) -> HeaderMap:
    message = HeaderMap()
    for name, value in headers:
        message.headers.add(key=name, raw_value=value)
    return message


@given(st.lists(st.tuples(st.sampled_from(("a", "B", "x-c")), st.binary(min_size=1, max_size=6))))
def test_bytes_that_are_no_utf8_cost_only_themselves(headers):
    assert read_headers(header_map(*headers)) == {name.lower(): value.decode("utf-8", "replace") for name, value in headers}


def test_older_gateways_put_text_into_value():
    message = header_map(("odd", b"\xff"))
    message.headers.add(key="Old", value="text")
    assert read_headers(message) == {"odd": "\N{REPLACEMENT CHARACTER}", "old": "text"}


def test_names_that_clients_make_up_are_read_and_not_all_remembered():
    for number in range(2 * MOST_NAMES):
        name = f"X-{number}"
        assert read_headers(header_map((name, b"v"), (name * 20, b"w"))) == {name.lower(): "v", name.lower() * 20: "w"}
    assert len(_names) == MOST_NAMES


def test_so_many_headers_that_making_objects_of_them_takes_long_are_refused():
    most = HeaderMap.FromString(b"\x0a\x00" * MOST_HEADERS)
    assert read_headers(most) == {"": ""}
    most.headers.add()
    with pytest.raises(ProtocolError, match="more than 32768 headers"):
        read_headers(most)
