"""Which plugin API this host speaks."""

from endpick.versions import API_VERSION, ENTRY_POINT_GROUP_PREFIX, HOOKS_ENTRY_POINT_GROUP

__all__ = ("API_VERSION", "ENTRY_POINT_GROUP_PREFIX", "HOOKS_ENTRY_POINT_GROUP")
