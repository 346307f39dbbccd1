"""Loading: what a good document becomes."""

from __future__ import annotations

import os
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from pydantic import ValidationError

from endpick.config import API_VERSIONS, load_config
from endpick.diagnostics import Span
from unit.config.documents import HEAD, codes_of, load

TEST_DATA = Path(os.environ.get("ENDPICK_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))
UPSTREAM_CONFIGS = sorted((TEST_DATA / "epp-configs").glob("*.yaml"))


@pytest.mark.skipif(not UPSTREAM_CONFIGS, reason="set ENDPICK_TEST_DATA to a directory with epp-configs/")
@pytest.mark.parametrize("path", UPSTREAM_CONFIGS, ids=lambda path: path.stem)
def test_a_configuration_of_llm_d_loads(path: Path) -> None:
    loaded = load_config(path)

    assert not loaded.has_errors, loaded.diagnostics
    assert loaded.config is not None
    assert loaded.config.plugins
    assert loaded.config.scheduling_profiles


def test_without_a_file_the_default_is_loaded() -> None:
    loaded = load_config()

    assert loaded.diagnostics == ()
    assert loaded.config is not None
    (profile,) = loaded.config.scheduling_profiles
    assert [entry.plugin_ref for entry in profile.plugins] == ["predicted-latency"]


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
        "plugins: [{type: a, name: b, from: acme, onFault: FailOpen, maxAge: 1m30s, parameters: {c: [1, 2.5, true, null, x]}}]\n"
        "schedulingProfiles: [{name: p, plugins: [{pluginRef: b, weight: 0x10}, {pluginRef: c}]}]\n"
        "requestHandler: {parsers: [{pluginRef: openai}], propagatePriority: true}\n"
        "dataLayer:\n"
        "  injectDefaults: false\n"
        "  discovery: {endpoints: {pluginRef: file}, peers: {pluginRef: peers}}\n"
        "  crossReplica: {syncerPluginRef: syncer, syncInterval: 300ms, publishTimeout: 2s}\n"
        "  sources: [{pluginRef: s, collectors: [{pluginRef: c1}]}, {pluginRef: t, extractors: [{pluginRef: c2}]}]\n"
        "flowControl:\n"
        "  maxBytes: 1Gi\n"
        "  maxRequests: 1k\n"
        "  defaultRequestTTL: 1m30s\n"
        "  noEndpointRequestTTL: 0s\n"
        "  defaultPriorityBand: {maxRequests: 5}\n"
        "  defaultNegativePriorityBand: {maxRequests: 1}\n"
        "  priorityBands: [{priority: 1e1, maxBytes: 1.5k, fairnessPolicyRef: f, orderingPolicyRef: o, defaultRequestTTL: 9000s}]\n"
        "  usageLimitPolicyPluginRef: u\n"
        "  bandSelectionPolicyPluginRef: strict\n"
        "  saturationDetector: {pluginRef: d}\n"
        "  enableEviction: true\n"
    )

    (plugin,) = config.plugins
    assert (plugin.instance, plugin.from_, plugin.on_fault, plugin.max_age) == ("b", "acme", "FailOpen", 90.0)
    assert plugin.parameters == {"c": [1, 2.5, True, None, "x"]}
    assert config.gates == {"flowControl": True, "haPopulateNonLeaderDatastore": False}
    assert [(entry.plugin_ref, entry.weight) for entry in config.scheduling_profiles[0].plugins] == [("b", 16), ("c", None)]
    assert [reference.plugin_ref for reference in config.parser_refs] == ["openai"]
    assert config.saturation_detector_ref is not None
    assert config.saturation_detector_ref.plugin_ref == "d"
    assert config.data_layer is not None
    assert config.data_layer.discovery_ref == ("file", ("dataLayer", "discovery", "endpoints", "pluginRef"))
    assert config.data_layer.peers_ref == ("peers", ("dataLayer", "discovery", "peers", "pluginRef"))
    assert config.data_layer.syncer_ref == ("syncer", ("dataLayer", "crossReplica", "syncerPluginRef"))
    assert config.data_layer.cross_replica is not None
    assert (config.data_layer.cross_replica.sync_interval, config.data_layer.cross_replica.publish_timeout) == (0.3, 2.0)
    assert config.request_handler is not None
    assert config.request_handler.propagate_priority is True
    assert [[c.plugin_ref for c in source.collector_refs] for source in config.data_layer.sources] == [["c1"], ["c2"]]
    assert config.flow_control is not None
    assert (config.flow_control.max_bytes, config.flow_control.max_requests) == (2**30, 1000)
    assert (config.flow_control.default_request_ttl, config.flow_control.no_endpoint_request_ttl) == (90, 0)
    assert [(band.priority, band.max_bytes, band.default_request_ttl) for band in config.flow_control.priority_bands] == [(10, 1500, 9000)]
    assert config.flow_control.band_selection_policy_plugin_ref == "strict"
    assert config.plugin_policy is not None
    assert config.plugin_policy.on_unused == "Ignore"


def test_deprecated_fields_are_used_without_successor() -> None:
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


def test_loaded_configurations_cannot_be_changed_by_accident() -> None:
    loaded = load_config()

    assert loaded.config is not None
    with pytest.raises(ValidationError, match="frozen"):
        loaded.config.kind = "other"  # type: ignore[assignment]
    with pytest.raises(FrozenInstanceError):
        loaded.path = "other"  # type: ignore[misc]
