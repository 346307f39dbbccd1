"""Which plugin API this host speaks."""

API_VERSION = "1.0"
"""Major and minor version of `endpick.api`. The major is also the suffix of the entry-point group."""

ENTRY_POINT_GROUP_PREFIX = "endpick.plugins.v"
"""Plugins are entry points of the group with this prefix and the API major: `endpick.plugins.v1`."""

HOOKS_ENTRY_POINT_GROUP = "endpick.hooks.v1"
"""Objects with host hooks (see `endpick.api.hooks`) are entry points of this group."""
