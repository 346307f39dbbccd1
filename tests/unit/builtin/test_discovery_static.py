"""Static discovery: endpoints that stand in the configuration."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import ValidationError

from endpick.api import ConfigurationError, PluginContext
from endpick.data.table import EndpointTable
from endpick_builtin.listed_discovery import StaticDiscovery, StaticDiscoveryParameters

A = {"name": "a", "address": "10.0.0.1", "port": "8000", "labels": {"role": "decode"}}


def found(*endpoints: dict) -> EndpointTable:
    table = EndpointTable(lambda: 0.0)
    parameters = StaticDiscoveryParameters.model_validate({"endpoints": list(endpoints)})
    asyncio.run(StaticDiscovery("static", parameters, PluginContext()).run(table))
    return table


def test_the_endpoints_are_those_of_the_parameters():
    table = found(A, {"name": "b", "namespace": "models", "address": "fd00:0::2", "port": 8001})
    assert table.is_ready.is_set()
    assert [(one.name, one.address, dict(one.labels)) for one in table.view()] == [
        ("default/a", "10.0.0.1:8000", {"role": "decode"}),
        ("models/b", "[fd00::2]:8001", {}),
    ]


def test_two_endpoints_of_one_name_are_a_mistake():
    with pytest.raises(ConfigurationError, match="two of its endpoints are called 'default/a'"):
        found(A, {**A, "port": 1})


@pytest.mark.parametrize(
    "change",
    [
        {"address": "model.example"},
        {"address": "[fd00::2]"},
        {"port": 0},
        {"port": 65536},
        {"name": ""},
        {"weight": 1},
        {"labels": {"a": 1}},
    ],
)
def test_what_is_no_endpoint_is_refused(change):
    with pytest.raises(ValidationError):
        found({**A, **change})


def test_a_pool_without_endpoints_is_refused():
    with pytest.raises(ValidationError):
        found()
