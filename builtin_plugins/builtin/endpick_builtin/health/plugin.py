"""`endpoint-health`: follows the answers, the silence and the metrics pages of model servers."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from statistics import median_low
from typing import Final, TypeAlias

import msgspec
import numpy as np

from endpick.api import (
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    BoolArray,
    CandidateFilter,
    ColumnWriter,
    CycleState,
    DataCollector,
    Endpoint,
    Endpoints,
    InferenceRequest,
    MetricsPage,
    PluginContext,
    PreRequest,
    ResponseEnd,
    ResponseObserver,
    SchedulingResult,
    TerminationCause,
    UpstreamHeaders,
)
from endpick.api.fleet import LearntState
from endpick.api.keys import ENDPOINT_HEALTH, HealthState
from endpick_builtin.health.machine import Event, Times, left_out
from endpick_builtin.health.parameters import EndpointHealthParameters
from endpick_builtin.health.records import ErrorReason, HealthMetrics, Record, blamed, is_asleep
from endpick_builtin.health.reviews import REVIEW_SECONDS, Reviewer
from endpick_builtin.health.window import Limits

_REPORTED: Final = (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE)
_GAP_SECONDS: Final = 3.0  # a longer gap between reviews means that the picker itself stalled
_SLOW_FLOOR_SECONDS: Final = 1.0  # a shorter first-token time is never slow
_STREAMS_SECONDS: Final = 1.0  # a trial that has streamed this long after its first token succeeds
# Globals: an enum lookup is several times slower.
_HEALTHY: Final = HealthState.HEALTHY
_DEGRADED: Final = HealthState.DEGRADED
_PROBING: Final = HealthState.PROBING
_NATURAL: Final = TerminationCause.NATURAL


_Verdicts: TypeAlias = list[tuple[str, bool, str, float]]  # endpoint, whether it failed (else it recovered), reason, and age in seconds
_encode: Final = msgspec.msgpack.encode
_read_verdicts: Final = msgspec.msgpack.Decoder(_Verdicts).decode


class EndpointHealthMonitor(
    Reviewer,
    CandidateFilter[EndpointHealthParameters],
    PreRequest[EndpointHealthParameters],
    ResponseObserver[EndpointHealthParameters],
    DataCollector[EndpointHealthParameters, MetricsPage],
    LearntState,
):
    """Leaves out endpoints that fail, hang or sleep, and gives slow and silent ones one request at a time.

    `consecutiveFailures`, `failurePercentage` or `hangTimeout` eject an endpoint, a degraded one its first failure. Failures are a 5xx of
    the model server, and a connection that failed or was reset before the response. A 4xx and a client that leaves never count, nor does
    a 5xx that a single client gets while others are served. After the ejection time one trial request decides. A restarted model server
    is tried at once, and every plugin forgets what it learnt about it. vLLM's sleep state and a restart are read from the metrics page.
    Endpoints that never reported metrics are not silent, and all of a role stay if none would be left.
    """

    consumes_optional = _REPORTED
    produces = (ENDPOINT_HEALTH,)
    default_source = "metrics-data-source"

    def __init__(self, name: str, parameters: EndpointHealthParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.tolerated_age_seconds = parameters.tolerance
        self._times = Times(parameters.base_ejection_time, parameters.max_ejection_time, parameters.interval)
        self._limits = Limits(
            parameters.consecutive_failures, parameters.failure_percentage, parameters.request_volume, parameters.interval
        )
        self._clock = context.clock
        self._records: dict[str, Record] = {}
        self._unwell: dict[str, Record] = {}
        self._sizes: Counter[str] = Counter()  # by role
        self._pool: object = None
        self._due_at = -math.inf  # of the next review
        self._reviewed_at: float | None = None
        self._resumed_at = -math.inf  # after the picker stalled
        self._unpublished: _Verdicts = []
        if context.registry is not None:
            context.registry.register(HealthMetrics(self._records))

    def filter_candidates(self, request: InferenceRequest, endpoints: Endpoints) -> BoolArray | Endpoints:
        if request.received_at >= self._due_at:
            self._review(endpoints)
        return self._screened(endpoints) if self._unwell else endpoints

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        picked = result.runs[result.primary].picked
        if picked is not None:
            endpoint = picked.members[0]
            record = self._records.get(endpoint.name) or self._new_record(endpoint)
            record.open[state] = self._clock()
            if record.machine.state is _PROBING:
                record.machine.claim(state)

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        record = None if end.endpoint is None else self._records.get(end.endpoint.name)
        sent_at = None if record is None else record.open.pop(state, None)
        if record is None or sent_at is None:
            record = next((other for other in self._records.values() if other.open.pop(state, None) is not None), None)
            if record is not None:
                self._judge(request, end, record, state)
        elif 200 <= end.status < 400 and end.cause is _NATURAL and not end.gateway_error:
            window, token_at = record.window, state.first_chunk_at
            window.succeeded(request.fairness_id, request.received_at + end.duration_seconds)
            if token_at is not None:
                window.first_tokens.append(token_at - sent_at)
                record.token_at = token_at
            if record.machine.trial is state:
                self._take(record, Event.SUCCEEDED)
        else:
            self._judge(request, end, record, state)

    def collect(self, payload: MetricsPage, writer: ColumnWriter) -> None:
        endpoint = writer.endpoint
        if endpoint is None:
            return
        now = self._clock()
        record = self._records.get(endpoint.name) or self._new_record(endpoint)
        if not record.is_due(payload, now):
            return
        if record.has_restarted(payload):
            self.context.logger.info("endpoint %s: its model server restarted", endpoint.name)
            writer.restarted()
            record.forget(self._limits, now)
            self._records[endpoint.name] = record
            self._take(record, Event.RESTARTED, "its model server restarted; one trial request decides")
            if record.machine.state is not _HEALTHY:
                self._unwell[endpoint.name] = record
            self._publish(record)
        if is_asleep(payload):
            self._take(record, Event.FELL_ASLEEP, "asleep, as its metrics page says")
        elif record.machine.is_asleep:
            self._take(record, Event.RETURNED, "awake; one trial request decides")

    def snapshot(self) -> Iterable[bytes]:
        now, machines = self._clock(), [(name, record.machine) for name, record in self._unwell.items()]
        yield _encode([(name, True, machine.reason, now - machine.since) for name, machine in machines if machine.is_ejected])

    def restore(self, part: bytes) -> None:
        self.apply(part, "")

    def drain_deltas(self) -> bytes:
        unpublished, self._unpublished = self._unpublished, []
        now = self._clock()
        return _encode([(name, has_failed, reason, now - at) for name, has_failed, reason, at in unpublished]) if unpublished else b""

    def apply(self, deltas: bytes, origin: str) -> None:
        now = self._clock()
        seen = f" (seen by picker {origin})" if origin else ""
        for name, has_failed, reason, age in _read_verdicts(deltas):
            record = self._record_of(name)
            if record is not None and not (record.machine.ejections and record.machine.since > now - age):  # else ours is newer
                before = record.machine.state
                if record.machine.take(Event.CONDEMNED if has_failed else Event.SUCCEEDED, now, f"{reason}{seen}" if has_failed else ""):
                    self._changed(record, before)

    def endpoint_removed(self, name: str) -> None:
        self._records.pop(name, None)
        self._unwell.pop(name, None)

    def _screened(self, endpoints: Endpoints) -> BoolArray | Endpoints:
        percent = self.parameters.max_ejection_percent
        if not percent:
            return endpoints
        absences = [absence for record in self._unwell.values() if (absence := record.absence()) is not None]
        names = left_out(absences, self._sizes, percent) if absences else ()
        if not names:
            return endpoints
        kept = np.array([endpoint.name not in names for endpoint in endpoints.members], dtype=np.bool_)
        return kept if np.count_nonzero(kept) else endpoints

    def _judge(self, request: InferenceRequest, end: ResponseEnd, record: Record, state: CycleState) -> None:
        """Decide whether an unsuccessful response counts against the endpoint."""
        now, served = self._clock(), end.endpoint
        reason: ErrorReason | None = None
        if end.gateway_error:
            reason = blamed(end.gateway_error)
        elif end.status >= 500:
            reason = ErrorReason.SERVER_ERROR
        if served is None or served.name != record.endpoint.name:
            if record.machine.trial is state:
                self._take(record, Event.CONDEMNED, "the gateway used another endpoint for the trial")
            known = None if served is None else self._records.get(served.name)
            if known is None:
                return
            record = known
        if reason is None:
            record.machine.release(state)
            return
        counts = True
        if reason is not ErrorReason.SERVER_ERROR:
            record.window.failed(now)
        elif not record.window.server_error(request.fairness_id, now):
            reason, counts = ErrorReason.ONE_CLIENT, False
        record.errors[reason] += 1
        if not counts:
            record.machine.release(state)
            return
        detail = f"{reason.value}, {end.gateway_error or f'status {end.status}'}"
        if record.machine.trial is state:
            self._take(record, Event.CONDEMNED, f"the trial failed: {detail}")
        elif record.machine.state is _DEGRADED:
            self._take(record, Event.CONDEMNED, f"{record.machine.reason}; then {detail}")
        elif record.machine.state is _HEALTHY and (verdict := record.window.verdict()):
            self._take(record, Event.CONDEMNED, f"{verdict}; the last: {detail}")

    def review_when_due(self) -> None:
        if self.context.columns is not None and self._clock() >= self._due_at:
            self._review(self.context.columns.endpoints())

    def _review(self, endpoints: Endpoints) -> None:
        """Detect silence, hangs and slowness, and end ejections."""
        now = self._clock()
        if self.context.columns is not None:
            endpoints = self.context.columns.endpoints()  # the candidates may be a part of the pool
        if self._reviewed_at is not None and now - self._reviewed_at > _GAP_SECONDS:
            self._resumed_at = now  # metrics missed while the picker stalled do not make an endpoint silent
        self._reviewed_at, self._due_at = now, now + REVIEW_SECONDS
        records = [self._records.get(endpoint.name) or self._new_record(endpoint) for endpoint in endpoints.members]
        if endpoints.pool_members is not self._pool:
            self._pool = endpoints.pool_members
            for record, endpoint in zip(records, endpoints.members, strict=True):
                record.place(endpoint)
            self._sizes = Counter([record.group for record in records])
        if now - self._resumed_at > self.parameters.tolerance:
            age = np.minimum.reduce([endpoints.age(key) for key in _REPORTED])
            silent = (age > self.parameters.tolerance) & (age < np.inf)
            for record, is_silent in zip(records, silent.tolist(), strict=True):
                if record.is_silent and not is_silent and not record.machine.is_asleep:
                    self._take(record, Event.RETURNED, "reports metrics again; one trial request decides")
                record.is_silent = is_silent
        self._compare_first_tokens(records)
        longest = max([record.window.longest for record in records], default=0.0)
        limit = max(self.parameters.hang_timeout, self.parameters.slow_factor * longest)
        for record in records:
            self._review_one(record, now, limit)

    def _review_one(self, record: Record, now: float, hang_seconds: float) -> None:
        machine, window = record.machine, record.window
        window.pass_time(now)
        before = machine.state
        if machine.pass_time(now):
            self._changed(record, before)
        token_at = None if record.trial is None else record.trial.first_chunk_at
        if token_at is not None and now - token_at > _STREAMS_SECONDS:
            self._take(record, Event.SUCCEEDED)
        if record.open:
            silence = record.silence(now, self._resumed_at)
            hangs = silence is not None and silence > hang_seconds
            if hangs and self._take(record, Event.CONDEMNED, f"no first token for {silence:.0f} s"):
                record.errors[ErrorReason.HANG] += 1
        if record.is_silent:
            self._take(record, Event.SUSPECTED, "it reports no metrics any more")
        elif record.is_slow:
            self._take(record, Event.SUSPECTED, f"slow: its median first token takes {window.median:.1f} s")
        elif machine.state is _DEGRADED:
            self._take(record, Event.CLEARED)
        self._publish(record)

    def _compare_first_tokens(self, records: list[Record]) -> None:
        medians: defaultdict[str, list[float]] = defaultdict(list)
        for record in records:
            record.window.measure()
            if record.window.median is not None:
                medians[record.group].append(record.window.median)
        usual = {group: median_low(times) * self.parameters.slow_factor for group, times in medians.items()}
        for record in records:
            first_token = record.window.median
            record.is_slow = first_token is not None and first_token > max(usual[record.group], _SLOW_FLOOR_SECONDS)

    def _record_of(self, name: str) -> Record | None:
        """Return the endpoint's record, or None if it is not in the pool."""
        if name in self._records or self.context.columns is None:
            return self._records.get(name)
        endpoints = self.context.columns.endpoints()
        position = endpoints.position(name)
        return None if position is None else self._new_record(endpoints.members[position])

    def _new_record(self, endpoint: Endpoint) -> Record:
        record = self._records[endpoint.name] = Record(endpoint, self._times, self._limits, self._clock())
        return record

    def _take(self, record: Record, event: Event, reason: str = "") -> bool:
        before = record.machine.state
        changed = record.machine.take(event, self._clock(), reason)
        if changed:
            self._changed(record, before)
            if self.context.is_shared and event in (Event.CONDEMNED, Event.SUCCEEDED):
                self._unpublished.append((record.endpoint.name, event is Event.CONDEMNED, reason, self._clock()))
        return changed

    def _changed(self, record: Record, before: HealthState) -> None:
        machine, name = record.machine, record.endpoint.name
        if self._records.get(name) is not record:
            return  # it has left the pool
        if machine.state is _HEALTHY:
            self._unwell.pop(name, None)
            record.window.consecutive = 0
        else:
            self._unwell[name] = record
        log = self.context.logger.info if machine.state in (_HEALTHY, _PROBING) else self.context.logger.warning
        log("endpoint %s: %s -> %s%s", name, before.value, machine.state.value, f" ({machine.reason})" if machine.reason else "")
        self._publish(record)

    def _publish(self, record: Record) -> None:
        health = record.changed_health()
        if health is not None and self.context.columns is not None:
            self.context.columns.set(ENDPOINT_HEALTH, health, record.endpoint)
