"""What a hook object is shown is its own."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from endpick.api import hookimpl
from endpick.api.hooks import HostView
from endpick.config.source import read_source
from endpick.host.breaker import BreakerSettings
from endpick.host.discovery import Candidate
from endpick.host.hooks import HookRegistry
from endpick.host.resolution import Reference
from endpick.serve.hook_circuits import HookCircuits
from endpick.serve.metrics import EndpickMetrics


class Spoiling:
    """Clears what it is shown, and keeps what there was."""

    def __init__(self):
        self.seen = []

    def spoil(self, shown):
        self.seen.append({**shown})
        shown["plugins"].clear()
        shown.clear()

    @hookimpl
    def endpick_validate(self, config, report):
        self.spoil(config)

    @hookimpl
    def endpick_startup(self, host):
        self.spoil(host.config)
        host.instances.clear()

    @hookimpl
    async def endpick_config_reload(self, old, new):
        self.spoil(old)
        self.spoil(new)

    @hookimpl
    def endpick_decision(self, record):
        self.spoil(record)

    @hookimpl
    def endpick_shutdown(self, host):
        self.seen.append({**host.instances})


@pytest.mark.asyncio
async def test_what_a_hook_object_does_to_what_it_is_shown_is_seen_by_no_other():
    registry, objects = HookRegistry(), [Spoiling(), Spoiling()]
    for name, each in zip(("one", "two"), objects, strict=True):
        assert registry.add_first(Reference(name), Candidate(name, 1, "acme", "1.0", "m:C", "/p"), each) is None
    source, _ = read_source(b"plugins: [{type: x}]\n", "c.yaml")
    document = {"plugins": ["a"]}

    assert registry.validate(source) == ()
    assert source.data["plugins"] == [{"type": "x"}]
    host = HostView(document, {"one": None})
    assert await registry.startup(host) == await registry.reload(document, document) == await registry.shutdown(host) == ()
    HookCircuits(registry, BreakerSettings(), EndpickMetrics(CollectorRegistry()), lambda: 0.0).decision(document)
    assert document == {"plugins": ["a"]}
    for each in objects:
        assert [list(seen) for seen in each.seen] == [["plugins"]] * 4 + [["one"], ["plugins"]]
