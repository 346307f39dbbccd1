"""The compiled pipeline of a plan, and the plugin calls around scheduling."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CoroutineType
from typing import Final, TypeAlias, TypeVar

import numpy as np

from endpick.api.access import Access
from endpick.api.endpoints import BoolArray, Endpoints
from endpick.api.keys import AGENT_IDENTITY, PREFIX_MATCH_BLOCKS
from endpick.api.request import DirectResponse, InferenceRequest, Rejection
from endpick.api.request_control import (
    Admitter,
    CandidateFilter,
    DataProducer,
    PreRequest,
    RequestHeaderProcessor,
    Responder,
    ResponseObserver,
)
from endpick.api.scheduling import SchedulingResult
from endpick.api.state import CycleState, ScoringState
from endpick.flow_control.policies import BoundFlowControl
from endpick.host.boundary import Fault, Step, bind
from endpick.host.instance import Instance
from endpick.host.kinds import Kind
from endpick.host.methods import ADMIT, BEFORE_REQUEST, FILTER_CANDIDATES, PRODUCE, REQUEST_HEADERS, RESPOND, SATURATION, Method
from endpick.host.telemetry import Telemetry
from endpick.requests.headers import FAIRNESS_ID, HeadersForUpstream, first_of
from endpick.requests.intake import BuiltRequest
from endpick.requests.model import MAX_NAME_CHARACTERS, SATURATED, BodyModes, IncomingRequest, RequestRefused, refused
from endpick.requests.parsing import Parsers, compile_parsers
from endpick.requests.record import DecisionRecord, Removal
from endpick.requests.response import Observers, compile_observers
from endpick.scheduling.scheduler import Scheduler, as_view
from endpick.scheduling.trace import names_of

T = TypeVar("T")
AdmissionStep: TypeAlias = Step[Rejection | None]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The bound steps of a plan. `producers_later` starts with the first asynchronous producer."""

    parsers: Parsers
    detector: Step[float] | None
    producers_at_once: tuple[CompiledProducer, ...]
    producers_later: tuple[CompiledProducer, ...]
    scheduler: Scheduler
    observers: Observers
    header_processors: tuple[AdmissionStep, ...]
    candidate_filters: tuple[Step[BoolArray | Endpoints], ...]
    admitters: tuple[AdmissionStep, ...]
    pre_requests: tuple[Step[Rejection | DirectResponse | None], ...]
    responders: tuple[Step[DirectResponse | None], ...] = ()
    objectives: Mapping[str, int] = field(default_factory=dict)
    flow_control: BoundFlowControl | None = None
    propagates_priority: bool = False
    plan: str = ""  # hash of the plan

    @property
    def producers(self) -> tuple[CompiledProducer, ...]:
        """All producers, in plan order."""
        return self.producers_at_once + self.producers_later


class Job:
    """The state of one undecided request."""

    __slots__ = ("built", "endpoints", "incoming", "pipeline", "record", "state")

    def __init__(self, incoming: IncomingRequest, pipeline: Pipeline, built: BuiltRequest, endpoints: Endpoints, state: CycleState) -> None:
        self.incoming = incoming
        self.pipeline = pipeline
        self.built = built
        self.endpoints = endpoints
        self.state = state
        self.record: DecisionRecord | None = None


def compile_pipeline(
    *,
    scheduler: Scheduler,
    parsers: Sequence[Instance],
    detector: Instance | None = None,
    on_request: Mapping[Kind, Sequence[Instance]],
    objectives: Mapping[str, int] | None = None,
    flow_control: BoundFlowControl | None = None,
    propagates_priority: bool = False,
    plan: str = "",
    telemetry: Telemetry,
) -> Pipeline:
    """Bind the instances to the steps of the request path. Raises TypeError for a wrong kind."""

    def bound(kind: Kind, method: Method[T]) -> tuple[Step[T], ...]:
        return tuple([bind(instance, method, telemetry) for instance in on_request.get(kind, ())])

    producers = tuple([compile_producer(instance, telemetry) for instance in on_request.get(DataProducer, ())])
    first_async = next((position for position, producer in enumerate(producers) if producer.awaits), len(producers))
    return Pipeline(
        compile_parsers(parsers, telemetry),
        None if detector is None else bind(detector, SATURATION, telemetry),
        producers[:first_async],
        producers[first_async:],
        scheduler,
        compile_observers(on_request.get(ResponseObserver, ()), telemetry),
        bound(RequestHeaderProcessor, REQUEST_HEADERS),
        bound(CandidateFilter, FILTER_CANDIDATES),
        bound(Admitter, ADMIT),
        bound(PreRequest, BEFORE_REQUEST),
        bound(Responder, RESPOND),
        objectives or {},
        flow_control,
        propagates_priority,
        plan,
    )


def hidden_by_body_modes(pipeline: Pipeline, modes: BodyModes) -> tuple[str, ...]:
    """Return a sentence for each plugin that misses data because the gateway sends no bodies."""
    lost: list[str] = []
    if not modes.sees_request_body:
        lost += [f"{parser.parse.instance.name} reads no model, prompt or limits" for parser in pipeline.parsers.all if parser.reads_body]
        lost += [f"{producer.step.instance.name} sees an empty prompt" for producer in pipeline.producers]
    if not modes.sees_response_body:
        lost += [f"{parser.parse.instance.name} reads no usage" for parser in pipeline.parsers.all if parser.usage is not None]
        observers = pipeline.observers
        lost += [f"{step.instance.name} does not learn when a response begins" for step in observers.first_chunk]
        # Then only trailers mark the end of a response.
        lost += [
            f"{step.instance.name} takes responses for over at their headers unless the gateway has response_trailer_mode: SEND"
            for step in observers.ended
        ]
    return tuple(lost)


IF_AVAILABLE: Final = "if-available"
RESERVE_ENDPOINT: Final = "reserve-endpoint"


def _refusal_in(answer: Rejection | Fault | None) -> RequestRefused | None:
    if answer is None or (isinstance(answer, Fault) and not answer.refuses):
        return None
    return RequestRefused(refused(answer))


def respond(
    steps: Sequence[Step[DirectResponse | None]], request: InferenceRequest, endpoints: Endpoints, state: ScoringState, access: Access
) -> DirectResponse | None:
    """Return the first response of a responder, or None. Raises RequestRefused after a fault."""
    for step in steps:
        answer = step.run(access, request, endpoints, state)
        if isinstance(answer, DirectResponse):
            return answer
        if answer is not None and answer.refuses:
            raise RequestRefused(refused(answer))
    return None


def process_headers(steps: Sequence[AdmissionStep], request: InferenceRequest, state: CycleState, access: Access) -> InferenceRequest:
    """Run the header processors. An identity they find becomes the fairness id if the client sent none."""
    for step in steps:
        refusal = _refusal_in(step.run(access, request, state))
        if refusal is not None:
            raise refusal
    identity = state.get(AGENT_IDENTITY)
    if not identity or len(identity) > MAX_NAME_CHARACTERS:
        return request
    return request if first_of(request.headers, FAIRNESS_ID) is not None else replace(request, fairness_id=identity)


def shed(detector: Step[float] | None, request: InferenceRequest, endpoints: Endpoints, access: Access) -> None:
    """Refuse requests of negative priority while the pool is saturated. Raises RequestRefused."""
    if request.priority >= 0 or detector is None:
        return
    saturation = detector.run(access, endpoints)
    if isinstance(saturation, Fault):
        if saturation.refuses:
            raise RequestRefused(refused(saturation))
    elif saturation >= 1.0:
        raise RequestRefused(SATURATED)


def filter_candidates(
    steps: Sequence[Step[BoolArray | Endpoints]],
    request: InferenceRequest,
    endpoints: Endpoints,
    access: Access,
    record: DecisionRecord | None = None,
) -> Endpoints:
    """Return the endpoints that all candidate filters keep. Raises RequestRefused after a fault."""
    dropped: BoolArray | None = None
    for step in steps:
        answer = step.run(access, request, endpoints)
        if answer is endpoints:
            continue
        kept = answer if isinstance(answer, Fault) else as_view(endpoints, answer)
        if isinstance(kept, str):
            kept = step.fault(kept)
        if isinstance(kept, Fault):
            if kept.refuses:
                raise RequestRefused(refused(kept))
            continue
        others = np.ones(len(endpoints.pool_members), dtype=np.bool_)
        others[kept._row_numbers()] = False
        dropped = others if dropped is None else dropped | others
        if record is not None:
            removed = names_of(endpoints.where(endpoints.gather(others)))
            record.removed.append(Removal(step.instance.name, step.instance.type, removed))
    return endpoints if dropped is None else endpoints.where(~endpoints.gather(dropped))


@dataclass(frozen=True, slots=True)
class CompiledProducer:
    """A bound producer. `awaits` is True if `produce` is an `async def`."""

    step: Step[object]
    awaits: bool
    timeout_seconds: float


def compile_producer(instance: Instance, telemetry: Telemetry) -> CompiledProducer:
    """Bind `produce` of an instance."""
    step = bind(instance, PRODUCE, telemetry)
    plugin = instance.plugin
    assert isinstance(plugin, DataProducer)
    return CompiledProducer(step, inspect.iscoroutinefunction(plugin.produce), plugin.timeout_seconds)


def produce(
    producers: Sequence[CompiledProducer], request: InferenceRequest, endpoints: Endpoints, state: CycleState, access: Access
) -> None:
    """Run synchronous producers, which put data into `state`. Raises RequestRefused after a fault."""
    for producer in producers:
        step = producer.step
        answer = step.run(access, request, endpoints, state)
        if answer is None:
            continue
        if not isinstance(answer, Fault):
            if isinstance(answer, CoroutineType):
                answer.close()
            answer = step.fault("returned something to await although `produce` is not an `async def`")
        if answer.refuses:
            raise RequestRefused(refused(answer))


def admit(steps: Sequence[AdmissionStep], request: InferenceRequest, endpoints: Endpoints, state: ScoringState, access: Access) -> None:
    """Run the admitters. Raises RequestRefused for the first rejection."""
    for step in steps:
        refusal = _refusal_in(step.run(access, request, endpoints, state))
        if refusal is not None:
            raise refusal


def prepare_request(
    steps: Sequence[Step[Rejection | DirectResponse | None]],
    request: InferenceRequest,
    result: SchedulingResult,
    headers: HeadersForUpstream,
    state: CycleState,
    access: Access,
) -> RequestRefused | DirectResponse | None:
    """Run all pre-request plugins; returns the first refusal, else the first response, else None."""
    refusal, response = None, None
    for step in steps:
        answer = step.run(access, request, result, headers, state)
        if isinstance(answer, DirectResponse):
            response = response or answer
        elif answer is not None:
            refusal = refusal or _refusal_in(answer)
    return refusal or response


def prefers(headers: Mapping[str, str], token: str) -> bool:
    """Return True if the header `Prefer` contains the token."""
    preference = headers.get("prefer")
    return preference is not None and token in (item.strip().lower() for item in preference.split(","))


def was_cached(result: SchedulingResult, state: CycleState) -> bool:
    """Return True if the first pick probably has a prefix of the prompt cached."""
    picked = result.runs[result.primary].picked
    return picked is not None and bool(state.column(PREFIX_MATCH_BLOCKS, picked)[0] > 0)


def scores_of(result: SchedulingResult) -> dict[str, float] | None:
    """Return scores by address, or None if the profile handler replaced the destinations."""
    run = result.runs[result.primary]
    if run.scored is None or run.picked is None or run.picked.members[0].address != result.destinations[0]:
        return None
    return dict(zip([endpoint.address for endpoint in run.scored.endpoints.members], run.scored.scores.tolist(), strict=True))
