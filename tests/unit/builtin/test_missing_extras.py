"""What an operator reads when a plugin needs a package that is not installed."""

from __future__ import annotations

import sys

import pytest

from endpick.api import PluginContext
from endpick.diagnostics import Diagnostic
from endpick.host.instance import build
from endpick_builtin import collection
from endpick_builtin.collection.otlp import OtlpParameters, OtlpSource
from endpick_builtin.fleet.stores import ValkeyParameters, ValkeyStateStore
from endpick_builtin.listed_discovery import DnsDiscovery, DnsDiscoveryParameters
from endpick_builtin.observers import AttributeReporterParameters, RequestAttributeReporter
from plugin_classes import load_class

CEL = {"attributes": [{"key": {"name": "tokens"}, "expression": "usage.total_tokens"}]}


@pytest.mark.parametrize(
    ("plugin", "parameters", "package", "extra"),
    [
        (ValkeyStateStore, ValkeyParameters(url="valkey://localhost"), "valkey", "fleet"),
        (OtlpSource, OtlpParameters(), "endpick_builtin.collection.otlp_messages", "otlp"),
        (DnsDiscovery, DnsDiscoveryParameters(hostname="models.example"), "dns.asyncresolver", "dns"),
        (RequestAttributeReporter, AttributeReporterParameters.model_validate(CEL), "celpy", "cel"),
    ],
    ids=["fleet", "otlp", "dns", "cel"],
)
def test_the_way_out_is_the_command_that_installs_it(monkeypatch, plugin, parameters, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delattr(collection, "otlp_messages", raising=False)  # left there by an import
    loaded = load_class(plugin).loaded
    assert loaded is not None
    found = build(loaded, "named", parameters, None, PluginContext())
    assert isinstance(found, Diagnostic)
    assert found.help == f"pip install 'endpick[{extra}]'"
