"""What a body weighs: its structure, told without parsing it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpick.requests.weight import LIGHT_BYTES, is_heavy

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
