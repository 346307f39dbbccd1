"""How many diagnostics are worth reading at once."""

from __future__ import annotations

from collections.abc import Iterable

from endpick.diagnostics.model import Diagnostic, sort_diagnostics

MAX_SHOWN = 50


def cap(diagnostics: Iterable[Diagnostic], limit: int = MAX_SHOWN) -> tuple[tuple[Diagnostic, ...], int]:
    """At most `limit` of them in document order, and how many were left out; warnings give way to errors."""
    ordered = sort_diagnostics(diagnostics)
    by_severity = sorted(ordered, key=lambda diagnostic: not diagnostic.is_error)
    kept = set(by_severity[:limit])
    return tuple(diagnostic for diagnostic in ordered if diagnostic in kept), max(0, len(ordered) - limit)
