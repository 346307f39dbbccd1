"""YAML that is no configuration: read as plain data, or refused."""

from __future__ import annotations

import pytest

from endpick.config.foreign_yaml import documents_of


def test_each_document_is_read_as_plain_data():
    assert documents_of("a: 1\n---\n- b\n") == [{"a": 1}, ["b"]]


def test_an_anchor_may_be_given_again_and_nothing_warns_of_it():
    assert documents_of("a: &x 1\nb: &x 2\nc: *x\n") == [{"a": 1, "b": 2, "c": 2}]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [1", "expected ',' or ']'"),
        ("a: *nothing", "undefined alias"),
        ("a: !!int words", "invalid literal for int"),
        ("a: &a [*a]", "more than 100000 values"),
        ("[" * 200, "maximum depth"),
        ("a: &a [1, 1]\n" + "".join(f"b{at}: &a [*a, *a]\n" for at in range(40)), "more than 100000 values"),
    ],
)
def test_what_is_no_plain_data_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        documents_of(text)
