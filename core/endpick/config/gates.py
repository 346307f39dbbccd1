"""Feature gates: which exist, and how a document switches them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

DEFAULT_GATES: Mapping[str, bool] = MappingProxyType({"flowControl": False, "haPopulateNonLeaderDatastore": True})
RETIRED_GATES: Mapping[str, str] = MappingProxyType(
    {
        "dataLayer": "the data layer is always on; remove this gate",
        "enableLegacyMetrics": "the legacy metrics poller no longer exists; remove this gate",
    }
)

_BOOLEANS = {**dict.fromkeys(("1", "t", "true"), True), **dict.fromkeys(("0", "f", "false"), False)}


def parse_gate(entry: str) -> tuple[str, bool] | None:
    """Name and setting of an entry such as `flowControl` or `flowControl=false`; None when the setting is no boolean.

    The name comes as it is registered where letter case is all that differs, and as it was written otherwise.
    """
    name, given, setting = (part.strip() for part in entry.partition("="))
    registered = {gate.casefold(): gate for gate in DEFAULT_GATES}
    value = _BOOLEANS.get(setting.casefold()) if given else True
    return None if value is None else (registered.get(name.casefold(), name), value)


def resolve_gates(entries: Iterable[str]) -> dict[str, bool]:
    """Every gate and whether it is on; the last entry for a gate wins, unknown ones are left out."""
    parsed = (parse_gate(entry) for entry in entries)
    switched = {name: value for name, value in filter(None, parsed) if name in DEFAULT_GATES}
    return {**DEFAULT_GATES, **switched}
