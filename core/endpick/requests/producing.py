"""Data producers: each leaves its data in the cycle state, in subscription order; most at once, some after waiting."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeAlias

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints
from endpick.api.request import InferenceRequest
from endpick.api.requests import DataProducer
from endpick.api.state import CycleState
from endpick.observability.instruments import Instruments
from endpick.plugins.instance import Instance
from endpick.requests.decision import Decision
from endpick.scheduling.step import ExtensionPoint, Fault, Step, bind, wrong_kind

ProduceStep: TypeAlias = Step[[InferenceRequest, Endpoints, CycleState], object]


@dataclass(frozen=True, slots=True)
class CompiledProducer:
    """A producer and how long it may be awaited."""

    step: ProduceStep
    awaits: bool
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Production:
    """What one request asks of the producers."""

    request: InferenceRequest
    endpoints: Endpoints
    state: CycleState
    access: Access


def compile_producer(instance: Instance, instruments: Instruments) -> CompiledProducer:
    """Bind the instance's `produce`. Raises TypeError when it has none: a mistake in the plan."""
    plugin = instance.plugin
    if not isinstance(plugin, DataProducer):
        raise wrong_kind(instance, "data producer")
    step: ProduceStep = bind(plugin.produce, instance, ExtensionPoint.DATA_PRODUCER, instruments)
    return CompiledProducer(step, inspect.iscoroutinefunction(plugin.produce), plugin.timeout_seconds)


def produce(producers: Sequence[CompiledProducer], production: Production) -> Fault | Coroutine[None, None, Fault | None] | None:
    """Run the producers.

    Returns:
        None when all is done; a fault of an instance whose `onFault` refuses; or, once a producer has to wait, the rest of the work.
    """
    for position, producer in enumerate(producers):
        if producer.awaits:
            return _produce_waiting(producers[position:], production)
        fault = _produce_now(producer, production)
        if fault is not None and fault.refuses:
            return fault
    return None


async def after(producing: Coroutine[None, None, Fault | None], conclude: Callable[[Fault | None], Decision]) -> Decision:
    """What `conclude` makes of the outcome, once there is one."""
    return conclude(await producing)


async def _produce_waiting(producers: Sequence[CompiledProducer], production: Production) -> Fault | None:
    for producer in producers:
        fault = await _produce_later(producer, production) if producer.awaits else _produce_now(producer, production)
        if fault is not None and fault.refuses:
            return fault
    return None


def _produce_now(producer: CompiledProducer, production: Production) -> Fault | None:
    answer = producer.step.run(production.access, production.request, production.endpoints, production.state)
    if answer is None or isinstance(answer, Fault):
        return answer
    if inspect.iscoroutine(answer):
        answer.close()
    return producer.step.fault("returned something to await although `produce` is not an `async def`")


async def _produce_later(producer: CompiledProducer, production: Production) -> Fault | None:
    """Await one producer, under an `Access` of its own: other requests run plugins in the meantime."""
    step = producer.step
    own = Access(step.scope, production.access.on_violation)
    started = perf_counter()
    limit = asyncio.timeout(producer.timeout_seconds)
    try:
        async with limit:
            pending = step.call(production.request, production.endpoints.accessed_by(own), production.state.accessed_by(own))
            assert isinstance(pending, Awaitable)
            await pending
    except (Exception, SystemExit) as problem:
        return step.fault(f"took longer than {producer.timeout_seconds} s" if limit.expired() else problem)
    finally:
        step.record(perf_counter() - started)
    return None
