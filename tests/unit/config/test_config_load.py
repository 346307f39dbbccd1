"""Loading: what a good document becomes, and what is left of a bad one."""

from __future__ import annotations

import os
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from pydantic import ValidationError

from endpick.config import API_VERSIONS, EndpointPickerConfig, load_config, tree
from endpick.config import text as text_module
from endpick.config.text import MAX_BYTES
from endpick.config.tree import MAX_NODES
from endpick.diagnostics import Code, Diagnostic, Span, render_text

HEAD = "apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\n"
TEST_DATA = Path(os.environ.get("ENDPICK_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))
UPSTREAM_CONFIGS = sorted((TEST_DATA / "epp-configs").glob("*.yaml"))


def load(text: str) -> EndpointPickerConfig:
    loaded = load_config(text=text)
    assert loaded.diagnostics == ()
    assert loaded.config is not None
    return loaded.config


def codes_of(text: str) -> list[str]:
    return [str(diagnostic.code) for diagnostic in load_config(text=text).diagnostics]


@pytest.mark.skipif(not UPSTREAM_CONFIGS, reason="set ENDPICK_TEST_DATA to a directory with epp-configs/")
@pytest.mark.parametrize("path", UPSTREAM_CONFIGS, ids=lambda path: path.stem)
def test_a_configuration_of_llm_d_loads(path: Path) -> None:
    loaded = load_config(path)

    assert not loaded.has_errors, loaded.diagnostics
    assert loaded.config is not None
    assert loaded.config.plugins
    assert loaded.config.scheduling_profiles


def test_without_a_file_the_default_of_llm_d_is_loaded() -> None:
    loaded = load_config()

    assert loaded.diagnostics == ()
    assert loaded.config is not None
    (profile,) = loaded.config.scheduling_profiles
    assert {entry.plugin_ref: entry.weight for entry in profile.plugins} == {
        "queue-scorer": 2,
        "kv-cache-utilization-scorer": 2,
        "prefix-cache-scorer": 3,
    }


@pytest.mark.parametrize("version", API_VERSIONS)
def test_every_api_version_loads_the_minimal_document(version: str) -> None:
    loaded = load_config(text=f"apiVersion: {version}\nkind: EndpointPickerConfig\n")

    assert loaded.config is not None
    assert loaded.config.api_version == version
    assert not loaded.has_errors


def test_json_is_yaml() -> None:
    config = load('{"apiVersion": "endpick/v1alpha1", "kind": "EndpointPickerConfig", "plugins": [{"type": "a"}]}')

    assert config.plugins[0].type == "a"


def test_a_file_is_read_from_its_path_and_called_by_it(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"{HEAD}bogus: 1\n")

    loaded = load_config(path)

    assert loaded.path == str(path)
    assert loaded.diagnostics[0].span == Span(str(path), 3, 1, 3, 6)


def test_text_has_the_name_it_is_given() -> None:
    assert load_config(text="").path == "<text>"
    assert load_config(text=HEAD, name="stdin").source.file == "stdin"


def test_every_field_of_the_superset_is_read() -> None:
    config = load(
        f"{HEAD}"
        "featureGates: [flowControl, haPopulateNonLeaderDatastore=False]\n"
        "pluginPolicy: {allowDistributions: [acme], denyTypes: [b], onUnused: Ignore}\n"
        "hooks: [{name: audit, from: acme}]\n"
        "plugins: [{type: a, name: b, from: acme, onFault: FailOpen, parameters: {c: [1, 2.5, true, null, x]}}]\n"
        "schedulingProfiles: [{name: p, plugins: [{pluginRef: b, weight: 0x10}, {pluginRef: c}]}]\n"
        "requestHandler: {parsers: [{pluginRef: openai}]}\n"
        "dataLayer:\n"
        "  injectDefaults: false\n"
        "  discovery: {pluginRef: file}\n"
        "  peerDiscovery: {pluginRef: peers}\n"
        "  crossReplicaSyncerPluginRef: syncer\n"
        "  crossReplicaSyncInterval: 200ms\n"
        "  sources: [{pluginRef: s, collectors: [{pluginRef: c1}]}, {pluginRef: t, extractors: [{pluginRef: c2}]}]\n"
        "flowControl:\n"
        "  maxBytes: 1Gi\n"
        "  maxRequests: 1k\n"
        "  defaultRequestTTL: 1m30s\n"
        "  noEndpointRequestTTL: 0s\n"
        "  defaultPriorityBand: {maxRequests: 5}\n"
        "  defaultNegativePriorityBand: {maxRequests: 1}\n"
        "  priorityBands: [{priority: 1e1, maxBytes: 1.5k, fairnessPolicyRef: f, orderingPolicyRef: o}]\n"
        "  usageLimitPolicyPluginRef: u\n"
        "  saturationDetector: {pluginRef: d}\n"
        "  enableEviction: true\n"
    )

    (plugin,) = config.plugins
    assert (plugin.instance, plugin.from_, plugin.on_fault) == ("b", "acme", "FailOpen")
    assert plugin.parameters == {"c": [1, 2.5, True, None, "x"]}
    assert config.gates == {"flowControl": True, "haPopulateNonLeaderDatastore": False}
    assert [(entry.plugin_ref, entry.weight) for entry in config.scheduling_profiles[0].plugins] == [("b", 16), ("c", None)]
    assert [reference.plugin_ref for reference in config.parser_refs] == ["openai"]
    assert config.saturation_detector_ref is not None
    assert config.saturation_detector_ref.plugin_ref == "d"
    assert config.data_layer is not None
    assert config.data_layer.cross_replica_sync_interval == 0.2
    assert [[c.plugin_ref for c in source.collector_refs] for source in config.data_layer.sources] == [["c1"], ["c2"]]
    assert config.flow_control is not None
    assert (config.flow_control.max_bytes, config.flow_control.max_requests) == (2**30, 1000)
    assert (config.flow_control.default_request_ttl, config.flow_control.no_endpoint_request_ttl) == (90, 0)
    assert [(band.priority, band.max_bytes) for band in config.flow_control.priority_bands] == [(10, 1500)]
    assert config.hooks[0].name == "audit"
    assert config.plugin_policy is not None
    assert config.plugin_policy.on_unused == "Ignore"


def test_deprecated_fields_are_used_until_their_successors_are_given() -> None:
    old = "parser: {pluginRef: old}\nsaturationDetector: {pluginRef: old}\n"
    new = "requestHandler: {parsers: [{pluginRef: new}]}\nflowControl: {saturationDetector: {pluginRef: new}}\n"

    for text, expected in ((old, "old"), (new, "new"), (old + new, "new")):
        config = load_config(text=HEAD + text).config
        assert config is not None
        assert [reference.plugin_ref for reference in config.parser_refs] == [expected]
        assert config.saturation_detector_ref is not None
        assert config.saturation_detector_ref.plugin_ref == expected


def test_a_field_with_nothing_behind_it_counts_as_absent() -> None:
    config = load(f"{HEAD}plugins:\n  - type: a\n    name:\n    parameters:\nschedulingProfiles:\ndataLayer:\n")

    assert config.plugins[0].instance == "a"
    assert config.plugins[0].parameters is None
    assert config.scheduling_profiles == ()


def test_an_empty_name_counts_as_the_type() -> None:
    assert load(f'{HEAD}plugins: [{{type: a, name: ""}}]\n').plugins[0].instance == "a"


def test_the_detector_alone_is_no_section_without_a_gate() -> None:
    assert codes_of(f"{HEAD}flowControl: {{saturationDetector: {{pluginRef: a}}}}\n") == []


def test_parts_know_their_place_in_the_document() -> None:
    loaded = load_config(text=f"{HEAD}plugins:\n  - type: a\n  - oops\n  - type: b\n", name="c.yaml")

    assert loaded.config is not None
    first, second = loaded.config.plugins
    assert (first.path, second.path) == (("plugins", 0), ("plugins", 2))
    assert loaded.source.value_span((*second.path, "type")) == Span("c.yaml", 6, 11, 6, 12)


def test_behaviour_33_seven_independent_mistakes_are_seven_diagnostics_in_document_order() -> None:
    text = (
        "apiVersion: llm-d.ai/v1alpha1\n"
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


@pytest.mark.parametrize(
    ("plugins", "name", "expected"),
    [
        ("[{name: lost}]", "lost", True),
        ("[{name: lost}]", "other", False),
        ("[{type: 5}]", "other", True),
        ("[queue-scorer]", "queue-scorer", True),
        ("[queue-scorer]", "other", False),
        ("[{typ: a}]", "a", True),
        ("text", "other", True),
        ("[{type: a, bogus: 1}]", "other", False),
    ],
)
def test_a_lost_entry_may_have_defined_a_name(plugins: str, name: str, expected: bool) -> None:
    assert load_config(text=f"{HEAD}plugins: {plugins}\n").may_define(name) is expected


def test_a_faulty_version_does_not_hide_other_mistakes() -> None:
    text = "apiVersion: nonsense\nkind: EndpointPicker\nplugins: [{type: a, onFault: FailOpen, bogus: 1}]\n"

    assert codes_of(text) == ["E0204", "E0209", "E0201"]


def test_a_document_of_another_kind_is_not_judged_further() -> None:
    loaded = load_config(text="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {config.yaml: ''}\nplugins: 5\n")

    assert [str(diagnostic.code) for diagnostic in loaded.diagnostics] == ["E0209"]
    assert loaded.config is None


def test_behaviour_29_a_duplicate_key_is_shown_at_both_places() -> None:
    (diagnostic,) = load_config(text=f"{HEAD}plugins: []\nhooks: []\nplugins: []\n", name="c.yaml").diagnostics

    assert diagnostic.span == Span("c.yaml", 5, 1, 5, 8)
    assert [(label.span, label.message) for label in diagnostic.labels] == [(Span("c.yaml", 3, 1, 3, 8), "first given here")]


def test_a_duplicate_key_does_not_hide_other_mistakes() -> None:
    assert codes_of(f"{HEAD}plugins: []\nplugins: []\nbogus: 1\n") == ["E0102", "E0201"]


def test_behaviour_28_a_syntax_error_is_shown_with_its_line_a_caret_and_a_hint() -> None:
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


def test_behaviour_28_merge_conflicts_have_their_own_diagnostic_each_with_both_sides() -> None:
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


def test_what_the_parser_itself_stumbles_over_is_a_mistake_of_the_text() -> None:
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
    assert helps["data"] == "did you mean 'dataLayer'?"
    assert helps["profiles"] == "did you mean 'schedulingProfiles'?"
    assert helps["xyz"] is not None
    assert helps["xyz"].startswith("it may have apiVersion, dataLayer")


@pytest.mark.parametrize(
    ("text", "help_line", "notes"),
    [
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
    ],
)
def test_a_wrong_value_comes_with_what_to_write(text: str, help_line: str | None, notes: tuple[str, ...]) -> None:
    (diagnostic,) = load_config(text=f"{HEAD}{text}\n").diagnostics

    assert (diagnostic.help, diagnostic.notes) == (help_line, notes)


def test_a_parameter_out_of_a_plugin_entry_is_told_where_it_belongs() -> None:
    (diagnostic,) = load_config(text=f"{HEAD}plugins: [{{type: a, cap: 5}}]\n").diagnostics

    assert diagnostic.help == "parameters of the plugin belong under 'parameters:'"


def test_an_entry_that_is_no_text_does_not_hide_a_gate_behind_it() -> None:
    assert codes_of(f"{HEAD}featureGates: [flowControl, 5, x]\n") == ["E0203", "E0208"]


@pytest.mark.parametrize(("digits", "shown"), [(37, "1e" + "9" * 37), (38, "1e" + "9" * 38), (39, f"1e{'9' * 18}...")])
def test_only_long_numbers_are_shortened(digits: int, shown: str) -> None:
    (diagnostic,) = load_config(text=f"{HEAD}plugins: [{{type: a, parameters: {{b: 1e{'9' * digits}}}}}]\n").diagnostics

    assert diagnostic.message == f"{shown} is not a finite number of reasonable size"


def test_a_weight_of_zero_is_no_mistake() -> None:
    assert codes_of(f"{HEAD}schedulingProfiles: [{{name: p, plugins: [{{pluginRef: a, weight: 0}}]}}]\n") == []


@pytest.mark.parametrize("merged", ["''", "5", "[5]", "[[{a: 1}]]", "[{a: 1}, 5]"])
def test_only_mappings_can_be_merged(merged: str) -> None:
    assert codes_of(f"{HEAD}plugins: [{{type: a, parameters: {{<<: {merged}}}}}]\n") == ["E0112"]


def test_behaviour_36_a_file_of_ten_megabytes_is_refused_unread() -> None:
    (diagnostic,) = load_config(text="#" * (10 * 2**20), name="c.yaml").diagnostics

    assert (diagnostic.code, diagnostic.span) == (Code.E0104, Span.start_of("c.yaml"))
    assert str(MAX_BYTES) in diagnostic.message
    assert diagnostic.help == "is this the right file?"


def test_behaviour_36_of_a_file_without_an_end_only_the_beginning_is_read() -> None:
    (diagnostic,) = load_config("/dev/zero").diagnostics

    assert diagnostic.code is Code.E0104


@pytest.mark.parametrize("value", [".nan", "!foo 1", "012", "!!int one"])
def test_what_later_phases_say_of_a_value_that_could_not_be_read_is_left_out(value: str) -> None:
    loaded = load_config(text=f"{HEAD}plugins: [{{type: a, parameters: {{cap: {value}, other: 1}}}}]\n")
    cap, other = (("plugins", 0, "parameters", name) for name in ("cap", "other"))
    echo = Diagnostic(Code.E0401, "must be positive", loaded.source.value_span(cap))
    news = Diagnostic(Code.E0401, "must be positive", loaded.source.value_span(other))
    key = Diagnostic(Code.E0402, "unknown parameter", loaded.source.key_span(cap))

    assert list(loaded.without_echoes([*loaded.diagnostics, echo, news, key])) == [*loaded.diagnostics, news, key]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("seed", "shape"), [("[1, 2]", "[%s]"), ("{k: [1, 2, 3]}", "{<<: [%s]}")], ids=["aliases", "merges"])
def test_behaviour_36_an_alias_bomb_is_refused(seed: str, shape: str) -> None:
    levels = "".join(f"    l{level}: &l{level} {shape % ', '.join([f'*l{level - 1}'] * 9)}\n" for level in range(1, 12))
    text = f"{HEAD}plugins:\n- type: a\n  parameters:\n    l0: &l0 {seed}\n{levels}"

    (diagnostic,) = load_config(text=text).diagnostics

    assert diagnostic.code is Code.E0104
    assert str(MAX_NODES) in diagnostic.message


def test_a_document_may_hold_exactly_as_many_values_as_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    # The document itself, its two fields, the list and its two items.
    text = '{"apiVersion": "endpick/v1alpha1", "kind": "EndpointPickerConfig", "featureGates": ["flowControl", "flowControl"]}'

    monkeypatch.setattr(tree, "MAX_NODES", 6)
    assert codes_of(text) == []

    monkeypatch.setattr(tree, "MAX_NODES", 5)
    (diagnostic,) = load_config(text=text, name="c.yaml").diagnostics
    start = text.rindex('"flowControl"') + 1
    assert (diagnostic.code, diagnostic.path) == (Code.E0104, ("featureGates", 1))
    assert diagnostic.span == Span("c.yaml", 1, start, 1, start + len('"flowControl"'))


def test_a_file_may_have_exactly_as_many_bytes_as_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "MAX_BYTES", len(HEAD))

    assert codes_of(HEAD) == []
    assert codes_of(f"{HEAD}\n") == ["E0104"]


@pytest.mark.parametrize(("number", "octal"), [("012", 10), ("0_12", 10), ("-010", -8)])
def test_an_ambiguous_number_is_told_with_both_readings(number: str, octal: int) -> None:
    (diagnostic,) = load_config(text=f"{HEAD}plugins: [{{type: a, parameters: {{b: {number}}}}}]\n").diagnostics

    decimal = int(number.replace("_", ""))
    assert diagnostic.message == f"{number} is {decimal} to some YAML readers and {octal} to others"


@pytest.mark.timeout(20)
def test_deep_nesting_is_refused() -> None:
    (diagnostic,) = load_config(text=f"{HEAD}plugins: {'[' * 100_000}\n").diagnostics

    assert diagnostic.code is Code.E0104


@pytest.mark.timeout(30)
def test_a_file_just_under_the_limit_is_answered() -> None:
    entry = "  - type: a\n"
    text = HEAD + "plugins:\n" + entry * ((MAX_BYTES - 100) // len(entry))

    loaded = load_config(text=text)

    assert {diagnostic.code for diagnostic in loaded.diagnostics} <= {Code.E0104}


def test_loaded_configurations_cannot_be_changed_by_accident() -> None:
    loaded = load_config()

    assert loaded.config is not None
    with pytest.raises(ValidationError, match="frozen"):
        loaded.config.kind = "other"  # type: ignore[assignment]
    with pytest.raises(FrozenInstanceError):
        loaded.path = "other"  # type: ignore[misc]
