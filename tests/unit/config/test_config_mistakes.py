"""Loading: what is said about a bad document, and what is left of it."""

from __future__ import annotations

from endpick.config import load_config
from endpick.diagnostics import Code, Diagnostic, Span, render_text
from unit.config.documents import HEAD, codes_of, load


def test_behaviour_33_seven_mistakes_in_document_order() -> None:
    text = (
        "apiVersion: llm-d.ai/v1\n"
        "kind: EndpointPickerConfg\n"
        "featureGates: [dataLayer]\n"
        "plugins:\n"
        "  - type: 5\n"
        "  - typ: queue-scorer\n"
        "schedulingProfiles:\n"
        "  - name: default\n"
        "    plugins:\n"
        "      - {pluginRef: a, weight: .inf}\n"
        "      - {pluginRef: b, weight: heavy}\n"
        "flowControl: {defaultRequestTTL: soon}\n"
    )

    diagnostics = load_config(text=text).diagnostics

    assert [(str(diagnostic.code), diagnostic.span.line) for diagnostic in diagnostics if diagnostic.span] == [
        ("E0209", 2),
        ("E0208", 3),
        ("E0203", 5),
        ("E0201", 6),
        ("E0207", 10),
        ("E0203", 11),
        ("E0210", 12),
    ]


def test_sound_parts_survive_faulty_neighbours() -> None:
    loaded = load_config(
        text=f"{HEAD}plugins:\n  - {{type: a, bogus: 1}}\n  - {{name: lost}}\n  - {{type: c, parameters: 5}}\n"
        "schedulingProfiles:\n  - name: p\n    plugins: [{pluginRef: a, weight: x}, {weight: 1}]\n"
    )

    config = loaded.config
    assert config is not None
    assert [plugin.instance for plugin in config.plugins] == ["a", "c"]
    assert config.plugins[1].parameters is None
    assert [(entry.plugin_ref, entry.weight) for entry in config.scheduling_profiles[0].plugins] == [("a", None)]


def test_damage_is_known_where_something_was_taken_out() -> None:
    loaded = load_config(
        text=f"{HEAD}plugins:\n  - type: a\n  - name: lost\nschedulingProfiles:\n"
        "  - {name: p, plugins: [{weight: 1}]}\n  - {name: q}\n"
    )

    assert loaded.is_damaged(("schedulingProfiles", 0))
    assert loaded.is_damaged(("schedulingProfiles", 0, "plugins", 0, "weight"))
    assert not loaded.is_damaged(("schedulingProfiles", 1))
    assert not loaded.is_damaged(("plugins", 0))


def test_a_lost_entry_may_have_defined_a_name() -> None:
    for plugins, name, expected in [
        ("[{name: lost}]", "lost", True),
        ("[{name: lost}]", "other", False),
        ("[{type: 5}]", "other", True),
        ("[queue-scorer]", "queue-scorer", True),
        ("[queue-scorer]", "other", False),
        ("[{typ: a}]", "a", True),
        ("text", "other", True),
        ("[{type: a, bogus: 1}]", "other", False),
    ]:
        assert load_config(text=f"{HEAD}plugins: {plugins}\n").may_define(name) is expected


def test_a_faulty_version_does_not_hide_other_mistakes() -> None:
    text = "apiVersion: nonsense\nkind: EndpointPicker\nplugins: [{type: a, onFault: FailOpen, bogus: 1}]\n"

    assert codes_of(text) == ["E0204", "E0209", "E0201"]


def test_a_document_of_another_kind_is_not_judged_further() -> None:
    loaded = load_config(text="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {config.yaml: ''}\nplugins: 5\n")

    assert [str(diagnostic.code) for diagnostic in loaded.diagnostics] == ["E0209"]
    assert loaded.config is None


def test_behaviour_29_a_duplicate_key_is_shown_at_both_places() -> None:
    (diagnostic,) = load_config(text=f"{HEAD}plugins: []\nmodels: []\nplugins: []\n", name="c.yaml").diagnostics

    assert diagnostic.span == Span("c.yaml", 5, 1, 5, 8)
    assert [(label.span, label.message) for label in diagnostic.labels] == [(Span("c.yaml", 3, 1, 3, 8), "first given here")]


def test_a_duplicate_key_does_not_hide_other_mistakes() -> None:
    assert codes_of(f"{HEAD}plugins: []\nplugins: []\nbogus: 1\n") == ["E0102", "E0201"]


def test_behaviour_28_syntax_error_has_caret_and_hint() -> None:
    loaded = load_config(text=f"{HEAD}plugins: {{type: @a}}\n", name="c.yaml")

    assert render_text(loaded.diagnostics, {"c.yaml": loaded.source.text}) == (
        "error[E0101]: found character '@' that cannot start any token\n"
        "  --> c.yaml:3:17\n"
        "   |\n"
        " 1 | apiVersion: endpick/v1alpha1\n"
        " 2 | kind: EndpointPickerConfig\n"
        " 3 | plugins: {type: @a}\n"
        "   |                 ^\n"
        "   = help: quote the value if it is meant to begin with this character\n"
        "   = docs: endpick explain E0101\n"
    )


def test_behaviour_28_merge_conflict_is_shown_with_both_sides() -> None:
    conflict = "<<<<<<< a\nx: 1\n=======\nx: 2\n>>>>>>> b\n"

    diagnostics = load_config(text=f"{HEAD}{conflict}{conflict}").diagnostics

    assert [(diagnostic.code, diagnostic.span.line) for diagnostic in diagnostics if diagnostic.span] == [
        (Code.E0106, 3),
        (Code.E0106, 8),
    ]
    assert [label.span.line for label in diagnostics[0].labels] == [5, 7]


def test_a_conflict_has_only_the_marks_before_the_next_one() -> None:
    first, second = load_config(text=f"{HEAD}<<<<<<< a\n<<<<<<< b\n=======\n>>>>>>> c\n").diagnostics

    assert first.labels == ()
    assert [(label.span.line, label.message) for label in second.labels] == [(5, "other side"), (6, "end")]


def test_parser_failure_is_a_syntax_error() -> None:
    loaded = load_config(text=f'{HEAD}plugins: "\\UFFFFFFFF"\n', name="c.yaml")

    (diagnostic,) = loaded.diagnostics
    assert (diagnostic.code, diagnostic.span) == (Code.E0101, Span.start_of("c.yaml"))
    assert diagnostic.message.startswith("the text cannot be parsed as YAML (")
    assert (loaded.source.file, loaded.source.data) == ("c.yaml", None)


def test_conflict_markers_inside_a_block_of_text_are_text() -> None:
    config = load(f"{HEAD}plugins:\n  - type: a\n    parameters:\n      text: |\n        <<<<<<< HEAD\n        =======\n")

    assert config.plugins[0].parameters == {"text": "<<<<<<< HEAD\n=======\n"}


def test_behaviour_30_misspelt_fields_are_suggested_when_close() -> None:
    helps = {
        name: load_config(text=f"{HEAD}{name}: []\n").diagnostics[0].help
        for name in ("plugin", "scheduling_profiles", "data", "profiles", "xyz")
    }

    assert helps["plugin"] == "did you mean 'plugins'?"
    assert helps["scheduling_profiles"] == "did you mean 'schedulingProfiles'?"
    assert helps["data"] == "use dataLayer"
    assert helps["profiles"] == "did you mean 'schedulingProfiles'?"
    assert helps["xyz"] is not None
    assert helps["xyz"].startswith("it may have apiVersion, dataLayer")


def test_a_wrong_value_comes_with_what_to_write() -> None:
    for text, help_line, notes in [
        ("plugins: [queue-scorer]", "write 'type: queue-scorer'", ()),
        ("plugins: queue-scorer", "write '[{type: queue-scorer}]'", ()),
        ("featureGates: flowControl", "write '[flowControl]'", ()),
        ("plugins: [{type: a, parameters: [1]}]", "write 'key: value' instead of list entries", ()),
        ("plugins: [{type: a, parameters: text}]", None, ()),
        ("plugins: [{type: true}]", "put the value in quotes", ()),
        ("plugins: 5", None, ()),
        ("flowControl: {priorityBands: [{priority: '1'}]}\nfeatureGates: [flowControl]", "write the number without quotes", ()),
        ("plugins: {type: a}", "begin each entry with '- '", ()),
        ("plugins: [{type: 5}]", "put the value in quotes", ()),
        (
            "plugins: [{type: 0x10}]",
            "put the value in quotes",
            ("YAML reads 0x10 as 16; quote it if text is meant",),
        ),
        ("plugins: [{type: True}]", "put the value in quotes", ("YAML reads True as true; quote it if text is meant",)),
        (
            "dataLayer: {injectDefaults: off}",
            None,
            ("YAML 1.2 reads off as text; where a boolean is meant, write false",),
        ),
        ("dataLayer: {injectDefaults: 'off'}", None, ()),
        ("schedulingProfiles: [{name: a, plugins: [{pluginRef: b, weight: on}]}]", None, ()),
        ("dataLayer: {crossReplicaSyncInterval: 5}", "write '5s' if seconds are meant", ()),
        ("flowControl: text", None, ()),
        ("plugins: [{type: a, onFault: FailOpenn}]", "did you mean 'FailOpen'?", ()),
        ("plugins: [{type: a, onFault: FailClosed}]", "did you mean 'FailClose'?", ()),
    ]:
        (diagnostic,) = load_config(text=f"{HEAD}{text}\n").diagnostics

        assert (diagnostic.help, diagnostic.notes) == (help_line, notes)


def test_misplaced_parameter_gets_advice() -> None:
    (diagnostic,) = load_config(text=f"{HEAD}plugins: [{{type: a, cap: 5}}]\n").diagnostics

    assert diagnostic.help == "parameters of the plugin belong under 'parameters:'"


def test_an_entry_that_is_no_text_does_not_hide_a_gate_behind_it() -> None:
    assert codes_of(f"{HEAD}featureGates: [flowControl, 5, x]\n") == ["E0203", "E0208"]


def test_only_long_numbers_are_shortened() -> None:
    for digits, shown in [(37, "1e" + "9" * 37), (38, "1e" + "9" * 38), (39, f"1e{'9' * 18}...")]:
        (diagnostic,) = load_config(text=f"{HEAD}plugins: [{{type: a, parameters: {{b: 1e{'9' * digits}}}}}]\n").diagnostics

        assert diagnostic.message == f"{shown} is not a finite number of reasonable size"


def test_a_weight_of_zero_is_no_mistake() -> None:
    assert codes_of(f"{HEAD}schedulingProfiles: [{{name: p, plugins: [{{pluginRef: a, weight: 0}}]}}]\n") == []


def test_only_mappings_can_be_merged() -> None:
    for merged in ["''", "5", "[5]", "[[{a: 1}]]", "[{a: 1}, 5]"]:
        assert codes_of(f"{HEAD}plugins: [{{type: a, parameters: {{<<: {merged}}}}}]\n") == ["E0112"]


def test_unreadable_value_is_reported_once() -> None:
    for value in [".nan", "!foo 1", "012", "!!int one"]:
        loaded = load_config(text=f"{HEAD}plugins: [{{type: a, parameters: {{cap: {value}, other: 1}}}}]\n")
        cap, other = (("plugins", 0, "parameters", name) for name in ("cap", "other"))
        echo = Diagnostic(Code.E0401, "must be positive", loaded.source.value_span(cap))
        news = Diagnostic(Code.E0401, "must be positive", loaded.source.value_span(other))
        key = Diagnostic(Code.E0402, "unknown parameter", loaded.source.key_span(cap))

        assert list(loaded.without_echoes([*loaded.diagnostics, echo, news, key])) == [*loaded.diagnostics, news, key]


def test_an_ambiguous_number_is_told_with_both_readings() -> None:
    for number, octal in [("012", 10), ("0_12", 10), ("-010", -8)]:
        (diagnostic,) = load_config(text=f"{HEAD}plugins: [{{type: a, parameters: {{b: {number}}}}}]\n").diagnostics

        decimal = int(number.replace("_", ""))
        assert diagnostic.message == f"{number} is {decimal} to some YAML readers and {octal} to others"
