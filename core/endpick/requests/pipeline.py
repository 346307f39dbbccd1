"""The pipeline of a plan: what the director calls for a request, bound once, and which of it misses bodies that are not sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from endpick.api.request_control import (
    Admitter,
    CandidateFilter,
    DataProducer,
    PreRequest,
    RequestHeaderProcessor,
    ResponseObserver,
    SaturationDetector,
)
from endpick.host.boundary import Step, bind
from endpick.host.instance import Instance
from endpick.host.kinds import Kind
from endpick.host.telemetry import Telemetry
from endpick.requests.model import BodyModes
from endpick.requests.parsers import Parsers, compile_parsers
from endpick.requests.response import Observers, compile_observers
from endpick.requests.steps import CompiledProducer, compile_producer
from endpick.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from endpick.flow_control.policies import BoundFlowControl


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What the director calls; compiled once per plan. A reload makes a second one and swaps."""

    parsers: Parsers
    detector: Step | None
    producers_at_once: tuple[CompiledProducer, ...]
    producers_later: tuple[CompiledProducer, ...]
    """From the first one on that has to wait."""
    scheduler: Scheduler
    observers: Observers
    header_processors: tuple[Step, ...]
    candidate_filters: tuple[Step, ...]
    admitters: tuple[Step, ...]
    pre_requests: tuple[Step, ...]
    objectives: Mapping[str, int] = field(default_factory=dict)
    """Priority of each inference objective, by name."""
    flow_control: BoundFlowControl | None = None
    """The policies by which requests wait; None while they do not."""

    @property
    def producers(self) -> tuple[CompiledProducer, ...]:
        """All of them, in the order in which they are called."""
        return self.producers_at_once + self.producers_later


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
    """Bind the instances, each group in the order in which it is to be called; a kind that `on_request` leaves out has no instances.

    Raises:
        TypeError: an instance is not of the kind its place needs: a mistake in the plan.
    """

    def bound(kind: Kind, method: str) -> tuple[Step, ...]:
        return tuple([bind(instance, kind, method, telemetry) for instance in on_request.get(kind, ())])

    producers = tuple([compile_producer(each, telemetry) for each in on_request.get(DataProducer, ())])
    first_to_wait = next((position for position, producer in enumerate(producers) if producer.awaits), len(producers))
    return Pipeline(
        compile_parsers(parsers, telemetry),
        None if detector is None else bind(detector, SaturationDetector, "saturation", telemetry),
        producers[:first_to_wait],
        producers[first_to_wait:],
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
    """A sentence for each thing that an instance does not see; none when the gateway sends both bodies."""
    lost: list[str] = []
    if not modes.sees_request_body:
        lost += [f"{parser.parse.instance.name} reads no model, prompt or limits" for parser in pipeline.parsers.each]
        lost += [f"{producer.step.instance.name} sees an empty prompt" for producer in pipeline.producers]
    if not modes.sees_response_body:
        lost += [f"{parser.parse.instance.name} reads no usage" for parser in pipeline.parsers.each if parser.usage is not None]
        observers = pipeline.observers
        lost += [f"{step.instance.name} does not learn when a response begins" for step in observers.first_chunk]
        # Whether the gateway sends trailers is in no message of the protocol until they come.
        lost += [
            f"{step.instance.name} takes responses for over at their headers unless the gateway has response_trailer_mode: SEND"
            for step in observers.ended
        ]
    return tuple(lost)
