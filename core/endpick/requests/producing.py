"""Data producers that wait, for a tokenizer or a cache of theirs, and the decision that follows then.

Coroutines, which the compiled build leaves to Python: that is why they do not stand in `steps`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from time import perf_counter

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints
from endpick.api.request import InferenceRequest
from endpick.api.state import CycleState
from endpick.plugins.failures import AWAIT_FAILURES, FaultOfAnother, is_the_hosts
from endpick.requests.memory import MemoryAccount
from endpick.requests.model import Decision
from endpick.requests.steps import CompiledProducer, produce
from endpick.scheduling.step import Fault, settle


async def after(produce: Callable[[], Coroutine[None, None, Fault | None]], conclude: Callable[[Fault | None], Decision]) -> Decision:
    """What `conclude` makes of the outcome, once there is one; as `decided_after`."""
    return conclude(await produce())


@dataclass(slots=True)
class Production:
    """What one request asks of the producers."""

    request: InferenceRequest
    endpoints: Endpoints
    state: CycleState
    access: Access


async def produce_waiting(
    producers: Sequence[CompiledProducer], production: Production, account: MemoryAccount, parsed_bytes: int
) -> Fault | None:
    """Run the producers, of which the first has to wait; None, or a fault of an instance whose `onFault` refuses.

    What the body became is in the account meanwhile: any number of requests may wait.
    """
    account.hold_parsed(parsed_bytes)
    try:
        for producer in producers:
            if producer.awaits:
                fault = await _produce_later(producer, production)
            else:
                production.access.called.append((None, perf_counter()))
                fault = produce((producer,), production.request, production.endpoints, production.state, production.access)
                settle(production.access)
            if fault is not None and fault.refuses:
                return fault
        return None
    finally:
        account.hold_parsed(-parsed_bytes)


async def _produce_later(producer: CompiledProducer, production: Production) -> Fault | None:
    """Await one producer, under an `Access` of its own: other requests run plugins in the meantime."""
    step = producer.step
    if step.breaker.state and not step.admitted():
        return step.left_out()
    own = Access(step.instance.scope, production.access.on_violation)
    started = perf_counter()
    limit = asyncio.timeout(producer.timeout_seconds)
    try:
        async with limit:
            pending = step.call(production.request, production.endpoints._accessed_by(own), production.state._accessed_by(own))
            assert isinstance(pending, Awaitable)
            await pending
    except FaultOfAnother as other:
        return other.fault if isinstance(other.fault, Fault) else step.fault(other)
    except AWAIT_FAILURES as problem:
        if is_the_hosts(problem):
            raise
        return step.fault(f"took longer than {producer.timeout_seconds} s" if limit.expired() else problem)
    finally:
        step.timer.observe(perf_counter() - started)
    return None
