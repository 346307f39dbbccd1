"""Every limit on what others may ask, in one table: the flag that sets it, the metric that counts it, and what the log says when it acts.

Most limits act deep in a transport, which counts and goes on. Once a second the counts are looked at here, and those that grew are told
with what to change. Limits that need more words are told where they act; the table has them as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from endpick.flow_control.queues import Outcome
from endpick.host.throttle import Throttle

_log = logging.getLogger("endpick.limits")

LOOK_SECONDS = 1.0
_LOG_SECONDS = 30.0
TRANSPORT, ADMIN, SESSION = "endpick_transport_events_total", "endpick_admin_events_total", "endpick_session_events_total"
HEALTH = "endpick_health_events_total"
FLOW_CONTROL = "llm_d_epp_flow_control_requests_total"
LARGE_BODIES = "endpick_large_bodies_total"


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit.

    Attributes:
        flag: Of `endpick serve`, or the field of the configuration.
        metric: On the metrics page.
        event: The value of its label `event`, or `outcome` in flow control and for large bodies; empty where it has none.
        told: What the log says; for a limit that is told where it acts, words of that line.
        here: Whether this module tells it.
    """

    flag: str
    metric: str
    event: str
    told: str
    here: bool = True


LEFT_OUT = "endpoints are left out: the discovery names more than --max-endpoints; see what it finds, or raise the limit"


LIMITS = (
    Limit("--grpc-max-recv-msg-size", TRANSPORT, "messages_too_large", "messages refused: longer than --grpc-max-recv-msg-size"),
    Limit(
        "--grpc-max-concurrent-streams",
        TRANSPORT,
        "streams_refused",
        "streams refused: draining, short of memory, or more on one connection than --grpc-max-concurrent-streams allows",
    ),
    Limit("--grpc-handshake-timeout", TRANSPORT, "handshake_timeouts", "connections closed: no SETTINGS within --grpc-handshake-timeout"),
    Limit(
        "--grpc-handshake-timeout",
        TRANSPORT,
        "tls_handshake_failures",
        "TLS handshakes failed, or took longer than --grpc-handshake-timeout: compare certificates and client CA",
    ),
    Limit("--grpc-keepalive-timeout", TRANSPORT, "keepalive_timeouts", "gateways gone: no answer to a PING in --grpc-keepalive-timeout"),
    *(
        Limit("", TRANSPORT, event, f"a connection closed for {what}: find out who connects")
        for event, what in (
            ("reset_floods", "resetting streams before their answer"),
            ("frame_floods", "control frames"),
            ("stream_error_floods", "errors on its streams"),
        )
    ),
    Limit(
        "--grpc-max-header-size",
        TRANSPORT,
        "header_floods",
        "a connection closed for its header blocks: longer than --grpc-max-header-size, or in more than 16 frames; find out who connects",
    ),
    Limit(
        "",
        TRANSPORT,
        "slow_readers",
        "a connection closed: the gateway read no answers for 30 s; find out why",
    ),
    Limit(
        "--max-held",
        SESSION,
        "buffer_exhaustions",
        "requests refused: those that are not decided hold more than --max-held; more replicas help",
    ),
    Limit(
        "--max-name-length",
        SESSION,
        "names_too_long",
        "requests refused: a model, cache salt or fairness id of more characters than --max-name-length; find out who sends it",
    ),
    Limit(
        "--metrics-max-held",
        ADMIN,
        "pages_too_slow",
        "scrapers hung up on: pages of more than --metrics-max-held were taken too slowly; find out who reads them",
    ),
    Limit("--max-request-body", SESSION, "bodies_too_large", "requests refused: bodies beyond --max-request-body"),
    Limit(
        "flowControl.maxRequests",
        FLOW_CONTROL,
        Outcome.REJECTED_CAPACITY,
        "requests refused: as many wait as flowControl.maxRequests and maxBytes, or those of their priority band, allow",
    ),
    Limit(
        "flowControl.defaultRequestTTL",
        FLOW_CONTROL,
        Outcome.EVICTED_TTL,
        "requests refused: they waited for flowControl.defaultRequestTTL; more endpoints help, or a longer time",
    ),
    Limit(
        "flowControl.noEndpointRequestTTL",
        FLOW_CONTROL,
        Outcome.EVICTED_NO_ENDPOINTS,
        "requests refused: the pool had no endpoints for flowControl.noEndpointRequestTTL; see discovery, or let them wait longer",
    ),
    Limit(
        "--metrics-header-timeout", ADMIN, "header_timeouts", "requests to --metrics-port given up: longer than --metrics-header-timeout"
    ),
    Limit(
        "--metrics-max-request",
        ADMIN,
        "requests_too_large",
        "requests to --metrics-port refused: beyond --metrics-max-request, or more than 16 at once",
    ),
    *(
        Limit(flag, metric, "connections_refused", f"connections refused: there are as many as {flag} allows")
        for flag, metric in (
            ("--grpc-max-connections", TRANSPORT),
            ("--grpc-health-max-connections", HEALTH),
            ("--metrics-max-connections", ADMIN),
        )
    ),
    Limit(
        "--grpc-max-connections",
        TRANSPORT,
        "accept_pauses",
        "no file descriptor is left for connections: raise the limit of open files (ulimit -n), or lower --grpc-max-connections",
    ),
    Limit("--large-body-timeout", LARGE_BODIES, "too_slow", "--large-body-timeout", here=False),
    Limit("--large-body-memory", LARGE_BODIES, "too_much_memory", "--large-body-memory", here=False),
    Limit("--large-body-queue", LARGE_BODIES, "queue_full", "--large-body-queue", here=False),
    Limit("--max-memory", "endpick_overload_stage", "", "--max-memory", here=False),
    Limit("--max-endpoints", "endpick_pool_left_out_total", "", LEFT_OUT, here=False),
    Limit("--plugin-time-budget", "endpick_plugin_late_calls_total", "", "--plugin-time-budget", here=False),
    Limit("--circuit-faults", "endpick_plugin_circuit_state", "", "is left out for", here=False),
    Limit("--circuit-cool-down", "endpick_plugin_left_out_total", "", "is called again", here=False),
    Limit("--stall-limit", "endpick_loop_stalls_total", "", "the event loop stood still", here=False),
    Limit("--metrics-max-samples", "endpick_plugin_faults_total", "", "or see --metrics-max-samples", here=False),
    Limit("--metrics-max-combinations", "endpick_metric_overflows_total", "", "--metrics-max-combinations", here=False),
)


class LimitLog:
    """Tells, on the event loop, which limits have acted."""

    def __init__(self, counts: Mapping[str, Callable[[], Mapping[str, int]]], clock: Callable[[], float]) -> None:
        """`counts` gives for each metric its counts by event; `clock` monotonic seconds."""
        self._counts = counts
        self._throttle = Throttle(clock, _LOG_SECONDS)
        self._before: dict[Limit, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look from now on."""
        self.look()
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self.start)

    def stop(self) -> None:
        """Look once more, and no more then."""
        self.look()
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Tell which counts grew since the last time."""
        now = {metric: counts() for metric, counts in self._counts.items()}
        for limit in LIMITS:
            count = now.get(limit.metric, {}).get(limit.event, 0)
            if limit.here and count > self._before.get(limit, 0) and self._throttle.admit(limit.told) is not None:
                times = count - self._before.get(limit, 0)
                self._before[limit] = count
                _log.warning("%s", limit.told, extra={"times": times, "metric": limit.metric, "count_of": limit.event})
