"""Plugin calls around scheduling; each raises `RequestRefused` to refuse."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import CoroutineType
from typing import Final

import numpy as np

from endpick.api.access import Access
from endpick.api.endpoints import BoolArray, Endpoints
from endpick.api.keys import AGENT_IDENTITY, PREFIX_MATCH_BLOCKS
from endpick.api.request import InferenceRequest, Rejection
from endpick.api.request_control import DataProducer
from endpick.api.scheduling import SchedulingResult
from endpick.api.state import CycleState, ScoringState
from endpick.host.boundary import Fault, Step, bind
from endpick.host.instance import Instance
from endpick.host.telemetry import Telemetry
from endpick.requests.intake import FAIRNESS_ID, HeadersForUpstream, first_of
from endpick.requests.model import MAX_NAME_CHARACTERS, SATURATED, RequestRefused, refused
from endpick.scheduling.profile import as_view

IF_AVAILABLE: Final = "if-available"


def refusal_in(step: Step, answer: object) -> RequestRefused | None:
    """The refusal in a plugin's answer or fault, if any."""
    if answer is None:
        return None
    if isinstance(answer, Rejection):
        return RequestRefused(refused(answer))
    fault = answer if isinstance(answer, Fault) else step.fault(f"answered {type(answer).__name__}, not a Rejection or None")
    return RequestRefused(refused(fault)) if fault.refuses else None


def process_headers(steps: Sequence[Step], request: InferenceRequest, state: CycleState, access: Access) -> InferenceRequest:
    """Run the processors; an identity they find becomes the fairness id, unless the client sent one."""
    for step in steps:
        refusal = refusal_in(step, step.run(access, request, state))
        if refusal is not None:
            raise refusal
    identity = state.get(AGENT_IDENTITY)
    if not identity or len(identity) > MAX_NAME_CHARACTERS:
        return request
    return request if first_of(request.headers, FAIRNESS_ID) is not None else replace(request, fairness_id=identity)


def shed(detector: Step | None, request: InferenceRequest, endpoints: Endpoints, access: Access) -> None:
    """Refuse negative priorities while the pool is saturated."""
    if request.priority >= 0 or detector is None:
        return
    saturation = detector.run(access, endpoints)
    if isinstance(saturation, float | int):
        if saturation >= 1.0:
            raise RequestRefused(SATURATED)
        return
    fault = saturation if isinstance(saturation, Fault) else detector.fault(f"answered {type(saturation).__name__}, not a number")
    if fault.refuses:
        raise RequestRefused(refused(fault))


def filter_candidates(steps: Sequence[Step], request: InferenceRequest, endpoints: Endpoints, access: Access) -> Endpoints:
    """The endpoints that all filters keep."""
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
    return endpoints if dropped is None else endpoints.where(~endpoints.gather(dropped))


@dataclass(frozen=True, slots=True)
class CompiledProducer:
    """A producer; `awaits` is True for an `async def`."""

    step: Step
    awaits: bool
    timeout_seconds: float


def compile_producer(instance: Instance, telemetry: Telemetry) -> CompiledProducer:
    """Bind the producer."""
    step = bind(instance, DataProducer, "produce", telemetry)
    plugin = instance.plugin
    assert isinstance(plugin, DataProducer)
    return CompiledProducer(step, inspect.iscoroutinefunction(plugin.produce), plugin.timeout_seconds)


def produce(
    producers: Sequence[CompiledProducer], request: InferenceRequest, endpoints: Endpoints, state: CycleState, access: Access
) -> None:
    """Run synchronous producers."""
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


def admit(steps: Sequence[Step], request: InferenceRequest, endpoints: Endpoints, state: ScoringState, access: Access) -> None:
    """Run the admitters."""
    for step in steps:
        refusal = refusal_in(step, step.run(access, request, endpoints, state))
        if refusal is not None:
            raise refusal


def prepare_request(
    steps: Sequence[Step],
    request: InferenceRequest,
    result: SchedulingResult,
    headers: HeadersForUpstream,
    state: CycleState,
    access: Access,
) -> RequestRefused | None:
    """Run all pre-request plugins; returns the first refusal."""
    refusal = None
    for step in steps:
        answer = step.run(access, request, result, headers, state)
        if answer is not None:
            refusal = refusal or refusal_in(step, answer)
    return refusal


def wants_cached_only(headers: Mapping[str, str]) -> bool:
    """True for `Prefer: if-available`."""
    preference = headers.get("prefer")
    return preference is not None and IF_AVAILABLE in (token.strip().lower() for token in preference.split(","))


def was_cached(result: SchedulingResult, state: CycleState) -> bool:
    """True when the first pick probably has the prompt's prefix."""
    picked = result.runs[result.primary].picked
    return picked is not None and bool(state.column(PREFIX_MATCH_BLOCKS, picked)[0] > 0)


def scores_of(result: SchedulingResult) -> dict[str, float] | None:
    """Scores of the candidates by address; None for replaced destinations."""
    run = result.runs[result.primary]
    if run.scored is None or run.picked is None or run.picked.members[0].address != result.destinations[0]:
        return None
    return dict(zip([each.address for each in run.scored.endpoints.members], run.scored.scores.tolist(), strict=True))
