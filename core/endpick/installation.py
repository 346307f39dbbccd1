"""This installation: the plugin API it speaks, how its request path was built, where its files are. Imports nothing slow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

API_MAJOR = 1
"""Major version of `endpick.api`, and the suffix of the entry-point group. Its minor version is the version of endpick."""

OUR_GROUPS = "endpick."
"""Entry-point groups that begin so are for endpick."""

ENTRY_POINT_GROUP_PREFIX = "endpick.plugins.v"
"""Plugins are entry points of the group with this prefix and the API major: `endpick.plugins.v1`."""

HOOKS_ENTRY_POINT_GROUP = f"endpick.hooks.v{API_MAJOR}"
"""Objects with host hooks (see `endpick.api.hooks`) are entry points of this group."""

HOST_DISTRIBUTION = "endpick"
"""The distribution that holds the host and the built-in plugins."""

SEPARATE_PLUGINS: Mapping[str, str] = MappingProxyType(
    {
        "kubernetes-discovery": "endpick-kubernetes",
        "precise-prefix-cache-producer": "endpick-kv-events",
        "precise-prefix-cache-scorer": "endpick-kv-events",
    }
)
"""endpick's own plugin types that are not part of the endpick distribution, and the distributions that offer them."""


RequestPath = Literal["compiled", "interpreted"]


def request_path() -> RequestPath:
    """Which of the two runs here; told by the files beside the sources, importing none of them."""
    return "compiled" if any(Path(__file__).parent.glob("extproc/session.*.so")) else "interpreted"


PACKAGE = Path(__file__).parent
"""Of the endpick that runs."""


def resource(name: str) -> Path:
    """The folder of that name at the root of the repository; a wheel carries it under `endpick/_data`.

    Raises:
        FileNotFoundError: neither place has it.
    """
    for place in (PACKAGE / "_data" / name, PACKAGE.parents[1] / name):
        if place.is_dir():
            return place
    raise FileNotFoundError(f"'{name}' is neither in {PACKAGE / '_data'} nor in {PACKAGE.parents[1]}; reinstall endpick")
