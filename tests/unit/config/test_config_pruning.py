"""Paths into what is left of a document are paths of the document again."""

from __future__ import annotations

from endpick.config.shape import original_path, prune

DOCUMENT = {"a": "text", "list": [{"x": 0}, {"x": 1}, {"x": 2}]}
FAULTY = frozenset({("list", 0), ("list", 2, "x")})


def test_only_what_is_faulty_is_taken_out() -> None:
    assert prune(DOCUMENT, FAULTY) == {"a": "text", "list": [{"x": 1}, {}]}


def test_original_path_ends_with_the_document() -> None:
    for path, original in [
        (("list", 0, "x"), ("list", 1, "x")),
        (("list", 1), ("list", 2)),
        (("missing",), ("missing",)),
        (("list", 0, "missing"), ("list", 1, "missing")),
        (("a", "b"), ("a",)),
        (("a", 0), ("a",)),
        (("list", "x"), ("list",)),
        ((0,), ()),
    ]:
        assert original_path(path, DOCUMENT, FAULTY) == original
