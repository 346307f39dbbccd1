"""What a body weighs: its structure, told without parsing it."""

from __future__ import annotations

import json
import operator
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpick.requests.model import IncomingRequest
from endpick.requests.weight import LIGHT_BYTES, is_ascii, is_large, structure_of

PADDING = " " * LIGHT_BYTES
JSON = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('ab[]{},:"\\\n') | st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.sampled_from('[{,"\\x')), inner),
    max_leaves=30,
)


def weight(value: object) -> int:
    """As the module says it, told from the parsed value."""
    if isinstance(value, str):
        return 4
    if isinstance(value, dict):
        return 16 + max(0, len(value) - 1) + sum(4 + weight(inner) for inner in value.values())
    if isinstance(value, list):
        return 16 + max(0, len(value) - 1) + sum(map(weight, value))
    return 0


def is_heavy(body: bytes, most: int) -> bool:
    return is_large(IncomingRequest({}, body, None, 0.0), 2**30, most)


@settings(max_examples=200)
@given(JSON, st.booleans())
def test_a_body_is_heavy_from_its_weight_on(value, ascii_only):
    body = (json.dumps(value, ensure_ascii=ascii_only) + PADDING).encode()
    assert not is_heavy(body, weight(value))
    assert is_heavy(body, weight(value) - 1)


def test_what_is_short_is_light_whatever_it_is():
    assert not is_heavy(b"[" * LIGHT_BYTES, 0)
    assert is_heavy(b"[" * (LIGHT_BYTES + 1), 0)


@pytest.mark.parametrize(
    ("text", "heavy"),
    [(b"x", False), ("é".encode(), False), (rb"\u00e9", False), (b"\xff", True), (rb"\uD800", True), (rb"\ud800", True)],
)
def test_a_long_body_that_has_to_be_read_leniently_is_heavy(text, heavy):
    body = b'{"prompt":"%s"}' % (text * (512 * 1024 // len(text)))
    assert is_heavy(body, 1000) is heavy
    assert not is_heavy(body[: 200 * 1024], 1000)


def test_a_long_grpc_body_is_heavy_also_where_it_could_be_text():
    assert is_heavy(b"\0" + b"\1" * 512 * 1024, 32 * 1024)
    assert not is_heavy(b"\0" + b"\1" * 200 * 1024, 32 * 1024)


def test_a_quote_in_front_of_the_json_in_a_grpc_body_hides_nothing_of_it():
    parts = b'["' + b"x" * LIGHT_BYTES + b'",' + b"{}," * 1000 + b"0]"
    framed = b'\0\0\0\1\0"' + parts
    assert is_heavy(b" " + parts, 15_000)
    assert is_heavy(framed, 15_000)
    assert not is_heavy(framed, 18_000)
    assert is_heavy(framed + b'"', 15_000)


@settings(max_examples=200)
@given(JSON, st.booleans(), st.sampled_from((0, LIGHT_BYTES)))
def test_what_is_counted_is_the_structure_and_never_less(value, ascii_only, padding):
    text = json.dumps(value, ensure_ascii=ascii_only)
    counted = structure_of((text + " " * padding).encode())
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    found = (counted.commas, counted.objects, counted.lists, counted.quotes)
    true = (*(outside.count(mark) for mark in ",{["), 2 * len(re.findall(r'"(?:[^"\\]|\\.)*"', text)))
    assert found == true if counted.exact else all(map(operator.ge, found, true))


@pytest.mark.parametrize(("number", "exact"), [(1, True), (63, True), (64, False)])
def test_strings_are_left_out_where_there_are_few(number, exact):
    body = json.dumps(["[,{" * 2000] * number).encode()
    counted = structure_of(body)
    assert counted.exact is exact
    strings = 0 if exact else 2000 * number
    assert (counted.commas, counted.objects, counted.lists) == (number - 1 + strings, strings, 1 + strings)
    assert counted.quotes == 2 * number


@pytest.mark.parametrize("number", [0, 1, 7, 8, 9, 10, 5000])
def test_marks_are_counted_however_many_there_are(number):
    assert structure_of(b"1" * 5000 + b",2" * number + b"3" * 5000).commas == number


def test_a_request_keeps_what_was_counted_of_its_body():
    short, long = IncomingRequest({}, b"[]", None, 0.0), IncomingRequest({}, b"[]" * LIGHT_BYTES, None, 0.0)
    assert not is_large(short, 2**30, 2**30)
    assert not is_large(long, 2**30, 2**30)
    assert short.structure is None
    assert long.structure is not None
    assert long.structure.lists == LIGHT_BYTES


@settings(max_examples=200)
@given(st.text('a\\"[{,', max_size=40).map(lambda text: json.dumps([text]) * 70))
def test_backslashes_before_quotes_are_told_apart(text):
    body = (text + PADDING).encode()
    assert not is_heavy(body, 70 * (16 + 4))
    assert is_heavy(body, 70 * (16 + 4) - 1)


@pytest.mark.parametrize("size", [0, 1, 50_000, 100_000])
@pytest.mark.parametrize("last", [b"", b"\x7f", b"\x80", b"\xff"])
def test_bytes_are_ascii_as_python_says(size, last):
    assert is_ascii(b"x" * size + last) == (last < b"\x80")
