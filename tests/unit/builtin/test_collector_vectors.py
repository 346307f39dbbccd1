"""Collectors on the golden vectors: what they write, and what they say of the rest."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import pytest

import yaml_files
from endpick.api import Endpoint, EndpointChange, EndpointEvent, MetricsPage, PluginContext, Unavailable
from endpick.api.keys import Topology
from endpick.data.table import EndpointTable
from endpick.host.discovery import discover
from endpick.host.loader import load
from endpick.host.resolution import Reference
from endpick.host.schema import own_model

VECTORS = yaml_files.load(Path(__file__).parents[2] / "fixtures/vectors/collectors.yaml")


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["case"])
def test_a_collector_writes_what_the_vector_says(vector):
    (candidate,) = (one for one in discover() if one.type == vector["type"])
    plugin = load(candidate, Reference(vector["type"]), ()).loaded.plugin
    parameters = own_model(plugin).model_validate(vector.get("parameters", {}))
    collector = plugin("collector", parameters, PluginContext())
    keys = plugin.subscriptions(parameters).produces
    table = EndpointTable(lambda: 0.0, keys)
    endpoint = Endpoint(vector["endpoint"], "192.0.2.1", 8000, vector.get("labels", {}))
    table.upsert(endpoint)
    payload = MetricsPage(vector["page"].encode()) if "page" in vector else EndpointEvent(EndpointChange.ADDED, endpoint)

    said = ""
    try:
        collector.collect(payload, table.writer(None, endpoint))
    except Unavailable as problem:
        said = str(problem)

    values = {key.name: table.generation.columns[key.name].values[0] for key in keys}
    written = {name: value for name, value in values.items() if value is not None and value == value}
    assert {name: list(astuple(value)) if isinstance(value, Topology) else value for name, value in written.items()} == vector["expect"]
    assert vector.get("unavailable", "") in said
    assert bool(said) == ("unavailable" in vector)


def test_an_endpoint_that_has_left_gets_no_topology():
    (candidate,) = (one for one in discover() if one.type == "topology-extractor")
    plugin = load(candidate, Reference(candidate.type), ()).loaded.plugin
    table = EndpointTable(lambda: 0.0, plugin.produces)
    endpoint = Endpoint("default/a", "192.0.2.1", 8000, {"kubernetes.io/hostname": "node-1"})
    table.upsert(endpoint)
    collector = plugin("topology", own_model(plugin)(), PluginContext())
    collector.collect(EndpointEvent(EndpointChange.REMOVED, endpoint), table.writer(None, endpoint))
    assert table.view().objects(plugin.produces[0]) == [None]
