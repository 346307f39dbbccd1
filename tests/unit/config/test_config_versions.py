"""Fields of each apiVersion, their deprecated places, and feature gates from the command line."""

from __future__ import annotations

import pytest

from endpick.config import LoadedConfig, load_config
from endpick.config.gates import parse_gates

V1, ALPHA, FORMER, ENDPICK = "llm-d.ai/v1", "llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1", "endpick/v1alpha1"

MOVED = {  # former place, successor, and what they mean
    "dataLayer: {discovery: {pluginRef: a}}": ("dataLayer: {discovery: {endpoints: {pluginRef: b}}}", "discovery_ref"),
    "dataLayer: {peerDiscovery: {pluginRef: a}}": ("dataLayer: {discovery: {peers: {pluginRef: b}}}", "peers_ref"),
    "dataLayer: {crossReplicaSyncerPluginRef: a}": ("dataLayer: {crossReplica: {syncerPluginRef: b}}", "syncer_ref"),
}


def load(version: str, body: str, *gates: str) -> LoadedConfig:
    return load_config(text=f"apiVersion: {version}\nkind: EndpointPickerConfig\n{body}\n", name="c.yaml", gates=gates)


def codes(loaded: LoadedConfig) -> list[str]:
    return sorted(one.code.name for one in loaded.diagnostics)


def meaning(loaded: LoadedConfig, field: str) -> str:
    assert loaded.config is not None
    return getattr(loaded.config.data_layer, field)[0]


@pytest.mark.parametrize("former", MOVED)
def test_a_moved_field_belongs_to_its_api_versions(former):
    successor, field = MOVED[former]
    told = {version: (load(version, former), load(version, successor)) for version in (V1, ALPHA, FORMER, ENDPICK)}

    assert {version: codes(old) for version, (old, _) in told.items()} == {
        V1: ["E0214"], ALPHA: ["W0202"], FORMER: ["W0202"], ENDPICK: ["W0203"]
    }  # fmt: skip
    assert [meaning(told[version][0], field) for version in (ALPHA, FORMER, ENDPICK)] == ["a"] * 3
    is_v1_only = field == "syncer_ref"
    alpha = ["E0214", "W0202"] if is_v1_only else ["W0202"]
    assert {version: codes(new) for version, (_, new) in told.items()} == {V1: [], ALPHA: alpha, FORMER: alpha, ENDPICK: []}
    assert meaning(told[V1][1], field) == "b"


@pytest.mark.parametrize("former", MOVED)
def test_the_successor_wins_over_the_former_place(former):
    successor, field = MOVED[former]
    inner = [text.removeprefix("dataLayer: {").removesuffix("}") for text in (former, successor)]
    both = f"dataLayer: {{{', '.join(inner)}}}" if field != "discovery_ref" else (
        "dataLayer: {discovery: {pluginRef: a, endpoints: {pluginRef: b}}}"
    )  # fmt: skip

    loaded = load(ENDPICK, both)

    assert (codes(loaded), meaning(loaded, field)) == (["W0203", "W0205"], "b")
    assert "E0214" in codes(load(V1, both))


def test_the_note_about_the_version_lists_what_moves():
    (note,) = load(ALPHA, "dataLayer: {discovery: {pluginRef: a}, crossReplicaSyncInterval: 1s}").diagnostics

    assert note.help == "`endpick migrate FILE` rewrites it as llm-d.ai/v1"
    assert note.notes == (
        "'dataLayer.crossReplicaSyncInterval' becomes 'dataLayer.crossReplica.syncInterval'",
        "'dataLayer.discovery.pluginRef' becomes 'dataLayer.discovery.endpoints.pluginRef'",
    )


def test_a_publish_timeout_must_be_positive():
    for version, field in ((V1, "crossReplica: {publishTimeout: 0s}"), (ALPHA, "crossReplicaPublishTimeout: 0s")):
        assert "E0205" in codes(load(version, f"dataLayer: {{{field}}}"))


def test_gates_of_the_command_line_override_the_document():
    body = "featureGates: [flowControl=false]\nflowControl: {maxRequests: 5}"

    assert codes(load(V1, body)) == ["W0204"]
    assert codes(load(V1, body, *parse_gates("flowControl, haPopulateNonLeaderDatastore=false"))) == []
    for text in ("flowcontroll", "flowControl=maybe"):
        with pytest.raises(ValueError, match="feature gate"):
            parse_gates(text)
