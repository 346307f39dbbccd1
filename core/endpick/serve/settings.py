"""What an operator chooses on the command line of `endpick serve`."""

from __future__ import annotations

from dataclasses import dataclass, field

from endpick.transport.choice import TransportName
from endpick.transport.server import ListenSettings


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Ports, intervals and limits of one serving process; defaults are llm-d's where llm-d has them."""

    ext_proc: ListenSettings = field(default_factory=ListenSettings)
    health: ListenSettings = field(default_factory=lambda: ListenSettings(port=9003))
    metrics_host: str = ""
    metrics_port: int = 9090
    transport: TransportName = "h2"
    pool_name: str = "endpick"
    """Label `name` of the pool's gauges."""
    refresh_metrics_interval_seconds: float = 0.05
    discovery_timeout_seconds: float = 60.0
    """How long start-up waits for the first complete picture of the pool."""
    drain_timeout_seconds: float = 30.0
    max_request_body_bytes: int = 32 * 1024 * 1024
    decision_sampling_ratio: float = 0.01
    """Of the decisions shown to hook objects that watch them, 0 to 1."""
    watch_config: bool = False
    """Reload when the configuration file changes; SIGHUP reloads in any case."""
