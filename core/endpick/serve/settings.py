"""The settings of a serving process, and the object that controls it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from endpick.api.endpoint import Generation
from endpick.data.table import MAX_ENDPOINTS
from endpick.engine.reload_log import Trigger
from endpick.extproc.session import SessionSettings
from endpick.host.breaker import BreakerSettings
from endpick.host.planning.plan import PlanOutcome
from endpick.serve.decisions import RecordSettings
from endpick.serve.lifecycle import Gateway, Lifecycle
from endpick.serve.recorder import MAX_COMBINATIONS
from endpick.serve.watchdog import WatchdogSettings, available_bytes
from endpick.serve.watched_file import WatchedFile
from endpick.transport.handover import Handover
from endpick.transport.limits import Limits
from endpick.transport.listener import ListenSettings
from endpick.transport.server import TransportName
from endpick.transport.tls import TlsSettings

HEALTH_LIMITS = Limits(max_connections=64)


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The settings of one serving process, with llm-d's defaults for the settings of llm-d."""

    ext_proc: ListenSettings = field(default_factory=ListenSettings)
    health: ListenSettings = field(default_factory=lambda: ListenSettings(port=9003, limits=HEALTH_LIMITS))
    metrics_host: str = ""
    metrics_port: int = 9090
    metrics_tls: TlsSettings | None = None
    metrics_auth: bool = False  # the discovery decides who may read /metrics
    admin_token_file: Path | None = None
    metrics_staleness_seconds: float = 2.0  # pool gauges leave out older values
    unready_without_endpoints: bool = False
    transport: TransportName = "h2"
    pool_name: str = "endpick"  # label `name` of the pool gauges
    emits_scores: bool = False  # to the gateway
    refresh_metrics_interval_seconds: float = 0.05
    idle_metrics_interval_seconds: float = 1.0
    max_endpoints: int = MAX_ENDPOINTS
    discovery_timeout_seconds: float = 60.0
    drain_timeout_seconds: float = 30.0  # after SIGTERM, new requests are still served
    finish_timeout_seconds: float = 30.0  # then for open streams, as for those of instances that a reload replaced
    sessions: SessionSettings = field(default_factory=SessionSettings)
    records: RecordSettings = field(default_factory=RecordSettings)
    traces: bool = True  # if the environment names an OTLP endpoint
    max_metric_combinations: int = MAX_COMBINATIONS
    legacy_metrics: bool = False  # see `LegacyNames`
    grpc_stream_metrics: bool = False
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    watchdog: WatchdogSettings = field(default_factory=WatchdogSettings)
    max_memory_bytes: int = field(default_factory=available_bytes)
    watched_config: WatchedFile | None = None  # its changes cause a reload
    config_file: Path | None = None  # compared with the serving configuration


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports that a process has bound, as numbers."""

    ext_proc: int
    health: int
    metrics: int


@dataclass(slots=True)
class Control:
    """The events and callbacks through which signals, files and workers control `serve`."""

    replan: Callable[[], PlanOutcome]  # called in a thread
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    handover: Handover | None = None  # of a worker
    gateway: Gateway | None = None  # started and stopped with the picker
    pool_watchers: Sequence[Callable[[Generation], None]] = ()  # called after each change of the pool
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    hasten: asyncio.Event = field(default_factory=asyncio.Event)  # ends the drain time
    reload: asyncio.Event = field(default_factory=asyncio.Event)
    trigger: Trigger = Trigger.SIGNAL  # of the requested reload

    def request_reload(self, trigger: Trigger) -> None:
        """Ask `serve` for a reload; requests during a reload are answered by one more reload."""
        self.trigger = trigger
        self.reload.set()
