"""Which plugin API this host speaks, and where plugins announce themselves; imports nothing, so that `endpick list` stays fast."""

from __future__ import annotations

API_VERSION = "1.0"
"""Major and minor version of `endpick.api`. The major is also the suffix of the entry-point group."""

API_MAJOR = int(API_VERSION.partition(".")[0])

ENTRY_POINT_GROUP_PREFIX = "endpick.plugins.v"
"""Plugins are entry points of the group with this prefix and the API major: `endpick.plugins.v1`."""

HOOKS_ENTRY_POINT_GROUP = f"endpick.hooks.v{API_MAJOR}"
"""Objects with host hooks (see `endpick.api.hooks`) are entry points of this group."""

HOST_DISTRIBUTION = "endpick"
"""The distribution that holds the host and the built-in plugins."""
