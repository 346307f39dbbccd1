"""What all sessions have seen together, for whoever exports it."""

from __future__ import annotations

from dataclasses import dataclass, field

from endpick.extproc.stream import Status

_PLAIN = ("requests", "unroutable", "buffer_exhaustions", "decision_faults", "exchange_faults")


@dataclass(slots=True)
class SessionCounters:
    """Plain numbers that only grow; one object is shared by all sessions of a listener."""

    requests: int = 0
    """Streams that began with request headers."""
    unroutable: int = 0
    """Requests refused before the director saw them: their body, or what all requests hold, is over the limit."""
    buffer_exhaustions: int = 0
    """Requests refused because all requests that wait together hold `max_held_bytes`."""
    decision_faults: int = 0
    """Requests refused because deciding raised."""
    exchange_faults: int = 0
    """Exceptions from exchanges: at most one per response, and one from `finish`."""
    protocol_errors: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(Status, 0))
    """Streams that we ended, by the status we gave."""

    def snapshot(self) -> dict[str, int]:
        """Every count by name; protocol errors one by one, as `protocol_error_<status>`."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        return plain | {f"protocol_error_{status.name.lower()}": count for status, count in self.protocol_errors.items()}
