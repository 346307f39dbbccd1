"""The table a serving process prints at start: who was loaded, from where, and which data flows."""

from __future__ import annotations

from collections.abc import Sequence

from endpick.planning.plan import Plan, PlannedInstance

_HEADER = ("instance", "type", "from", "loaded", "consumes → produces")


def startup_table(plan: Plan) -> str:
    """One line per instance, then a note for each thing the host filled in."""
    rows = [_HEADER, *(_row(instance) for instance in plan.instances)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    notes = [f"note: {announcement.message}" for announcement in plan.announcements]
    return "\n".join((*lines, *notes, ""))


def _row(instance: PlannedInstance) -> Sequence[str]:
    candidate = instance.loaded.candidate
    subscriptions = instance.subscriptions
    consumed = ", ".join(key.name for key in (*subscriptions.consumes, *subscriptions.consumes_optional))
    produced = ", ".join(key.name for key in subscriptions.produces)
    flow = f"{consumed} → {produced}".strip() if consumed or produced else ""
    origin = f"{candidate.distribution} {candidate.version}"
    return instance.name, instance.type, origin, f"{instance.loaded.load_seconds * 1000:.1f} ms", flow
