"""Lines and columns are those an editor shows."""

from __future__ import annotations

from endpick.diagnostics.model import Lines

TEXT = "ab\ncd\r\n\re\u2028f"


def test_lines_break_where_editors_break_them() -> None:
    lines = Lines(TEXT)

    assert len(lines) == 4
    assert [lines.line(number) for number in (1, 2, 3, 4)] == ["ab", "cd", "", "e\u2028f"]


def test_there_is_nothing_on_a_line_that_does_not_exist() -> None:
    for number in [-1, 0, 5]:
        assert Lines(TEXT).line(number) == ""


def test_a_position_counts_from_one_and_stays_within_the_text() -> None:
    for index, expected in [
        (-1, (1, 1)),
        (0, (1, 1)),
        (1, (1, 2)),
        (2, (1, 3)),
        (3, (2, 1)),
        (7, (3, 1)),
        (8, (4, 1)),
        (10, (4, 3)),
        (11, (4, 4)),
        (99, (4, 4)),
    ]:
        assert Lines(TEXT).position(index) == expected
