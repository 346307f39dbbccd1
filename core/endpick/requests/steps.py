"""The steps around scheduling, each with the plugins it calls: from request headers to pre-request."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from time import perf_counter
from types import CoroutineType
from typing import Final, cast

import numpy as np

from endpick.api.access import Access
from endpick.api.data import DataKey
from endpick.api.endpoints import BoolArray, Endpoints
from endpick.api.keys import AGENT_IDENTITY, PREFIX_MATCH_BLOCKS
from endpick.api.request import InferenceRequest, Rejection
from endpick.api.request_control import DataProducer
from endpick.api.scheduling import SchedulingResult
from endpick.api.state import CycleState, ScoringState
from endpick.host.boundary import Fault, Step, bind
from endpick.host.failures import CALL_FAILURES, is_the_hosts, kind_of
from endpick.host.instance import Instance
from endpick.host.telemetry import Telemetry
from endpick.requests.intake import FAIRNESS_ID, first_of
from endpick.requests.model import SATURATED, Refused, plain_rejection, refused
from endpick.scheduling.profile import as_view

_WHAT_WAS_LEFT: Final = cast("DataKey[object]", AGENT_IDENTITY)
"""The identity as any object: the compiled build would refuse what is none before `_identity_fault` could blame who left it."""
IF_AVAILABLE = "if-available"
"""In the header `Prefer`: the client would rather have a 412 than wait for a prefill."""


def process_headers(
    steps: Sequence[Step], request: InferenceRequest, state: CycleState, access: Access, max_name_characters: int
) -> InferenceRequest | Refused:
    """The request as it goes on, or the first refusal, in configuration order.

    Where the client does not say whose traffic it is, the identity that one of the instances found does, unless it is longer than a name
    may be.
    """
    for step in steps:
        refusal = verdict(step, step.run(access, request, state))
        if refusal is None:
            refusal = _identity_fault(step, state)
        if refusal is not None:
            return refusal
    identity = state.get(AGENT_IDENTITY)
    if not identity or len(identity) > max_name_characters or first_of(request.headers, FAIRNESS_ID) is not None:
        return request
    return replace(request, fairness_id=identity)


def _identity_fault(step: Step, state: CycleState) -> Refused | None:
    """Take back an identity that is no text, or one of a class of its own; the refusal where the instance's `onFault` asks for one."""
    identity: object = state.get(_WHAT_WAS_LEFT)
    if identity is None or type(identity) is str:
        return None
    state.put(AGENT_IDENTITY, "")
    return verdict(step, step.fault(f"left {kind_of(identity)} for an identity, not a str"))


def filter_candidates(steps: Sequence[Step], request: InferenceRequest, endpoints: Endpoints, access: Access) -> Endpoints | Fault:
    """What all candidate filters keep, in the order of `endpoints`; each of them is asked about the same candidates."""
    dropped: BoolArray | None = None
    for step in steps:
        access.scope = step.scope
        kept: Endpoints | str | Fault
        try:
            answer = (step.ask if step.breaker.state else step.call)(request, endpoints)
            access.called.append((step, perf_counter()))
            if answer is endpoints:
                continue
            kept = as_view(endpoints, answer)
        except CALL_FAILURES as problem:
            kept = step.failed(problem, access)
        if isinstance(kept, str):
            kept = step.fault(kept)
        if isinstance(kept, Fault):
            if kept.refuses:
                return kept
        elif kept is not endpoints:
            others = np.ones(len(endpoints.pool_members), dtype=np.bool_)
            others[kept._row_numbers()] = False
            dropped = others if dropped is None else dropped | others
    return endpoints if dropped is None else endpoints.where(~endpoints.gather(dropped))


def shed(detector: Step | None, request: InferenceRequest, endpoints: Endpoints, access: Access) -> Refused | None:
    """Refuse a request of negative priority while the pool is full. Any other request passes without asking the detector."""
    if request.priority >= 0 or detector is None:
        return None
    saturation = detector.run(access, endpoints)
    try:
        if isinstance(saturation, Real):
            return SATURATED if float(saturation) >= 1.0 else None
        fault = saturation if isinstance(saturation, Fault) else detector.fault(f"answered {kind_of(saturation)}, not a number")
    except CALL_FAILURES as problem:
        fault = detector.fault(problem)
    return refused(fault) if fault.refuses else None


@dataclass(frozen=True, slots=True)
class CompiledProducer:
    """A producer and how long it may be awaited."""

    step: Step
    awaits: bool
    timeout_seconds: float
    endless: set[asyncio.Task[None]] = field(default_factory=set, compare=False)
    """Calls that did not heed their cancellation."""


def compile_producer(instance: Instance, telemetry: Telemetry) -> CompiledProducer:
    """Bind the instance's `produce`. Raises TypeError when it has none: a mistake in the plan."""
    step = bind(instance, DataProducer, "produce", telemetry)
    plugin = instance.plugin
    assert isinstance(plugin, DataProducer)
    return CompiledProducer(step, inspect.iscoroutinefunction(plugin.produce), plugin.timeout_seconds)


def produce(
    producers: Sequence[CompiledProducer], request: InferenceRequest, endpoints: Endpoints, state: CycleState, access: Access
) -> Fault | None:
    """Run producers that do not wait, in their order; the first fault of one whose `onFault` refuses."""
    for producer in producers:
        step = producer.step
        access.scope = step.scope
        answer: object
        try:
            answer = (step.ask if step.breaker.state else step.call)(request, endpoints, state)
            access.called.append((step, perf_counter()))
        except CALL_FAILURES as problem:
            answer = step.failed(problem, access)
        if answer is None:
            continue
        if type(answer) is not Fault:  # not `isinstance`, which asks the answer
            if type(answer) is CoroutineType:
                _close(answer)
            answer = step.fault("returned something to await although `produce` is not an `async def`")
        if answer.refuses:
            return answer
    return None


def _close(coroutine: CoroutineType[object, object, object]) -> None:
    """End what is not awaited. One that has begun may refuse to end, which its fault says already."""
    try:
        coroutine.close()
    except CALL_FAILURES as problem:
        if is_the_hosts(problem):
            raise


def admit(steps: Sequence[Step], request: InferenceRequest, endpoints: Endpoints, state: ScoringState, access: Access) -> Refused | None:
    """The first refusal, in configuration order; None when all admit."""
    for step in steps:
        answer = step.run(access, request, endpoints, state)
        refusal = None if answer is None else verdict(step, answer)
        if refusal is not None:
            return refusal
    return None


def verdict(step: Step, answer: object) -> Refused | None:
    """The refusal in what a plugin answered that may refuse, or in its failure; None to go on."""
    if answer is None:
        return None
    if type(answer) is not Fault:
        try:
            if isinstance(answer, Rejection):
                return refused(plain_rejection(answer))
            answer = step.fault(f"answered {kind_of(answer)}, not a Rejection or None")
        except CALL_FAILURES as problem:
            answer = step.fault(problem)
    return refused(answer) if answer.refuses else None


def wants_cached_only(headers: Mapping[str, str]) -> bool:
    """Whether the client would rather have a 412 than wait for a prefill."""
    preference = headers.get("prefer")
    return preference is not None and IF_AVAILABLE in (token.strip().lower() for token in preference.split(","))


def was_cached(result: SchedulingResult, state: CycleState) -> bool:
    """Whether the first endpoint picked probably holds the beginning of the prompt; False when no producer keeps track."""
    picked = result.runs[result.primary].picked
    return picked is not None and bool(state.column(PREFIX_MATCH_BLOCKS, picked)[0] > 0)


def scores_of(result: SchedulingResult) -> dict[str, float] | None:
    """What the candidates of the primary profile scored, by address; None where the handler decided for other addresses than it picked."""
    run = result.runs[result.primary]
    if run.scored is None or run.picked is None or run.picked.members[0].address != result.destinations[0]:
        return None
    return dict(zip([each.address for each in run.scored.endpoints.members], run.scored.scores.tolist(), strict=True))
