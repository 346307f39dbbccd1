"""The source map: every key and value has a place, and every question an answer."""

from __future__ import annotations

from endpick.config.source import SourceMap, read_source
from endpick.diagnostics import Code, Span

DOCUMENT = """\
base: &base
  cap: 5
  inner: {deep: 1}
used:
  <<: *base
  own: "two words"
again: *base
list:
  - 1
  - {a: b}
text: |
  first
  second
empty: # nothing
last:
"""


def source_of(text: str) -> SourceMap:
    source, mistakes = read_source(text.encode(), "c.yaml")
    assert mistakes == ()
    return source


def shown(source: SourceMap, span: Span) -> str:
    """The text under a span."""
    lines = source.text.split("\n")
    if span.line == span.end_line:
        return lines[span.line - 1][span.column - 1 : span.end_column - 1]
    middle = lines[span.line : span.end_line - 1]
    return "\n".join([lines[span.line - 1][span.column - 1 :], *middle, lines[span.end_line - 1][: span.end_column - 1]])


def test_spans_cover_exactly_the_text_of_keys_and_values() -> None:
    source = source_of(DOCUMENT)

    assert shown(source, source.key_span(("used", "own"))) == "own"
    assert shown(source, source.value_span(("used", "own"))) == '"two words"'
    assert shown(source, source.value_span(("list",))) == "- 1\n  - {a: b}"
    assert shown(source, source.value_span(("list", 1))) == "{a: b}"
    assert shown(source, source.value_span(("list", 1, "a"))) == "b"
    assert shown(source, source.value_span(("text",))) == "|\n  first\n  second"
    assert shown(source, source.value_span(("base",))) == "cap: 5\n  inner: {deep: 1}"


def test_missing_value_has_an_empty_span_after_its_key() -> None:
    source = source_of(DOCUMENT)

    assert source.value_span(("empty",)) == Span("c.yaml", 14, 7, 14, 7)
    assert source.value_span(("last",)) == Span("c.yaml", 15, 6, 15, 6)
    assert source.value_span(()) == Span("c.yaml", 1, 1, 15, 6)


def test_list_ends_after_its_last_item() -> None:
    source = source_of("a: &a\n  b: {c: 1}\nlist:\n  - 1\n  - *a\nfolded: >\n  one\n  two\n\n\nlast: 1\n")

    assert shown(source, source.value_span(("list",))) == "- 1\n  - *a"
    assert shown(source, source.value_span(("folded",))) == ">\n  one\n  two"


def test_mapping_ends_after_its_last_value() -> None:
    source = source_of("a: &a\n  b: {c: 1}\nmapping:\n  x: 1\n  y: *a\nlast: 1\n")

    assert shown(source, source.value_span(("mapping",))) == "x: 1\n  y: *a"


def test_a_key_without_a_colon_has_no_value() -> None:
    assert source_of("? a\n").data == {"a": None}


def test_a_number_that_json_cannot_carry_reads_as_zero() -> None:
    source, (mistake,) = read_source(b"a: .nan\n", "c.yaml")

    assert (mistake.code, source.data) == (Code.E0207, {"a": 0})


def test_a_merged_value_is_where_it_was_written() -> None:
    source = source_of(DOCUMENT)

    assert source.value_span(("used", "cap")) == source.value_span(("base", "cap"))
    assert source.key_span(("used", "cap")) == source.key_span(("base", "cap"))
    (label,) = source.labels_for(("used", "cap"))
    assert label is not None
    assert label.span == Span("c.yaml", 5, 3, 5, 5)


def test_values_inside_merges_and_aliases_have_a_label() -> None:
    source = source_of(DOCUMENT)

    (merged,) = source.labels_for(("used", "inner", "deep"))
    (aliased,) = source.labels_for(("again", "inner", "deep"))

    assert merged is not None
    assert shown(source, merged.span) == "<<"
    assert aliased is not None
    assert shown(source, aliased.span) == "*base"


def test_a_value_in_its_own_place_has_no_label() -> None:
    source = source_of(DOCUMENT)

    assert source.labels_for(("used", "own")) == ()
    assert source.labels_for(("base", "cap")) == ()
    assert source.labels_for(("base",)) == ()


def test_own_values_and_earlier_merges_win() -> None:
    source = source_of("a: &a {x: 1, y: 1, z: 1}\nb: &b {x: 2, y: 2}\nc: {<<: [*b, *a], x: 3}\n")

    assert source.data == {"a": {"x": 1, "y": 1, "z": 1}, "b": {"x": 2, "y": 2}, "c": {"x": 3, "y": 2, "z": 1}}


def test_merges_reach_through_merges() -> None:
    source = source_of("a: &a {x: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *b}\n")

    assert source.data == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": {"y": 2, "x": 1}}
    (label,) = source.labels_for(("c", "x"))
    assert label is not None
    assert label.span.line == 3


def test_missing_path_has_the_span_of_its_ancestor() -> None:
    source = source_of(DOCUMENT)

    assert source.nearest(("used", "bogus", 3, "x")) == ("used",)
    assert source.key_span(("used", "bogus", 3)) == source.key_span(("used",))
    assert source.value_span(("bogus",)) == source.value_span(())


def test_a_source_without_a_document_points_at_its_start() -> None:
    assert SourceMap("c.yaml", "").value_span(("plugins", 0)) == Span.start_of("c.yaml")


def test_data_is_plain() -> None:
    source = source_of(
        "{a: 1, b: 1.5, c: true, d: ~, e: 2024-01-01, f: 0x10, g: 0o17, h: 1e3, i: on, j: 1_000,\n"
        " n: 1_0.5_0, o: +5, p: -0x1F, q: 0b101, r: 1E-2, k: '5', l: .5, m: =, 8000: n}"
    )

    assert source.data == {
        "a": 1,
        "b": 1.5,
        "c": True,
        "d": None,
        "e": "2024-01-01",
        "f": 16,
        "g": 15,
        "h": 1000.0,
        "i": "on",
        "j": 1000,
        "n": 10.5,
        "o": 5,
        "p": -31,
        "q": 5,
        "r": 0.01,
        "k": "5",
        "l": 0.5,
        "m": "=",
        "8000": "n",
    }


def test_explicit_tags_of_plain_data_are_obeyed() -> None:
    source = source_of("{a: !!str 5, b: !!int '5', c: !!float 1, d: !!seq [1], e: !!map {x: 1}}")

    assert source.data == {"a": "5", "b": 5, "c": 1.0, "d": [1], "e": {"x": 1}}


def test_a_tag_decides_how_a_word_is_read() -> None:
    for written, value in [
        *((f"!!bool {word}", True) for word in ("true", "TRUE", "y", "Yes", "on")),
        *((f"!!bool {word}", False) for word in ("false", "False", "n", "NO", "off")),
        ("!!int -0x1f", -31),
        ("!!int +0b11", 3),
        ("!!float 1_0", 10.0),
    ]:
        assert source_of(f"a: {written}").data == {"a": value}


def test_a_word_that_does_not_fit_its_tag_stays_text() -> None:
    for written in ["!!bool banana", "!!bool 1", "!!int X0x10", "!!int 1.5", "!!float x", "!!float ''"]:
        source, (mistake,) = read_source(f"a: {written}".encode(), "c.yaml")
        tag, word = written.replace("'", "").split(" ")

        assert source.data == {"a": word}
        assert (mistake.code, mistake.message) == (Code.E0203, f"'{word}' does not fit its tag {tag}")


def test_reading_notes_tell_what_yaml_made_of_an_unquoted_word() -> None:
    source = source_of("{a: yes, b: 0x10, c: 1e3, d: 'yes', e: 12, f: word, h: null}")
    data = source.data
    assert isinstance(data, dict)
    notes = {name: source.reading_notes((name,), value) for name, value in data.items()}

    assert notes == {
        "a": ("YAML 1.2 reads yes as text; where a boolean is meant, write true",),
        "b": ("YAML reads 0x10 as 16; quote it if text is meant",),
        "c": ("YAML reads 1e3 as the fractional number 1000.0; write 1000 for the whole number",),
        "d": (),
        "e": (),
        "f": (),
        "h": ("YAML reads null as no value; quote it if text is meant",),
    }


def test_a_mistake_that_several_aliases_lead_to_is_reported_once() -> None:
    text = b"a: &a {x: 012, y: !foo 1, z: 1, z: 2}\nb: *a\nc: {<<: *a}\nd: [*a, *a]\n"

    _, mistakes = read_source(text, "c.yaml")

    assert sorted((str(mistake.code), mistake.span.column) for mistake in mistakes if mistake.span) == [
        ("E0102", 33),
        ("E0103", 19),
        ("E0213", 11),
    ]
