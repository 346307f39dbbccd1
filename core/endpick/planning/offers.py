"""Which installed types produce a data key: asked only to word an error, because it imports plugins that are not in use."""

from __future__ import annotations

from endpick.planning.installed import Installed


def types_that_produce(key: str, installed: Installed) -> tuple[str, ...]:
    """Types whose metadata declare the key, sorted; types that the policy forbids or that do not load are left out."""
    looked_at = ((plugin_type, installed.peek(plugin_type)) for plugin_type in sorted({one.type for one in installed.candidates}))
    return tuple(
        plugin_type
        for plugin_type, loaded in looked_at
        if loaded is not None and any(produced.name == key for produced in loaded.meta.produces)
    )
