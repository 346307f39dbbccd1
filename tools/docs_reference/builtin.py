"""The built-in plugins as pyproject.toml names them: the metadata of an editable install may be older."""

from __future__ import annotations

from functools import cache

from generate_schemas import builtin_candidates

from endpick.host.loader import LoadedPlugin, load
from endpick.host.resolution import Reference


@cache
def builtin_plugins() -> tuple[LoadedPlugin, ...]:
    """All of them, loaded, by type; a former name is left to the type it stands for."""
    found = []
    candidates = builtin_candidates()
    for candidate in candidates:
        loading = load(candidate, Reference(candidate.type), (), candidates)
        assert loading.loaded is not None, loading.diagnostics
        if loading.loaded.type == candidate.type:
            found.append(loading.loaded)
    return tuple(found)
