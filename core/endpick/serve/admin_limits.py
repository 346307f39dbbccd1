"""The limits that the port of metrics and `/healthz` sets to its clients, and the events that it counts."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class AdminLimits:
    """Limits of the port; a scraper asks for one page at a time, and keeps its connection or not."""

    max_connections: int = 32
    """Connections beyond this are closed at once."""
    header_seconds: float = 10.0
    """From the first byte of a request to its last header; also for a TLS handshake."""
    idle_seconds: float = 75.0
    """Without a request; longer than scrapers usually wait between two."""
    max_request_bytes: int = 16 * 1024
    """From one request to the next."""
    max_held_bytes: int = 64 * 1024 * 1024
    """Of pages that are being sent, all together; the newest may be as long as it is."""


@dataclass(slots=True)
class AdminCounters:
    """Monotonic counts since start."""

    connections_accepted: int = 0
    connections_refused: int = 0
    """Beyond `--metrics-max-connections`."""
    accept_pauses: int = 0
    """Times that accepting paused because no file descriptor was left."""
    tls_handshake_failures: int = 0
    """None without `--metrics-cert-dir` or `--metrics-client-ca-file`."""
    certificate_reloads: int = 0
    certificate_reload_failures: int = 0
    header_timeouts: int = 0
    """Requests whose headers were not complete in `--metrics-header-timeout`."""
    idle_connections: int = 0
    """Connections without a request for `--metrics-idle-timeout`."""
    requests_too_large: int = 0
    """Beyond `--metrics-max-request`, or so many that no client waits for their answers."""
    pages_too_slow: int = 0
    """Connections that took long pages too slowly: those of all together were more than `--metrics-max-held`."""

    def snapshot(self) -> dict[str, int]:
        """Every count by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
