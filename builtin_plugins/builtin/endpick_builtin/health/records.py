"""Records of each endpoint's health, and its metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from endpick.api import CycleState, Endpoint, MetricsPage
from endpick.api.keys import EndpointHealth, HealthState
from endpick_builtin.health.machine import Absence, Machine, Times
from endpick_builtin.health.window import Limits, Window

_ROLE: Final = "llm-d.ai/role"
_READ_SECONDS: Final = 1.0  # between two readings of a metrics page, which take time
_STARTED: Final = "process_start_time_seconds"
_COUNTERS: Final = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "sglang:prompt_tokens_total",
    "sglang:generation_tokens_total",
)
_SLEEP_STATE: Final = "vllm:engine_sleep_state"
_AWAKE: Final = {"sleep_state": "awake"}
_SEVERITY: Final = {HealthState.EJECTED: 3, HealthState.PROBING: 2, HealthState.DEGRADED: 1, HealthState.HEALTHY: 0}


class ErrorReason(StrEnum):
    """The values of the label `reason` of `endpick_endpoint_errors`."""

    SERVER_ERROR = "server-error"
    ONE_CLIENT = "server-error-of-one-client"
    CONNECT_FAILURE = "connect-failure"
    RESET = "reset"
    UNNAMED = "gateway-error"
    HANG = "hang"


_RESET = "upstream_reset_before_response_started"


def blamed(gateway_error: str) -> ErrorReason | None:
    """Return the endpoint's fault in an error response of the gateway.

    None if the endpoint has none, as for a full connection pool or a timeout.
    """
    if gateway_error.startswith(_RESET) and "{overflow" not in gateway_error:
        refused = "connection_failure" in gateway_error or "connect_error" in gateway_error
        return ErrorReason.CONNECT_FAILURE if refused else ErrorReason.RESET
    return ErrorReason.UNNAMED if gateway_error == "unnamed" else None


class Record:
    """The health of one endpoint: its state, recent outcomes and open requests."""

    __slots__ = (
        "_counters",
        "_page",
        "_published",
        "_read_at",
        "_started",
        "endpoint",
        "errors",
        "group",
        "is_silent",
        "is_slow",
        "machine",
        "open",
        "token_at",
        "window",
    )

    def __init__(self, endpoint: Endpoint, times: Times, limits: Limits, now: float) -> None:
        self.place(endpoint)
        self.machine = Machine(times, now)
        self.errors: Counter[ErrorReason] = Counter()
        self._started = -math.inf
        self._page: MetricsPage | None = None
        self._read_at = -math.inf
        self.forget(limits, now)

    def forget(self, limits: Limits, now: float) -> None:
        """Forget requests, outcomes and counters, but not ejections; called after a restart of the server."""
        self.window = Window(limits, now)
        self.open: dict[CycleState, float] = {}  # requests and when they were sent, oldest first
        self.token_at = now
        self.is_silent = self.is_slow = False
        self._counters: dict[str, float] = {}
        self._published: object = None

    def place(self, endpoint: Endpoint) -> None:
        """Set the endpoint and its group, at first and after its labels changed."""
        self.endpoint = endpoint
        self.group = endpoint.labels.get(_ROLE, "")  # endpoints of different roles cannot replace each other

    @property
    def trial(self) -> CycleState | None:
        """The request that decides whether a probed endpoint has recovered, if one is open."""
        trial = self.machine.trial
        return trial if isinstance(trial, CycleState) else None

    def silence(self, now: float, since: float) -> float | None:
        """Return how long a waiting request has seen no first token, in seconds; None if none waits.

        While the endpoint is probed, only the trial counts.
        """
        tokens = [state.first_chunk_at for state in self.open]
        self.token_at = max((at for at in tokens if at is not None), default=self.token_at)
        waiting = self.waiting()
        if self.machine.state is HealthState.PROBING:
            waiting = None if self.trial is None or self.trial.first_chunk_at is not None else self.open.get(self.trial)
        return None if waiting is None else now - max(waiting, self.token_at, since)

    def waiting(self) -> float | None:
        """Return when the oldest request without a first token was sent; None if all have one."""
        return next((at for state, at in self.open.items() if state.first_chunk_at is None), None)

    def absence(self) -> Absence | None:
        """Return None if the endpoint may receive a request.

        A degraded endpoint serves one at a time, a probed one only the trial.
        """
        machine, state = self.machine, self.machine.state
        is_busy = self.waiting() is not None if state is HealthState.DEGRADED else machine.trial is not None
        if not is_busy and state is not HealthState.EJECTED:
            return None
        severity = (_SEVERITY[state], machine.ejections, self.window.failures)
        # Two witnesses: the gateway's failed requests, and the missing metrics.
        is_certain = machine.is_asleep or (state is HealthState.EJECTED and self.is_silent)
        return Absence(severity, self.endpoint.name, self.group, is_certain)

    def changed_health(self) -> EndpointHealth | None:
        """Return the health to publish, or None if it is the same as at the last call."""
        machine, window = self.machine, self.window
        current = (machine.state, machine.since, machine.ejections, window.failures, window.median)
        if current == self._published:
            return None
        self._published = current
        return EndpointHealth(machine.state, machine.reason, machine.since, machine.ejections, window.failures, window.median)

    def is_due(self, page: MetricsPage, now: float) -> bool:
        """Whether to read this page: it is new, and a second has passed since the last one."""
        if page is self._page or now - self._read_at < _READ_SECONDS:
            return False
        self._page, self._read_at = page, now
        return True

    def has_restarted(self, page: MetricsPage) -> bool:
        """Whether the process started later than before, or counters fell; call it once per page."""
        started = page.newest(_STARTED)
        if started is not None:
            before, self._started = self._started, max(self._started, started.value)
            return -math.inf < before < started.value
        counted = {name: math.fsum(sample.value for sample in page.series(name)) for name in _COUNTERS if page.samples(name)}
        fell = any(value < self._counters.get(name, -math.inf) for name, value in counted.items())
        self._counters = counted
        return fell


def is_asleep(page: MetricsPage) -> bool:
    """Whether no engine of a vLLM server is awake."""
    engines = page.series(_SLEEP_STATE, _AWAKE)
    return bool(engines) and not any(sample.value for sample in engines)


class HealthMetrics(Collector):
    """Collects health states, failures and first-token times of the endpoints in the pool."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = records

    def describe(self) -> Iterator[Metric]:
        return self._families(())

    def collect(self) -> Iterator[Metric]:
        return self._families(tuple(self._records.items()))  # read in a thread, while endpoints join and leave

    def _families(self, records: Iterable[tuple[str, Record]]) -> Iterator[Metric]:
        states = GaugeMetricFamily("endpick_endpoint_state", "1 for the current health state.", labels=("endpoint_name", "state"))
        errors = CounterMetricFamily("endpick_endpoint_errors", "Failed requests and hangs, by reason.", labels=("endpoint_name", "reason"))
        tokens = GaugeMetricFamily(
            "endpick_endpoint_first_token_seconds", "Median of recent times to first token.", labels=("endpoint_name",)
        )
        for name, record in records:
            for state in HealthState:
                states.add_metric((name, state.value), state is record.machine.state)
            for reason, count in tuple(record.errors.items()):
                errors.add_metric((name, reason.value), count)
            if record.window.median is not None:
                tokens.add_metric((name,), record.window.median)
        yield from (states, errors, tokens)
