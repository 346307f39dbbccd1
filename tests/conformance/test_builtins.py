"""Every built-in plugin passes the kit that third parties use."""

from __future__ import annotations

from endpick.plugins.discovery import discover
from endpick.plugins.loader import load
from endpick.plugins.reference import Reference
from endpick.testing import parametrize_conformance

BUILT_IN = {one.type: one for one in discover() if one.is_builtin}


def _load(plugin_type):
    loaded = load(BUILT_IN[plugin_type], Reference(plugin_type)).loaded
    assert loaded is not None
    return loaded.plugin


CLASSES = list(dict.fromkeys(_load(t) for t in BUILT_IN))


@parametrize_conformance(CLASSES)
def test_builtin_conforms(check):
    check()
