"""Data producers that wait, for a tokenizer or a cache of theirs, and the decision that follows then.

Coroutines, which the compiled build leaves to Python: that is why they do not stand in `steps`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from time import perf_counter

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints
from endpick.api.request import InferenceRequest
from endpick.api.state import CycleState
from endpick.host.apart import apart
from endpick.host.attempt import LateError, attempt
from endpick.host.boundary import Fault
from endpick.host.failures import CALL_FAILURES, FaultOfAnother, is_the_hosts
from endpick.host.stretches import Timed
from endpick.requests.memory import EXCHANGE_BYTES, MemoryAccount
from endpick.requests.model import Decision
from endpick.requests.steps import CompiledProducer, produce

MOST_ENDLESS = 32
"""Calls of one producer that have not ended since they were cancelled: each keeps its request in memory, and no more are begun."""


CANDIDATES_AT_ONCE = 8_000
"""Of all requests whose producers begin between two looks of the event loop at everything else: one may take a microsecond for each."""


class Beginnings:
    """The queue of requests whose producers are to begin: those of all that come at one moment would begin in one turn of the loop."""

    def __init__(self) -> None:
        self._begun = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def turn(self, candidates: int) -> None:
        """Go on when it is this request's turn, which is at once where few come, or where there are few to choose from."""
        loop = asyncio.get_running_loop()
        if not self._begun:
            loop.call_soon(self._count_anew)
        if self._begun < CANDIDATES_AT_ONCE and not self._waiting:
            self._begun += candidates
            return
        turn = loop.create_future()
        self._waiting.append((candidates, turn))
        await turn

    def _count_anew(self) -> None:
        self._begun = 0
        while self._waiting and self._begun < CANDIDATES_AT_ONCE:
            candidates, turn = self._waiting.popleft()
            if not turn.done():  # its client has left
                turn.set_result(None)
                self._begun += candidates
        if self._begun:
            asyncio.get_running_loop().call_soon(self._count_anew)


async def after(produce: Callable[[], Coroutine[None, None, Fault | None]], conclude: Callable[[Fault | None], Decision]) -> Decision:
    """What `conclude` makes of the outcome, once there is one; as `decided_after`."""
    outcome = await produce()
    with apart():
        return conclude(outcome)


@dataclass(slots=True)
class Production:
    """What one request asks of the producers."""

    request: InferenceRequest
    endpoints: Endpoints
    state: CycleState
    access: Access


async def produce_waiting(
    producers: Sequence[CompiledProducer], production: Production, beginnings: Beginnings, account: MemoryAccount, parsed_bytes: int
) -> Fault | None:
    """Run the producers, of which the first has to wait; None, or a fault of an instance whose `onFault` refuses.

    What the body became, and what other producers made of it, is in the account meanwhile: any number of requests may wait.
    """
    held = parsed_bytes + production.state._left_bytes[0] + EXCHANGE_BYTES
    account.hold_parsed(held)
    try:
        await beginnings.turn(production.endpoints._size)
        for producer in producers:
            if producer.awaits:
                fault = await _produce_later(producer, production)
            else:
                fault = produce((producer,), production.request, production.endpoints, production.state, production.access)
            if fault is not None and fault.refuses:
                return fault
        return None
    finally:
        account.hold_parsed(-held)


async def _produce_later(producer: CompiledProducer, production: Production) -> Fault | None:
    """Await one producer, under an `Access` of its own: other requests run plugins in the meantime."""
    step = producer.step
    if step.breaker.state and not step.admitted():
        return step.left_out()
    if len(producer.endless) >= MOST_ENDLESS:
        return step.fault(f"is not asked: {MOST_ENDLESS} calls of it have not ended since they were cancelled")
    own = Access(step.instance.scope, production.access.on_violation)
    endpoints, state = production.endpoints._accessed_by(own), production.state._accessed_by(own)

    def call() -> Awaitable[object]:
        pending = step.call(production.request, endpoints, state)
        assert isinstance(pending, Awaitable)
        return Timed(pending, step.breaker.budget_seconds, step.held)

    started = perf_counter()
    try:
        await attempt(call, producer.timeout_seconds)
    except FaultOfAnother as other:
        return other.fault if isinstance(other.fault, Fault) else step.fault(other)
    except LateError as late:
        if late.task is not None:
            producer.endless.add(late.task)
            late.task.add_done_callback(producer.endless.discard)
        return step.fault(f"took longer than {producer.timeout_seconds} s")
    except CALL_FAILURES as problem:
        if is_the_hosts(problem):
            raise
        return step.fault(problem)
    finally:
        step.timer.observe(perf_counter() - started)
    return None
