"""`program-aware-fairness`: which flow has had least of the model servers, and has waited longest?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, cast
from weakref import WeakSet

import numpy as np
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import Field

from endpick.api import (
    Band,
    CycleState,
    FairnessPolicy,
    Flow,
    InferenceRequest,
    Limit,
    Limits,
    Parameters,
    PluginContext,
    ResponseEnd,
    ResponseObserver,
    WaitingRequest,
)
from endpick.api.metrics import MAX_LABEL_VALUES, as_label
from endpick_builtin.recency import Recency, kept_id

_STATE = "state"
_MANY_PROGRAMS = Limit(
    "maxPrograms",
    "the program not seen for longest begins anew: there are more than maxPrograms; raise it, lower evictionTtlSeconds, or find out who "
    "sends so many fairness ids",
)
_PROGRAM_BYTES = 530
"""With an id as long as it may be."""
_MOST_HALF_LIVES = 500
"""Since the origin of the scale: what was added last is counted 2^500 times as much, and floats go on to 2^1023."""


class ProgramAwareParameters(Parameters):
    """What counts, how much, and for how long."""

    strategy: Annotated[Literal["las"], Field(description="Least attained service; there is one strategy.")] = "las"
    eviction_ttl_seconds: Annotated[
        float, Field(alias="evictionTtlSeconds", gt=0, le=1e9, description="A program that sent nothing for so long is forgotten.")
    ] = 3600.0
    eviction_sweep_seconds: Annotated[
        float, Field(alias="evictionSweepSeconds", gt=0, le=1e9, description="How often programs are looked through for that.")
    ] = 300.0
    max_programs: Annotated[
        int,
        Field(
            alias="maxPrograms",
            gt=0,
            description="Programs to remember at most, some 530 bytes each; the one not seen for longest gives way. llm-d has no bound.",
        ),
    ] = 50_000
    las_weight_service: Annotated[
        float, Field(alias="lasWeightService", ge=0, le=1e6, description="How much it counts to have been served little.")
    ] = 0.8
    las_weight_head_wait: Annotated[
        float, Field(alias="lasWeightHeadWait", ge=0, le=1e6, description="How much it counts to have waited long.")
    ] = 0.2
    las_half_life_seconds: Annotated[
        float, Field(alias="lasHalfLifeSeconds", ge=0, le=1e9, description="After so long service counts half; 0: for ever in full.")
    ] = 60.0


class _Program:
    """What is known of one fairness id; `service` is on the scale of the ledger."""

    __slots__ = ("seen_at", "service", "turns", "waited")

    def __init__(self) -> None:
        self.service = 0.0
        self.seen_at = 0.0
        self.waited = 0.0
        self.turns = 0


class _Ledger:
    """The service of every program, decaying.

    Everything decays by the same factor, so nothing is multiplied as time passes: what comes later is counted for more instead, and all is
    scaled down once in 500 half-lives.
    """

    def __init__(self, half_life: float, now: float, most: int, limits: Limits) -> None:
        """`most`: programs that are remembered; `limits`: of the instance."""
        self._most = most
        self._limits = limits
        self.programs: Recency[str, _Program] = Recency()
        """What was seen last comes last."""
        self.shown: dict[str, str] = {}
        """The first thousand that were ever seen, with their labels on the page of metrics; clients choose ids."""
        self._labels: set[str] = set()
        self._half_life = half_life
        self._origin = now

    def seen(self, program_id: str, now: float) -> _Program:
        """The program, from now on the one seen last; the one not seen for longest goes when there are too many."""
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
        for _ in self.programs.beyond(self._most):
            self._limits.acted(_MANY_PROGRAMS)
        return program

    def scale(self, now: float) -> float:
        """What a token counts that is attained now."""
        return float(2.0 ** min((now - self._origin) / self._half_life, 2.0 * _MOST_HALF_LIVES)) if self._half_life else 1.0

    def is_worn(self, now: float) -> bool:
        """Whether numbers have become so large that `renew` must scale them down."""
        return bool(self._half_life) and now - self._origin > _MOST_HALF_LIVES * self._half_life

    def renew(self, now: float) -> None:
        """Let the scale begin now."""
        factor = 0.5 ** ((now - self._origin) / self._half_life)
        for program in self.programs.values():
            program.service *= factor
        self._origin = now

    def forget(self, before: float) -> None:
        """Drop what was seen last before that time."""
        for _ in self.programs.older(lambda program: program.seen_at < before):
            pass


class _Waiting:
    """The flows of one band as columns: since when the head of each waits, and the service of each."""

    __slots__ = ("__weakref__", "flows", "places", "service", "since")

    def __init__(self) -> None:
        self.flows: list[Flow] = []
        self.places: dict[str, int] = {}
        self.since = np.zeros(16)
        self.service = np.zeros(16)

    def put(self, flow: Flow, since: float, service: float) -> None:
        """A flow has a new head."""
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
        """Nothing of a flow waits any more: the last one takes its place."""
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
        """The flow with the highest score; of equals any. See `ProgramAwareFairness` for the formula.

        A column shifts every score by the same amount where it is subtracted from its bound, so only the slopes are reckoned.
        """
        size = len(self.flows)
        if size < 2:
            return self.flows[0] if size else None
        service, since = self.service[:size], self.since[:size]
        cost = service * _slope(service, weight_service)
        cost += since * _slope(since, weight_wait)
        return self.flows[int(cost.argmin())]


def _slope(column: np.ndarray[tuple[int], np.dtype[np.float64]], weight: float) -> float:
    """How much of the score a unit of a column is; 0 where all values are equal, and say nothing."""
    width = float(np.maximum.reduce(column) - np.minimum.reduce(column))
    return weight / width if width else 0.0


class ProgramAwareFairness(FairnessPolicy[ProgramAwareParameters], ResponseObserver[ProgramAwareParameters]):
    """Serve the program that has attained least service, and a little the one whose request has waited longest.

    A program is a fairness id. Its service is the sum of prompt tokens + 2 * completion tokens of its responses, each halved every
    lasHalfLifeSeconds. score = lasWeightService * (1 - norm(service)) + lasWeightHeadWait * norm(wait of its first request); the highest is
    served. norm is min-max over the flows that wait, 0.5 for all where they are equal. Responses without token counts, and gateways that
    send no response bodies, leave service as it is: then what has waited longest is served. Service is counted when a response ends, so
    that a program may get several turns before its first answer counts. One that sent nothing for evictionTtlSeconds begins anew.

    Gauges: `llm_d_epp_program_aware_attained_service_tokens` and `llm_d_epp_program_aware_avg_wait_time_milliseconds` by `program_id`, for
    the first 1000 programs (cut at 128 bytes), and `llm_d_epp_program_aware_jains_fairness_index`, 1 when all programs have the same
    service.
    """

    def __init__(self, name: str, parameters: ProgramAwareParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        now = context.clock()
        limits = Limits(context, (_MANY_PROGRAMS,))
        self._ledger = _Ledger(parameters.las_half_life_seconds, now, parameters.max_programs, limits)
        self._swept_at = now
        self._bands: WeakSet[_Waiting] = WeakSet()
        if context.registry is not None:
            context.registry.register(_Gauges(self._ledger, context))

    def choose(self, band: Band) -> Flow | None:
        """See the class."""
        return self._waiting(band).best(self.parameters.las_weight_service, self.parameters.las_weight_head_wait)

    def flow_changed(self, band: Band, flow: Flow) -> None:
        """Keep since when the flow waits."""
        waiting, head = self._waiting(band), flow.head
        if head is None:
            waiting.drop(flow.id)
        else:
            waiting.put(flow, head.enqueued_at, self._service(flow.id))

    def dispatched(self, band: Band, flow: Flow, waiting: WaitingRequest) -> None:
        """Note how long it has waited."""
        now = self.context.clock()
        program = self._ledger.seen(flow.id, now)
        program.waited += max(0.0, now - waiting.enqueued_at)
        program.turns += 1
        self._maintain(now)

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        """Count what the response took."""
        if end.usage is None:
            return
        now = self.context.clock()
        self._maintain(now)
        program = self._ledger.seen(request.fairness_id, now)
        program.service += (end.usage.prompt_tokens + 2 * end.usage.completion_tokens) * self._ledger.scale(now)
        for waiting in self._bands:
            place = waiting.places.get(request.fairness_id)
            if place is not None:
                waiting.service[place] = program.service

    def learnt_bytes(self) -> int:
        """What is known of all programs takes."""
        return len(self._ledger.programs) * _PROGRAM_BYTES

    def forget_some(self) -> bool:
        """The half of the programs that was not seen for longest, in parts; they begin anew."""
        return self._ledger.programs.halve()

    def _service(self, program_id: str) -> float:
        program = self._ledger.programs.get(kept_id(program_id))
        return 0.0 if program is None else program.service

    def _waiting(self, band: Band) -> _Waiting:
        waiting = cast("_Waiting | None", band.private.get(_STATE))
        if waiting is None:
            waiting = band.private[_STATE] = _Waiting()
            self._bands.add(waiting)
            for flow in band.flows:
                if flow.head is not None:
                    waiting.put(flow, flow.head.enqueued_at, self._service(flow.id))
        return waiting

    def _maintain(self, now: float) -> None:
        """Scale down, and forget, when it is time."""
        if now - self._swept_at >= self.parameters.eviction_sweep_seconds:
            self._swept_at = now
            self._ledger.forget(now - self.parameters.eviction_ttl_seconds)
        elif not self._ledger.is_worn(now):
            return
        if self._ledger.is_worn(now):
            self._ledger.renew(now)
        for waiting in self._bands:
            for flow_id, place in waiting.places.items():
                waiting.service[place] = self._service(flow_id)


class _Gauges(Collector):
    """Reckoned when they are read, and not with each request."""

    def __init__(self, ledger: _Ledger, context: PluginContext) -> None:
        self._ledger = ledger
        self._clock = context.clock

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The families without samples; called when they are registered."""
        yield GaugeMetricFamily("llm_d_epp_program_aware_jains_fairness_index", _JAIN)
        yield GaugeMetricFamily("llm_d_epp_program_aware_attained_service_tokens", _SERVICE, labels=("program_id",))
        yield GaugeMetricFamily("llm_d_epp_program_aware_avg_wait_time_milliseconds", _WAIT, labels=("program_id",))

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The families as they are now."""
        programs, scale = self._ledger.programs, self._ledger.scale(self._clock())
        jain, service, wait = self.describe()
        jain.add_metric((), jain_index(np.fromiter((program.service / scale for program in programs.values()), np.float64)))
        for key, label in self._ledger.shown.items():
            program = programs.get(key)
            if program is not None:
                service.add_metric((label,), program.service / scale)
                if program.turns:
                    wait.add_metric((label,), 1000.0 * program.waited / program.turns)
        yield from (jain, service, wait)


_JAIN = "Jain's index of the service that programs have attained: 1 when all have the same, 1 / n when one of n has all."
_SERVICE = "Prompt tokens + 2 * completion tokens of a program's responses, decayed."
_WAIT = "Mean time that a program's requests have waited in the queue."


def jain_index(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """(sum of x)^2 / (n * sum of x^2); 1 where nothing was attained."""
    squares = float((values * values).sum())
    return float(values.sum()) ** 2 / (len(values) * squares) if squares else 1.0
