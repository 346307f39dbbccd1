"""Takes requests through the pipeline to a decision."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from random import Random
from time import perf_counter
from typing import Final

from endpick.api.access import Access
from endpick.api.request import DirectResponse, Rejection
from endpick.api.state import CycleState
from endpick.data.model_rules import ModelRules
from endpick.flow_control.controller import Flight
from endpick.flow_control.policies import Pool
from endpick.host.telemetry import Telemetry
from endpick.requests.headers import DEFAULT_FAIRNESS_ID, FAIRNESS_ID, REQUEST_ID, HeadersForUpstream, first_of, new_id
from endpick.requests.intake import build_request, within
from endpick.requests.memory import SHED_FOR_MEMORY, Memory, OverloadStage
from endpick.requests.model import (
    NO_CANDIDATES,
    NOT_RESERVED,
    NOTHING_CACHED,
    BodyModes,
    Decision,
    IncomingRequest,
    Refused,
    RequestRefused,
    Routed,
    refused,
)
from endpick.requests.parsing import wants_body
from endpick.requests.pipeline import (
    IF_AVAILABLE,
    RESERVE_ENDPOINT,
    Job,
    Pipeline,
    admit,
    filter_candidates,
    hidden_by_body_modes,
    prefers,
    prepare_request,
    process_headers,
    produce,
    respond,
    scores_of,
    shed,
    was_cached,
)
from endpick.requests.record import SUBSET, DecisionLog, DecisionRecord, Removal, Why
from endpick.requests.response import BodilessExchange, ExchangeHost, TrackedExchange
from endpick.requests.waiting import FlowGate, decide_later
from endpick.scheduling.trace import UNREAD, Tracer

_SHEDDING: Final = OverloadStage.SHEDDING


class Director:
    """The `Decider` of a serving process: runs each request through the pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        pool: Pool,
        telemetry: Telemetry,
        clock: Callable[[], float],
        *,
        random: Random | None = None,
        access: Access | None = None,
        sent: set[str] | None = None,
        memory: Memory | None = None,
        emits_scores: bool = False,
        rules: ModelRules | None = None,
        gate: FlowGate | None = None,
        decisions: DecisionLog | None = None,
    ) -> None:
        """A pipeline with flow control requires a gate."""
        self._pipeline = pipeline
        self._pool = pool
        self._telemetry = telemetry
        self._clock = clock
        self._random = random or Random()  # noqa: S311 - routing needs no secrets
        self.access = access or Access(None, telemetry.undeclared_access)
        self._view = pool.view(self.access)
        self._sent: set[str] = set() if sent is None else sent
        self._rules = rules or ModelRules()
        self._memory = Memory() if memory is None else memory
        self._emits_scores = emits_scores
        self._last_body_modes: BodyModes | None = None
        self._known_body_modes: set[BodyModes] = set()
        self._decisions = decisions
        self._tracer: Tracer | None = None
        self._exchange_host = ExchangeHost(self.access, telemetry, clock, decisions)
        self._gate = gate
        if gate is not None:
            gate.reconfigure(pipeline.flow_control, pipeline.detector)

    def switch(self, pipeline: Pipeline) -> None:
        """Decide later requests with `pipeline`. Called by a reload."""
        self._pipeline = pipeline
        if self._gate is not None:
            self._gate.reconfigure(pipeline.flow_control, pipeline.detector)

    def wants_body(self, headers: Mapping[str, str]) -> bool:
        return wants_body(headers, self._pipeline.parsers)

    def decide(self, incoming: IncomingRequest) -> Decision | Awaitable[Decision]:
        """Parse → respond → request headers → wait → candidates → shed → candidate filters → produce → admit → schedule → pre-request."""
        pipeline, access = self._pipeline, self.access
        if incoming.body_modes is not self._last_body_modes and incoming.body_modes != self._last_body_modes:
            self._report_body_modes(incoming.body_modes, pipeline)
        job: Job | None = None
        try:
            is_bodiless = incoming.body is None and incoming.body_modes.sees_request_body and not incoming.unread
            if is_bodiless and not pipeline.responders:
                return self._route_bodiless(incoming)
            built = build_request(
                incoming, pipeline.parsers, pipeline.objectives, self._rules, self._random, access, pipeline.propagates_priority
            )
            job = Job(incoming, pipeline, built, self._view, CycleState(access))
            if pipeline.responders:
                endpoints = within(incoming.subset, self._pool.view(access))
                response = respond(pipeline.responders, built.request, endpoints, job.state, access)
                if response is not None:
                    return response
                if is_bodiless:
                    return self._route_bodiless(incoming)
            if pipeline.header_processors:
                built.request = process_headers(pipeline.header_processors, built.request, job.state, access)
            if built.request.priority < 0 and self._memory.stage >= _SHEDDING:
                self._memory.shed += 1
                return self.refuse(SHED_FOR_MEMORY, job)
            if self._decisions is not None:
                record = job.record = self._decisions.begin(built.request, pipeline.plan)
                if record is not None:
                    job.state._notes = record.notes
            if pipeline.flow_control is not None and self._gate is not None:
                waiting = self._gate.enter(built, job.state)
                if waiting is not None:
                    return decide_later(self, job, waiting)
            return decide_later(self, job, None) if self.prepare(job) else self.conclude(job)
        except RequestRefused as refusal:
            return self.refuse(refusal.refused, job, incoming)

    def prepare(self, job: Job) -> bool:
        """Find candidates and run producers. Returns True if producers must be awaited. Raises RequestRefused."""
        if job.record is None:
            return self._prepare(job)
        with self._telemetry.listening(job.record.faults):
            return self._prepare(job)

    def _prepare(self, job: Job) -> bool:
        pipeline = job.pipeline = self._pipeline
        built, access = job.built, self.access
        if self._view._generation is not self._pool.generation:
            self._view = self._pool.view(access)
        endpoints = within(job.incoming.subset, self._view)
        record = job.record
        if record is not None and len(endpoints) < len(self._view):
            others = tuple([endpoint.name for endpoint in self._view.members if endpoint not in endpoints])
            record.removed.append(Removal(SUBSET, SUBSET, others))
        if pipeline.flow_control is None:
            shed(pipeline.detector, built.request, endpoints, access)
        if pipeline.candidate_filters:
            endpoints = filter_candidates(pipeline.candidate_filters, built.request, endpoints, access, record)
        if not len(endpoints):
            raise RequestRefused(NO_CANDIDATES)
        job.endpoints = endpoints
        if built.unread:
            job.state.put(UNREAD, built.unread)
        if pipeline.producers_at_once:
            produce(pipeline.producers_at_once, built.request, endpoints, job.state, access)
        return bool(pipeline.producers_later)

    def conclude(self, job: Job) -> Decision:
        """Run admitters, scheduling and pre-request plugins. Raises RequestRefused."""
        if job.record is None:
            return self._conclude(job)
        with self._telemetry.listening(job.record.faults):
            return self._conclude(job)

    def _conclude(self, job: Job) -> Decision:
        pipeline, built, state, access = job.pipeline, job.built, job.state, self.access
        request = built.request
        if pipeline.admitters:
            admit(pipeline.admitters, request, job.endpoints, state, access)
        scheduler, record = pipeline.scheduler, job.record
        if record is not None:
            record.begin_scheduling(request, job.endpoints, state)
            if self._tracer is None or self._tracer.scheduler is not scheduler:
                self._tracer = Tracer(scheduler, self._clock)
            scheduler = self._tracer.into(record.runs)
        started = perf_counter()
        result = scheduler.schedule(request, job.endpoints, state, access)
        seconds = perf_counter() - started
        if isinstance(result, Rejection):
            self._telemetry.request_scheduled(seconds, None, request.model)
            raise RequestRefused(refused(result))
        picked = result.runs[result.primary].picked
        assert picked is not None
        self._telemetry.request_scheduled(seconds, picked.members[0], request.model)
        if "prefer" in request.headers and prefers(request.headers, IF_AVAILABLE) and not was_cached(result, state):
            raise RequestRefused(NOTHING_CACHED)

        headers = HeadersForUpstream(result.headers, result.removed_headers)
        if not request.headers.get(REQUEST_ID):
            headers.set(REQUEST_ID, request.id)
        if record is not None and record.span is not None:
            for name, value in record.span.headers.items():
                headers.set(name, value)
        refusal = prepare_request(pipeline.pre_requests, request, result, headers, state, access)
        if refusal is None and "prefer" in request.headers and prefers(request.headers, RESERVE_ENDPOINT):
            refusal = RequestRefused(NOT_RESERVED)
        # Built after the pre-request plugins, which may open circuits of observers.
        exchange = TrackedExchange(self._exchange_host, built, state, pipeline.observers, picked, result.destinations)
        exchange.record, exchange.plan = record, pipeline.plan
        flight: Flight | None = None
        if pipeline.flow_control is not None and self._gate is not None:
            flight = self._gate.track(request, picked.members[0])
            exchange.notify_flow_control(self._gate.something_changed, flight)
        if refusal is not None:
            exchange.abandon()
            if isinstance(refusal, DirectResponse):
                if record is not None and self._decisions is not None:
                    record.status = refusal.status
                    self._decisions.finish(record)
                return refusal
            raise refusal
        size_bytes = request.size_bytes if built.body is None else len(built.body)
        decided = self._clock() - request.received_at
        self._telemetry.request_decided(request.incoming_model, request.model, request.fairness_id, request.priority, size_bytes, decided)
        if record is not None:
            record.decided(result, seconds, decided)
        self._sent.update(result.destinations)
        scores = scores_of(result) if self._emits_scores else None
        return Routed(result.destinations, exchange, headers._values, built.body, headers._metadata, headers._removed, scores, flight)

    def refuse(self, refusal: Refused, job: Job | None, incoming: IncomingRequest | None = None) -> Refused:
        """Count and record a refusal, and return it."""
        if job is not None:
            request = job.built.request
            if self._decisions is not None:
                record = job.record or DecisionRecord.of(request, job.pipeline.plan, Why.ERROR)
                record.refused(refusal)
                self._decisions.finish(record)
            self._telemetry.request_refused(request.incoming_model, request.model, request.fairness_id, request.priority, refusal.code)
        elif incoming is not None:
            self._telemetry.request_refused("", "", _fairness_id(incoming), 0, refusal.code)
        return refusal

    def _route_bodiless(self, incoming: IncomingRequest) -> Routed:
        """As in llm-d, requests such as `GET /v1/models` go to a random endpoint."""
        candidates = within(incoming.subset, self._pool.view(self.access)).members
        if not candidates:
            raise RequestRefused(NO_CANDIDATES)
        headers = {} if incoming.headers.get(REQUEST_ID) else {REQUEST_ID: new_id()}
        address = self._random.choice(candidates).address
        self._sent.add(address)
        exchange = BodilessExchange(_fairness_id(incoming), incoming.received_at, self._telemetry, self._clock)
        return Routed((address,), exchange, headers)

    def _report_body_modes(self, modes: BodyModes, pipeline: Pipeline) -> None:
        self._last_body_modes = modes
        lost = () if modes in self._known_body_modes else hidden_by_body_modes(pipeline, modes)
        self._known_body_modes.add(modes)
        self._telemetry.gateway_body_modes(modes.sees_request_body, modes.sees_response_body, lost)


def _fairness_id(incoming: IncomingRequest) -> str:
    return first_of(incoming.headers, FAIRNESS_ID) or DEFAULT_FAIRNESS_ID
