"""Lists of known exceptions, each with the reason why it stands, and what has to change in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

SOMETIMES = "sometimes: "
"""Begins the reason of an entry that one run finds used and the next does not, because it depends on timing."""


def read_exceptions(path: Path) -> dict[str, str]:
    """The entries of a list, `entry  reason`, without blank lines and comments.

    Raises:
        SystemExit: an entry has no reason, or stands twice.
    """
    entries: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        entry, _, reason = line.partition("  ")
        if not reason.strip() or entry in entries:
            raise SystemExit(f"{path.name}:{number}: '{entry}' {'stands twice' if entry in entries else 'has no reason'}")
        entries[entry] = reason.strip()
    return entries


def compare(found: Iterable[str], path: Path, what: str, known: Collection[str] = ()) -> list[str]:
    """Complaints: what was found and is not in the list, and what is in the list and was not found.

    Args:
        found: What nothing uses.
        path: The list.
        what: Why it was found, for the complaint.
        known: All there is; an entry that is used sometimes has to be one of these.
    """
    unused, listed = set(found), read_exceptions(path)
    tolerated = {entry for entry, reason in listed.items() if reason.startswith(SOMETIMES) and entry in known}
    add = f"{what}: delete it, or add it to {path.name} with the reason why it stays"
    drop = f"is listed in {path.name}, but is used or does not exist: delete the line"
    stale = set(listed) - unused - tolerated
    return [*(f"{entry}  {add}" for entry in sorted(unused - set(listed))), *(f"{entry}  {drop}" for entry in sorted(stale))]
