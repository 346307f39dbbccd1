"""What `endpick list --load` and `endpick describe` can only tell by importing a plugin."""

from __future__ import annotations

from endpick.plugins.discovery import Candidate
from endpick.plugins.loader import load
from endpick.plugins.reference import Reference


def loaded_facts(candidate: Candidate) -> dict[str, object]:
    """Kinds, summary and import time; for a plugin that cannot be loaded, why."""
    loading = load(candidate, Reference(candidate.type))
    loaded = loading.loaded
    if loaded is None:
        fault = loading.diagnostics[0]
        return {"status": "broken", "problem": f"broken: {fault.message} [{fault.code}]"}
    return {
        "kinds": [kind.value for kind in loaded.kinds],
        "summary": loaded.summary,
        "stability": loaded.meta.stability.value,
        "loadSeconds": round(loaded.load_seconds, 6),
    }
