"""Values and paths are named the way their reader wrote them."""

from __future__ import annotations

from endpick.config.shape import MAX_SHOWN, describe, shorten, show_path, value_at


def test_a_value_is_described() -> None:
    for value, words in [
        (None, "no value"),
        (True, "true"),
        (False, "false"),
        (1, "the number 1"),
        (1.5, "the number 1.5"),
        ("", "empty text"),
        ("a", "the text 'a'"),
        ({"a": 1}, "a mapping"),
        ([1], "a list"),
    ]:
        assert describe(value) == words


def test_only_long_text_is_shortened() -> None:
    assert shorten("x" * MAX_SHOWN) == "x" * MAX_SHOWN
    assert shorten("x" * (MAX_SHOWN + 1)) == "x" * (MAX_SHOWN - 3) + "..."
    assert len(shorten("x" * 1000)) == MAX_SHOWN


def test_a_path_is_shown_as_people_write_it() -> None:
    assert show_path(()) == "the document"
    assert show_path(("plugins", 0, "type")) == "plugins[0].type"
    assert show_path((0, "a", 1, 2)) == "[0].a[1][2]"


def test_a_value_is_looked_up_by_path() -> None:
    for path, value in [
        ((), {"a": [{"b": "text"}]}),
        (("a", 0, "b"), "text"),
        (("a", 1), None),
        (("b",), None),
        (("a", "b"), None),
        (("a", 0, "b", 0), None),
        (("a", 0, 0), None),
    ]:
        assert value_at({"a": [{"b": "text"}]}, path) == value
