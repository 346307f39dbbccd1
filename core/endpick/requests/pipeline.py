"""The compiled pipeline of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from endpick.api.endpoints import Endpoints
from endpick.api.request_control import (
    Admitter,
    CandidateFilter,
    DataProducer,
    PreRequest,
    RequestHeaderProcessor,
    ResponseObserver,
    SaturationDetector,
)
from endpick.api.state import CycleState
from endpick.host.boundary import Step, bind
from endpick.host.instance import Instance
from endpick.host.kinds import Kind
from endpick.host.telemetry import Telemetry
from endpick.requests.intake import BuiltRequest
from endpick.requests.model import BodyModes, IncomingRequest
from endpick.requests.parsers import Parsers, compile_parsers
from endpick.requests.response import Observers, compile_observers
from endpick.requests.steps import CompiledProducer, compile_producer
from endpick.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from endpick.flow_control.policies import BoundFlowControl


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The plugins of a plan; `producers_later` begin with the first asynchronous one."""

    parsers: Parsers
    detector: Step | None
    producers_at_once: tuple[CompiledProducer, ...]
    producers_later: tuple[CompiledProducer, ...]
    scheduler: Scheduler
    observers: Observers
    header_processors: tuple[Step, ...]
    candidate_filters: tuple[Step, ...]
    admitters: tuple[Step, ...]
    pre_requests: tuple[Step, ...]
    objectives: Mapping[str, int] = field(default_factory=dict)
    flow_control: BoundFlowControl | None = None

    @property
    def producers(self) -> tuple[CompiledProducer, ...]:
        """All producers."""
        return self.producers_at_once + self.producers_later


class Job:
    """One request on its way through a pipeline."""

    __slots__ = ("built", "endpoints", "incoming", "pipeline", "state")

    def __init__(self, incoming: IncomingRequest, pipeline: Pipeline, built: BuiltRequest, endpoints: Endpoints, state: CycleState) -> None:
        self.incoming = incoming
        self.pipeline = pipeline
        self.built = built
        self.endpoints = endpoints
        self.state = state


def compile_pipeline(
    *,
    scheduler: Scheduler,
    parsers: Sequence[Instance],
    detector: Instance | None = None,
    on_request: Mapping[Kind, Sequence[Instance]],
    objectives: Mapping[str, int] | None = None,
    flow_control: BoundFlowControl | None = None,
    telemetry: Telemetry,
) -> Pipeline:
    """Bind the instances. Raises TypeError for a wrong kind."""

    def bound(kind: Kind, method: str) -> tuple[Step, ...]:
        return tuple([bind(instance, kind, method, telemetry) for instance in on_request.get(kind, ())])

    producers = tuple([compile_producer(each, telemetry) for each in on_request.get(DataProducer, ())])
    first_async = next((position for position, producer in enumerate(producers) if producer.awaits), len(producers))
    return Pipeline(
        compile_parsers(parsers, telemetry),
        None if detector is None else bind(detector, SaturationDetector, "saturation", telemetry),
        producers[:first_async],
        producers[first_async:],
        scheduler,
        compile_observers(on_request.get(ResponseObserver, ()), telemetry),
        bound(RequestHeaderProcessor, "request_headers"),
        bound(CandidateFilter, "filter_candidates"),
        bound(Admitter, "admit"),
        bound(PreRequest, "before_request"),
        objectives or {},
        flow_control,
    )


def hidden_by_body_modes(pipeline: Pipeline, modes: BodyModes) -> tuple[str, ...]:
    """Consequences of bodies that the gateway keeps."""
    lost: list[str] = []
    if not modes.sees_request_body:
        lost += [f"{parser.parse.instance.name} reads no model, prompt or limits" for parser in pipeline.parsers.each]
        lost += [f"{producer.step.instance.name} sees an empty prompt" for producer in pipeline.producers]
    if not modes.sees_response_body:
        lost += [f"{parser.parse.instance.name} reads no usage" for parser in pipeline.parsers.each if parser.usage is not None]
        observers = pipeline.observers
        lost += [f"{step.instance.name} does not learn when a response begins" for step in observers.first_chunk]
        # Only trailers, if the gateway sends them, then mark the end of a response.
        lost += [
            f"{step.instance.name} takes responses for over at their headers unless the gateway has response_trailer_mode: SEND"
            for step in observers.ended
        ]
    return tuple(lost)
