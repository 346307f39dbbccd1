"""Every limit that a built-in plugin may count."""

from __future__ import annotations

import importlib
import pkgutil

import endpick_builtin
from endpick.api import Limit


def all_limits() -> list[Limit]:
    """Each once, by name."""
    modules = [importlib.import_module(found.name) for found in pkgutil.walk_packages(endpick_builtin.__path__, "endpick_builtin.")]
    found = {value for module in modules for value in vars(module).values() if isinstance(value, Limit)}
    return sorted(found, key=lambda limit: (limit.name, limit.told))
