"""The plugins of endpick's own distributions, as their pyproject.toml names them."""

from __future__ import annotations

from functools import cache

from generate_schemas import builtin_candidates

from endpick.host.loader import LoadedPlugin, load
from endpick.host.resolution import Reference


@cache
def builtin_plugins() -> tuple[LoadedPlugin, ...]:
    """All of them, loaded, by type; without former names."""
    found = []
    candidates = builtin_candidates()
    for candidate in candidates:
        loading = load(candidate, Reference(candidate.type), (), candidates)
        assert loading.loaded is not None, loading.diagnostics
        if loading.loaded.type == candidate.type:
            found.append(loading.loaded)
    return tuple(found)


@cache
def _origins() -> dict[str, str]:
    return {candidate.type: candidate.distribution for candidate in builtin_candidates()}


def origin(loaded: LoadedPlugin) -> str:
    """The distribution that provides a type."""
    return _origins()[loaded.type]
