"""Facts about this installation: plugin API version, entry-point groups, compiled or interpreted, resource folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

API_MAJOR = 1
"""Major version of `endpick.api`, and the suffix of the entry-point group."""

OUR_GROUPS = "endpick."
"""Prefix of all entry-point groups for endpick."""

ENTRY_POINT_GROUP_PREFIX = "endpick.plugins.v"
"""Prefix of the groups of plugins: `endpick.plugins.v1`."""

HOOKS_ENTRY_POINT_GROUP = f"endpick.hooks.v{API_MAJOR}"
"""Group of hook objects; see `endpick.api.hooks`."""

HOST_DISTRIBUTION = "endpick"
"""The distribution of the host and the built-in plugins."""

SEPARATE_PLUGINS: Mapping[str, str] = MappingProxyType(
    {
        "kubernetes-discovery": "endpick-kubernetes",
        "precise-prefix-cache-producer": "endpick-kv-events",
        "precise-prefix-cache-scorer": "endpick-kv-events",
    }
)
"""endpick's own plugin types that are not part of the endpick distribution, and the distributions that offer them."""

OWN_DISTRIBUTIONS = frozenset({HOST_DISTRIBUTION, *SEPARATE_PLUGINS.values()})

PACKAGE = Path(__file__).parent

RequestPath = Literal["compiled", "interpreted"]


def request_path() -> RequestPath:
    """How the request path was built."""
    return "compiled" if any(PACKAGE.glob("extproc/session.*.so")) else "interpreted"


def resource(name: str) -> Path:
    """A folder at the root of the repository; a wheel has it under `endpick/_data`.

    Raises:
        FileNotFoundError: neither place has it.
    """
    for place in (PACKAGE / "_data" / name, PACKAGE.parents[1] / name):
        if place.is_dir():
            return place
    raise FileNotFoundError(f"'{name}' is neither in {PACKAGE / '_data'} nor in {PACKAGE.parents[1]}; reinstall endpick")
