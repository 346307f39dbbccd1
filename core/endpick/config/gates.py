"""llm-d's feature gates, as written in `featureGates` and in `--feature-gates`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

DEFAULT_GATES: Mapping[str, bool] = MappingProxyType({"flowControl": False, "haPopulateNonLeaderDatastore": True})

_BOOLEANS = {**dict.fromkeys(("1", "t", "true"), True), **dict.fromkeys(("0", "f", "false"), False)}


def parse_gate(entry: str) -> tuple[str, bool] | None:
    """Parse `flowControl=false`, in any letter case; None if the setting is not a boolean."""
    name, given, setting = (part.strip() for part in entry.partition("="))
    registered = {gate.casefold(): gate for gate in DEFAULT_GATES}
    value = _BOOLEANS.get(setting.casefold()) if given else True
    return None if value is None else (registered.get(name.casefold(), name), value)


def parse_gates(text: str) -> tuple[str, ...]:
    """Split `--feature-gates` at commas; raises ValueError for an unknown gate or setting."""
    entries = tuple(entry.strip() for entry in text.split(",") if entry.strip())
    for entry in entries:
        gate = parse_gate(entry)
        if gate is None:
            raise ValueError(f"the feature gate '{entry}' is set to neither true nor false")
        if gate[0] not in DEFAULT_GATES:
            raise ValueError(f"'{gate[0]}' is not a feature gate; known gates are {', '.join(sorted(DEFAULT_GATES))}")
    return entries


def gates_of(entries: Iterable[str]) -> dict[str, bool]:
    """Return the setting of every gate; the last entry wins, and unknown gates are ignored."""
    parsed = filter(None, map(parse_gate, entries))
    return {**DEFAULT_GATES, **{name: value for name, value in parsed if name in DEFAULT_GATES}}
