"""Diagnostics as people see them. Set ENDPICK_UPDATE_GOLDEN=1 to write the golden files anew, then read the difference."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

from endpick.diagnostics import Code, Diagnostic, Label, PluginReference, Span, render_text, wants_colour
from endpick.diagnostics.render import MAX_LINE_LENGTH, printable

GOLDEN = Path(__file__).parent / "golden"

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
defaults: &defaults
  treshold: 3

plugins:
  - type: queue-scorer
    parameters:
      <<: *defaults
  - type: acme.latency
  - type: max-score-picker
schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: queue-scorer
"""


def at(line: int, column: int, length: int, file: str = "config.yaml") -> Span:
    return Span(file, line, column, line, column + length)


UNKNOWN_PARAMETER = Diagnostic(
    Code.E0402,
    "unknown parameter 'treshold' for queue-scorer",
    at(4, 3, 8),
    labels=(Label(at(9, 7, 2), "merged in here"),),
    help="did you mean 'threshold'?",
    plugin=PluginReference("queue-scorer", distribution="endpick", version="0.1.0"),
    annotation="not in the schema of queue-scorer",
)

CASES: dict[str, tuple[list[Diagnostic], dict[str, str]]] = {
    "a-mistake-and-where-it-was-merged": ([UNKNOWN_PARAMETER], {"config.yaml": CONFIG}),
    "several-in-document-order": (
        [
            Diagnostic(Code.E0801, "cannot listen on 0.0.0.0:9002: address already in use"),
            Diagnostic(Code.N0501, "added max-score-picker to 'default'", at(13, 5, 4)),
            Diagnostic(Code.W0301, "'max-score-picker' is not used", at(11, 11, 16), help="remove it"),
            UNKNOWN_PARAMETER,
        ],
        {"config.yaml": CONFIG},
    ),
    "two-marks-on-one-line": (
        [
            Diagnostic(
                Code.E0212,
                "two names of one field",
                at(1, 18, 10, "flow.yaml"),
                labels=(Label(at(1, 2, 10, "flow.yaml"), "the other is here"),),
            )
        ],
        {"flow.yaml": "{extractors: [], collectors: []}\n"},
    ),
    "another-file": (
        [
            Diagnostic(
                Code.E0304,
                "acme.latency is offered by good-scorers 1.0 and evil-scorers 1.0",
                at(10, 11, 12),
                labels=(
                    Label(at(2, 1, 12, "good/entry_points.txt"), "good-scorers 1.0"),
                    Label(at(7, 1, 12, "evil/entry_points.txt"), "evil-scorers 1.0"),
                ),
                help="add 'from: good-scorers' or 'from: evil-scorers'",
                notes=("neither is imported\nuntil one is chosen", "run `endpick doctor`"),
            )
        ],
        {"config.yaml": CONFIG, "good/entry_points.txt": "[endpick.plugins.v1]\nacme.latency = good:Latency\n"},
    ),
    "a-span-of-several-lines": (
        [Diagnostic(Code.E0203, "plugins must be a list, not a mapping", Span("a.yaml", 2, 3, 3, 10))],
        {"a.yaml": "plugins:\n  type: a   \n  name: b\n"},
    ),
    "wide-combining-and-hidden-characters": (
        [
            Diagnostic(Code.E0201, "'x\u202ey' is not a field", at(1, 9, 3, "wide.yaml")),
            Diagnostic(Code.E0203, "tabs and \x1b[31mescapes\x1b[0m are shown, not obeyed", at(2, 4, 3, "wide.yaml")),
            Diagnostic(Code.E0203, "the end of the line", at(3, 3, 0, "wide.yaml")),
        ],
        {"wide.yaml": "日本: {e\u0301, x\u202ey: 1}\na:\tb\x1bc\nc:\n"},
    ),
    "a-very-long-line": (
        [Diagnostic(Code.E0201, "'needle' is not a field", at(1, 501, 6, "long.yaml"))],
        {"long.yaml": f"{'x' * 500}needle{'y' * 500}\n"},
    ),
    "line-numbers-of-different-width": (
        [Diagnostic(Code.E0102, "twice", at(10, 1, 1, "n.yaml"), labels=(Label(at(1, 1, 1, "n.yaml"), "first"),))],
        {"n.yaml": "a: 1\n" + "#\n" * 8 + "a: 2\n"},
    ),
}


def test_the_text_is_as_agreed() -> None:
    for name, (diagnostics, sources) in CASES.items():
        golden = GOLDEN / f"{name}.txt"

        text = render_text(diagnostics, sources)

        if os.environ.get("ENDPICK_UPDATE_GOLDEN"):
            golden.write_text(text, encoding="utf-8")
        assert text == golden.read_text(encoding="utf-8")


def test_there_is_no_golden_file_without_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)


def test_colour_only_adds_to_the_text() -> None:
    for diagnostics, sources in CASES.values():
        plain = render_text(diagnostics, sources)
        coloured = render_text(diagnostics, sources, colour=True)

        assert coloured != plain
        assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_colours_show_severity_and_labels() -> None:
    text = render_text([UNKNOWN_PARAMETER], {"config.yaml": CONFIG}, colour=True)

    assert text.startswith("\x1b[1;31merror[E0402]\x1b[0m\x1b[1m: unknown parameter 'treshold' for queue-scorer\x1b[0m\n")
    assert "\x1b[1;31m^^^^^^^^ not in the schema of queue-scorer\x1b[0m" in text
    assert "\x1b[1;34m-- merged in here\x1b[0m" in text
    for code, colour in ((Code.W0301, "1;33"), (Code.N0501, "1;36")):
        assert render_text([Diagnostic(code, "x")], colour=True).startswith(f"\x1b[{colour}m")


def test_a_line_is_cut_only_where_it_is_too_long() -> None:
    for length, shown in [(MAX_LINE_LENGTH, "x" * 140), (MAX_LINE_LENGTH + 1, "x" * 140 + "…")]:
        text = render_text([Diagnostic(Code.E0201, "m", at(1, 1, 1, "l"))], {"l": "x" * length})

        assert text.splitlines()[3] == f" 1 | {shown}"


def test_short_line_is_shown_from_its_start() -> None:
    for length in [30, MAX_LINE_LENGTH]:
        line = f"{'x' * (length - 1)}!"

        text = render_text([Diagnostic(Code.E0201, "m", at(1, length, 1, "l"))], {"l": line})

        assert text.splitlines()[3:5] == [f" 1 | {line}", f"   | {' ' * (length - 1)}^"]


def test_multi_line_span_is_underlined_on_its_first_line() -> None:
    text = render_text([Diagnostic(Code.E0203, "m", Span("a.yaml", 1, 3, 2, 4))], {"a.yaml": "- type: first   \n- b\n"})

    assert text.splitlines()[3:5] == [" 1 | - type: first", "   |   ^^^^^^^^^^^"]


def test_a_single_line_left_out_is_told() -> None:
    diagnostic = Diagnostic(Code.E0102, "twice", at(5, 1, 1, "n"), labels=(Label(at(1, 1, 1, "n"), "first"),))

    text = render_text([diagnostic], {"n": "a: 1\nb:\nc:\nd:\na: 2\n"})

    assert [line.partition(" |")[0] for line in text.splitlines()[3:9]] == [" 1", "  ", " ...", " 3", " 4", " 5"]


def test_blank_lines_before_a_mistake_are_left_out() -> None:
    text = render_text([Diagnostic(Code.E0201, "m", at(3, 1, 1, "n"))], {"n": "a:\n   \nb:\n"})

    assert [line.partition(" |")[0] for line in text.splitlines()[3:6]] == [" 1", " ...", " 3"]


def test_a_character_that_cannot_be_seen_is_shown_as_its_number() -> None:
    for character in ["\x1b", "\u202e", "\ud800", "\u2028", "\u2029", "\ue000", "\u0378"]:
        assert printable(f"a{character}b") == f"a\\u{ord(character):04x}b"


def test_a_diagnostic_without_a_place_still_shows_its_labels() -> None:
    diagnostic = Diagnostic(Code.E0801, "m", labels=(Label(at(1, 1, 2, "l"), "asked for here"),))

    assert render_text([diagnostic], {"l": "ab\n"}) == (
        "error[E0801]: m\n  ::: l:1:1\n   |\n 1 | ab\n   | -- asked for here\n   = docs: endpick explain E0801\n"
    )


def test_an_empty_note_is_an_empty_note() -> None:
    text = render_text([Diagnostic(Code.E0801, "m", notes=("",))])

    assert text == "error[E0801]: m\n   = note:\n   = docs: endpick explain E0801\n"


def test_a_file_without_text_is_only_named() -> None:
    assert render_text([Diagnostic(Code.E0108, "m", Span.start_of("l"))], {"l": ""}) == (
        "error[E0108]: m\n  --> l:1:1\n   = docs: endpick explain E0108\n"
    )


def test_nothing_to_say_is_no_text() -> None:
    assert render_text([]) == ""


def test_no_line_ends_in_a_space() -> None:
    for diagnostics, sources in CASES.values():
        assert [line for line in render_text(diagnostics, sources).splitlines() if line != line.rstrip()] == []


def test_beyond_the_limit_only_the_number_is_given() -> None:
    many = [Diagnostic(Code.E0201, f"mistake {number}", at(number, 1, 1)) for number in range(1, 61)]

    text = render_text(many)

    assert text.count("error[E0201]") == 50
    assert "mistake 50\n" in text
    assert "mistake 51\n" not in text
    assert text.endswith("\n\n... and 10 more; repair these first\n")


def test_warnings_give_way_to_errors() -> None:
    warnings = [Diagnostic(Code.W0301, f"warning {number}", at(number, 1, 1)) for number in range(1, 5)]
    errors = [Diagnostic(Code.E0201, f"mistake {number}", at(number, 1, 1)) for number in range(5, 8)]

    text = render_text([*warnings, *errors], limit=4)

    assert [line for line in text.splitlines() if line.startswith(("warning", "error", "..."))] == [
        "warning[W0301]: warning 1",
        "error[E0201]: mistake 5",
        "error[E0201]: mistake 6",
        "error[E0201]: mistake 7",
        "... and 3 more; repair these first",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_a_terminal_that_wants_colour_gets_it() -> None:
    for stream, environment, expected in [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ]:
        assert wants_colour(stream, environment) is expected
