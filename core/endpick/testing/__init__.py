"""The conformance kit, and fixtures for tests of plugins.

Without pytest, use `conformance` or `endpick test`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from endpick.testing.factories import FakeBand, make_pool, make_request, make_waiting
    from endpick.testing.host import Host
    from endpick.testing.kit import CheckOutcome, CheckStatus, ConformanceReport, all_checks, conformance, parametrize_conformance
    from endpick.testing.plugin_under_test import Check, Finding

__all__ = (
    "Check",
    "CheckOutcome",
    "CheckStatus",
    "ConformanceReport",
    "FakeBand",
    "Finding",
    "Host",
    "all_checks",
    "conformance",
    "make_pool",
    "make_request",
    "make_waiting",
    "parametrize_conformance",
)

# pytest imports this package in every session, so it imports its modules on first use.
_MODULES = {
    "factories": ("FakeBand", "make_pool", "make_request", "make_waiting"),
    "host": ("Host",),
    "plugin_under_test": ("Check", "Finding"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    module = next((module for module, names in _MODULES.items() if name in names), "kit")
    value: object = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
