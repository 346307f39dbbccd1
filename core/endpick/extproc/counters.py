"""What all sessions have seen together, for whoever exports it."""

from __future__ import annotations

from dataclasses import dataclass, field

from endpick.extproc.stream import Status


@dataclass(slots=True)
class SessionCounters:
    """Plain numbers that only grow; one object is shared by all sessions of a listener."""

    requests: int = 0
    """Streams that began with request headers."""
    unroutable: int = 0
    """Requests refused before the director saw them: their body is over the limit."""
    decision_faults: int = 0
    """Requests refused because deciding raised."""
    exchange_faults: int = 0
    """Exceptions from exchanges: at most one per response, and one from `finish`."""
    protocol_errors: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(Status, 0))
    """Streams that we ended, by the status we gave."""

    def snapshot(self) -> dict[str, int]:
        """Every count by name; protocol errors one by one, as `protocol_error_<status>`."""
        plain = {name: getattr(self, name) for name in ("requests", "unroutable", "decision_faults", "exchange_faults")}
        return plain | {f"protocol_error_{status.name.lower()}": count for status, count in self.protocol_errors.items()}
