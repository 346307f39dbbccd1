"""`program-aware-fairness`: least attained service first, or most turns first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal, cast
from weakref import WeakSet

import numpy as np
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import Field

from endpick.api import (
    CycleState,
    InferenceRequest,
    PluginContext,
    PreRequest,
    ResponseEnd,
    ResponseObserver,
    SchedulingResult,
    UpstreamHeaders,
)
from endpick.api.flow_control import Band, FairnessPolicy, Flow, WaitingRequest
from endpick.api.metrics import MAX_LABEL_VALUES, as_label
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.recency import Recency, kept_id

_STATE = "state"
_SHARED_FLOW = "default-flow"  # of requests without a fairness id
_MAX_HALF_LIVES = 500  # then the ledger is rescaled: 2^500 is far below the largest float, 2^1023


class ProgramAwareParameters(CamelParameters):
    """Sets the strategy and its weights."""

    strategy: Annotated[
        Literal["las", "turn-priority"],
        Field(description="Least attained service first (`las`), or sessions with the most turns first (`turn-priority`)."),
    ] = "las"
    eviction_ttl_seconds: Annotated[float, Field(gt=0, le=1e9, description="A program without requests for this long is forgotten.")] = (
        3600.0
    )
    eviction_sweep_seconds: Annotated[float, Field(gt=0, le=1e9, description="How often forgotten programs are removed.")] = 300.0
    max_programs: Annotated[
        int, Field(gt=0, description="Maximum number of remembered programs, about 530 bytes each. llm-d has no limit.")
    ] = 50_000
    las_weight_service: Annotated[float, Field(ge=0, le=1e6, description="Weight of little attained service.")] = 0.8
    las_weight_head_wait: Annotated[float, Field(ge=0, le=1e6, description="Weight of a long wait.")] = 0.2
    las_half_life_seconds: Annotated[float, Field(ge=0, le=1e9, description="Half-life of attained service; 0 for no decay.")] = 60.0
    turn_priority_time_weight: Annotated[
        float, Field(ge=0, le=1e6, description="For `turn-priority`: turns that a second of waiting is worth.")
    ] = 0.5
    turn_priority_inactivity_seconds: Annotated[
        float, Field(ge=0, le=1e9, description="For `turn-priority`: idle time after which a program is at turn one again; 0 for never.")
    ] = 120.0


class _Program:
    """`service` is on the scale of the ledger."""

    __slots__ = ("completed_at", "dispatched", "in_flight", "seen_at", "service", "waited")

    def __init__(self) -> None:
        self.completed_at = math.inf
        self.in_flight = 0
        self.service = 0.0
        self.seen_at = 0.0
        self.waited = 0.0
        self.dispatched = 0


class _Ledger:
    """Service by program; later service weighs more, instead of decaying all, so it is rescaled at times."""

    def __init__(self, half_life: float, now: float, max_programs: int, context: PluginContext) -> None:
        self._max_programs = max_programs
        self._logger = context.logger
        self._has_warned = False
        self.programs: Recency[str, _Program] = Recency()
        self.shown: dict[str, str] = {}  # metric labels of the first thousand programs; clients choose ids
        self._labels: set[str] = set()
        self._half_life = half_life
        self._origin = now

    def seen(self, program_id: str, now: float) -> _Program:
        key = kept_id(program_id)
        program = self.programs.get(key)
        if program is None:
            program = _Program()
            label = as_label(program_id)
            if len(self.shown) < MAX_LABEL_VALUES and label not in self._labels:
                self._labels.add(label)
                self.shown[key] = label
        program.seen_at = now
        self.programs.use(key, program)
        if self.programs.trim(self._max_programs):
            self._warn_once()
        return program

    def scale(self, now: float) -> float:
        return float(2.0 ** min((now - self._origin) / self._half_life, 2.0 * _MAX_HALF_LIVES)) if self._half_life else 1.0

    def is_worn(self, now: float) -> bool:
        return bool(self._half_life) and now - self._origin > _MAX_HALF_LIVES * self._half_life

    def rescale(self, now: float) -> None:
        factor = 0.5 ** ((now - self._origin) / self._half_life)
        for program in self.programs.values():
            program.service *= factor
        self._origin = now

    def forget(self, before: float) -> None:
        self.programs.expire(lambda program: program.seen_at < before)

    def _warn_once(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._logger.warning(
                "more than maxPrograms=%d fairness ids; the least recently seen are forgotten: raise it, lower evictionTtlSeconds, or find "
                "the clients that send these ids",
                self._max_programs,
            )


class _Waiting:
    __slots__ = ("__weakref__", "flows", "places", "service", "since")

    def __init__(self) -> None:
        self.flows: list[Flow] = []
        self.places: dict[str, int] = {}
        self.since = np.zeros(16)
        self.service = np.zeros(16)

    def put(self, flow: Flow, since: float, service: float) -> None:
        place = self.places.get(flow.id)
        if place is None:
            place = self.places[flow.id] = len(self.flows)
            self.flows.append(flow)
            if place == len(self.since):
                self.since = np.concatenate((self.since, np.zeros(place)))
                self.service = np.concatenate((self.service, np.zeros(place)))
        self.service[place] = service
        self.flows[place] = flow
        self.since[place] = since

    def drop(self, flow_id: str) -> None:
        place = self.places.pop(flow_id, None)
        if place is None:
            return
        last = self.flows.pop()
        if place < len(self.flows):
            self.flows[place] = last
            self.places[last.id] = place
            self.since[place] = self.since[len(self.flows)]
            self.service[place] = self.service[len(self.flows)]

    def best(self, weight_service: float, weight_wait: float) -> Flow | None:
        """Only slopes matter: bounds shift all scores alike."""
        size = len(self.flows)
        if size < 2:
            return self.flows[0] if size else None
        service, since = self.service[:size], self.since[:size]
        cost = service * _slope(service, weight_service)
        cost += since * _slope(since, weight_wait)
        return self.flows[int(cost.argmin())]

    def deepest(self, time_weight: float) -> Flow | None:
        """`service` holds negative turns. Now shifts all scores alike; the longest wait breaks ties."""
        size = len(self.flows)
        if size < 2:
            return self.flows[0] if size else None
        since = self.since[:size]
        cost = self.service[:size] + time_weight * since
        return self.flows[int(np.where(cost == cost.min(), since, np.inf).argmin())]


def _slope(column: np.ndarray[tuple[int], np.dtype[np.float64]], weight: float) -> float:
    width = float(np.maximum.reduce(column) - np.minimum.reduce(column))
    return weight / width if width else 0.0


class ProgramAwareFairness(
    FairnessPolicy[ProgramAwareParameters], PreRequest[ProgramAwareParameters], ResponseObserver[ProgramAwareParameters]
):
    """Serves the program with the least attained service, or the session with the most turns, weighed against the longest wait.

    A program is a fairness id. `las`: service = sum of prompt tokens + 2 * completion tokens of its finished responses, 0 if not reported,
    with half-life lasHalfLifeSeconds. score = lasWeightService * (1 - norm(service)) + lasWeightHeadWait * norm(wait of its first request);
    norm is min-max over the waiting flows, 0.5 if all are equal.

    `turn-priority`: score = turn + turnPriorityTimeWeight * seconds its first request has waited. The turn is 1 + dispatched requests; it
    is 1 for `default-flow`, and for a request that arrives more than turnPriorityInactivitySeconds after the last response. Ties go to the
    longest wait.

    Gauges show the first 1000 programs. The fairness index of `turn-priority` is of mean waits.
    """

    def __init__(self, name: str, parameters: ProgramAwareParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        now = context.clock()
        self._by_turn = parameters.strategy == "turn-priority"
        self._ledger = _Ledger(parameters.las_half_life_seconds, now, parameters.max_programs, context)
        self._swept_at = now
        self._bands: WeakSet[_Waiting] = WeakSet()
        if context.registry is not None:
            context.registry.register(_Gauges(self._ledger, context, has_service=not self._by_turn))

    def choose(self, band: Band) -> Flow | None:
        if self._by_turn:
            return self._waiting(band).deepest(self.parameters.turn_priority_time_weight)
        return self._waiting(band).best(self.parameters.las_weight_service, self.parameters.las_weight_head_wait)

    def flow_changed(self, band: Band, flow: Flow) -> None:
        waiting, head = self._waiting(band), flow.head
        if head is None:
            waiting.drop(flow.id)
        else:
            waiting.put(flow, head.enqueued_at, self._rank(flow.id, head.enqueued_at))

    def dispatched(self, band: Band, flow: Flow, waiting: WaitingRequest) -> None:
        now = self.context.clock()
        program = self._ledger.seen(flow.id, now)
        program.waited += max(0.0, now - waiting.enqueued_at)
        program.dispatched += 1
        self._maintain(now)
        if flow.head is not None:
            self.flow_changed(band, flow)

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        program = self._ledger.programs.get(kept_id(request.fairness_id))
        if program is not None:
            program.in_flight += 1
            state.private["program"] = program

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        now = self.context.clock()
        sent = state.private.pop("program", None)
        if isinstance(sent, _Program):
            sent.in_flight -= 1
            sent.completed_at = now
        if end.usage is None or self._by_turn:
            return
        self._maintain(now)
        program = self._ledger.seen(request.fairness_id, now)
        program.service += (end.usage.prompt_tokens + 2 * end.usage.completion_tokens) * self._ledger.scale(now)
        for waiting in self._bands:
            place = waiting.places.get(request.fairness_id)
            if place is not None:
                waiting.service[place] = program.service

    def _rank(self, program_id: str, waits_since: float) -> float:
        """Service, or the turn as a negative number; the smaller goes first."""
        program = self._ledger.programs.get(kept_id(program_id))
        if not self._by_turn:
            return 0.0 if program is None else program.service
        if program is None or program_id == _SHARED_FLOW:
            return -1.0
        limit = self.parameters.turn_priority_inactivity_seconds
        is_idle = bool(limit) and not program.in_flight and waits_since - program.completed_at > limit
        return -1.0 if is_idle else -1.0 - program.dispatched

    def _waiting(self, band: Band) -> _Waiting:
        waiting = cast("_Waiting | None", band.private.get(_STATE))
        if waiting is None:
            waiting = band.private[_STATE] = _Waiting()
            self._bands.add(waiting)
            for flow in band.flows:
                if flow.head is not None:
                    waiting.put(flow, flow.head.enqueued_at, self._rank(flow.id, flow.head.enqueued_at))
        return waiting

    def _maintain(self, now: float) -> None:
        if now - self._swept_at >= self.parameters.eviction_sweep_seconds:
            self._swept_at = now
            self._ledger.forget(now - self.parameters.eviction_ttl_seconds)
        elif not self._ledger.is_worn(now):
            return
        if self._ledger.is_worn(now):
            self._ledger.rescale(now)
        for waiting in self._bands:
            for flow_id, place in waiting.places.items():
                waiting.service[place] = self._rank(flow_id, float(waiting.since[place]))


class _Gauges(Collector):
    def __init__(self, ledger: _Ledger, context: PluginContext, *, has_service: bool) -> None:
        self._ledger = ledger
        self._clock = context.clock
        self._has_service = has_service

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("llm_d_epp_program_aware_jains_fairness_index", _JAIN)
        yield GaugeMetricFamily("llm_d_epp_program_aware_attained_service_tokens", _SERVICE, labels=("program_id",))
        yield GaugeMetricFamily("llm_d_epp_program_aware_avg_wait_time_milliseconds", _WAIT, labels=("program_id",))

    def collect(self) -> Iterator[GaugeMetricFamily]:
        programs, scale = self._ledger.programs, self._ledger.scale(self._clock())
        jain, service, wait = self.describe()
        if self._has_service:
            compared = [program.service / scale for program in programs.values()]
        else:
            compared = [program.waited / program.dispatched for program in programs.values() if program.dispatched]
        jain.add_metric((), jain_index(np.array(compared)))
        for key, label in self._ledger.shown.items():
            program = programs.get(key)
            if program is not None:
                service.add_metric((label,), program.service / scale)
                if program.dispatched:
                    wait.add_metric((label,), 1000.0 * program.waited / program.dispatched)
        yield from (jain, service, wait) if self._has_service else (jain, wait)


_JAIN = "Jain's index of attained service: 1 if all programs have the same, 1 / n if one of n has all."
_SERVICE = "Prompt tokens + 2 * completion tokens of a program's responses, with decay."
_WAIT = "Mean queue time of a program's requests."


def jain_index(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Return (sum of x)^2 / (n * sum of x^2), or 1 if all are 0."""
    squares = float((values * values).sum())
    return float(values.sum()) ** 2 / (len(values) * squares) if squares else 1.0
