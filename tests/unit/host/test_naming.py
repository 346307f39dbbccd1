"""Which names plugin types may have."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.host.discovery import TYPE_PATTERN, is_valid_type


@pytest.mark.parametrize("name", ["a", "queue-scorer", "acme.queue-scorer", "a1.b2-c3", "openai-parser", "x.y.z"])
def test_lower_case_words_joined_by_hyphens_and_dots_are_types(name):
    assert is_valid_type(name)


@pytest.mark.parametrize(
    "name",
    ["", "Queue", "queue_scorer", "-a", "a-", "a--b", "a..b", ".a", "a.", "1a", "a b", "ä", "a\n", "queue-\u0455corer", "x:y"],
)
def test_anything_else_is_not(name):
    assert not is_valid_type(name)


@given(st.from_regex(rf"\A{TYPE_PATTERN}\Z"))
def test_every_type_is_ascii_lower_case_and_safe_in_a_label(name):
    assert is_valid_type(name)
    assert re.fullmatch(r"[a-z0-9.-]+", name)
