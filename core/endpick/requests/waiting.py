"""Requests that wait: for flow control, or for asynchronous producers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from typing import Protocol

from endpick.api.access import Access
from endpick.api.endpoint import Endpoint
from endpick.api.request import InferenceRequest
from endpick.api.state import CycleState
from endpick.flow_control.controller import Flight, FlowController, Report
from endpick.flow_control.policies import BoundFlowControl, Pool
from endpick.flow_control.queues import Entry, WaitEnd
from endpick.host.boundary import Fault, Step
from endpick.requests.intake import BuiltRequest
from endpick.requests.memory import Memory, OverloadStage
from endpick.requests.model import CODE_OF, Decision, Refused, RequestRefused, refused
from endpick.requests.pipeline import CompiledProducer, Job, produce
from endpick.scheduling.trace import WAITED, Waited

PACE_SECONDS = 0.001  # pause until the detector sees a dispatched request; as in llm-d
TICK_SECONDS = 0.005  # between dispatch attempts, unless `something_changed`
EXPIRY_SECONDS = 1.0

_log = logging.getLogger("endpick.flow_control")

_REFUSALS = {
    WaitEnd.NO_ROOM: Refused(429, CODE_OF[429], "too many requests wait already", "rejected-saturated"),
    WaitEnd.EXPIRED: Refused(429, CODE_OF[429], "request timed out in queue", "rejected-ttl-expired"),
    WaitEnd.SHUT_DOWN: Refused(503, CODE_OF[503], "endpick is shutting down", "rejected-shutting-down"),
    WaitEnd.SHED: Refused(429, CODE_OF[429], "endpick is short of memory, waiting request dropped", "rejected-overloaded"),
}
_NO_ENDPOINTS = "rejected-no-endpoints"
_REFUSALS_WITHOUT_ENDPOINTS = _REFUSALS | {
    WaitEnd.NO_ROOM: Refused(503, CODE_OF[503], "too many requests wait already, and the pool has no endpoints", _NO_ENDPOINTS),
    WaitEnd.EXPIRED: Refused(503, CODE_OF[503], "request timed out in queue while the pool had no endpoints", _NO_ENDPOINTS),
}


class FlowGate:
    """Runs the queues of flow control on the event loop."""

    def __init__(self, pool: Pool, access: Access, clock: Callable[[], float], memory: Memory, report: Callable[[], Report]) -> None:
        """`report` is called to make the metrics when flow control is first enabled."""
        self._pool = pool
        self._access = access
        self._clock = clock
        self._memory = memory
        self._new_report = report
        self._controller: FlowController | None = None
        self._handle: asyncio.Handle | None = None
        self._runs_soon = False
        self._has_dispatched = False
        self._expired_at = clock()

    @property
    def controller(self) -> FlowController:
        """The queues; flow control must have been enabled."""
        assert self._controller is not None
        return self._controller

    @property
    def waiting(self) -> int:
        """The number of requests waiting in all queues."""
        return 0 if self._controller is None else self._controller.waiting

    def enter(self, built: BuiltRequest, state: CycleState) -> Awaitable[None] | None:
        """Return None to proceed, or an awaitable that ends at the dispatch. Both raise RequestRefused."""
        controller = self.controller
        if controller.may_pass(built.request):
            return None
        future: asyncio.Future[WaitEnd] = asyncio.get_running_loop().create_future()

        def ended(_entry: Entry, end: WaitEnd) -> None:
            if not future.done():
                future.set_result(end)

        offered = controller.offer(built.request, ended)
        if isinstance(offered, WaitEnd):
            raise _refused(controller, offered)
        self._run_soon()
        return _Wait(controller, offered, future, state, self._clock)

    def reconfigure(self, bound: BoundFlowControl | None, detector: Step[float] | None) -> None:
        """Use the rules of a reload, or dispatch every waiting request if they are None."""
        if bound is None or detector is None:
            if self._controller is not None:
                self._controller.end_all(WaitEnd.DISPATCHED)
        elif self._controller is None:
            self._controller = FlowController(bound, detector, self._pool, self._access, self._clock, self._new_report())
        else:
            self._controller.reconfigure(bound, detector)
            self.something_changed()

    def something_changed(self, _change: object = None) -> None:
        """Run the queues soon. Called when a request ends, or an endpoint joins or reports."""
        if self._controller is not None and self._controller.waiting:
            self._run_soon()

    def track(self, request: InferenceRequest, endpoint: Endpoint) -> Flight | None:
        """Track a request in flight so that it can be evicted; returns None if eviction is off."""
        reclaimer = None if self._controller is None else self._controller.reclaimer
        return None if reclaimer is None else reclaimer.track(request, endpoint)

    async def shut_down(self) -> int:
        """Refuse waiting and later requests; returns the number that waited."""
        return 0 if self._controller is None else self._controller.shut_down()

    def _run_soon(self) -> None:
        if self._runs_soon:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._runs_soon = True
        self._handle = asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        """Runs once per loop iteration, so the detector counts the request before the next dispatch."""
        self._runs_soon = False
        delay = TICK_SECONDS
        try:
            delay = self._dispatch(self.controller)
        except Exception:  # a bug of endpick must not stop the queues
            _log.exception("flow control failed, and goes on")
        if self.controller.waiting and not self._runs_soon:
            loop = asyncio.get_running_loop()
            self._handle = loop.call_later(delay, self._run) if delay else loop.call_soon(self._run)

    def _dispatch(self, controller: FlowController) -> float:
        if self._memory.stage >= OverloadStage.SHEDDING:
            self._memory.shed += controller.shed()
        now = self._clock()
        if now - self._expired_at >= EXPIRY_SECONDS:
            self._expired_at = now
            controller.expire()
        if self._has_dispatched and not controller.saturation.has_changed():
            self._has_dispatched = False
            return PACE_SECONDS
        self._has_dispatched = controller.dispatch()
        return 0.0 if self._has_dispatched else TICK_SECONDS


def _refused(controller: FlowController, end: WaitEnd) -> RequestRefused:
    return RequestRefused((_REFUSALS_WITHOUT_ENDPOINTS if controller.pool_is_empty() else _REFUSALS)[end])


class _Wait:
    __slots__ = ("_clock", "_controller", "_entry", "_future", "_saturation", "_state")

    def __init__(
        self,
        controller: FlowController,
        entry: Entry,
        future: asyncio.Future[WaitEnd],
        state: CycleState,
        clock: Callable[[], float],
    ) -> None:
        self._controller = controller
        self._entry = entry
        self._future = future
        self._state = state
        self._clock = clock
        self._saturation = controller.read_saturation().effective

    def __await__(self) -> Generator[object, None, None]:
        try:
            end = yield from self._future
        finally:
            self._controller.leave(self._entry)
        if end is not WaitEnd.DISPATCHED:
            raise _refused(self._controller, end)
        self._state.put(WAITED, Waited(self._clock() - self._entry.waiting.enqueued_at, self._saturation))

    def __del__(self) -> None:
        # A task may be cancelled before its first step.
        self._controller.leave(self._entry)


class _SynchronousSteps(Protocol):
    @property
    def access(self) -> Access: ...

    def prepare(self, job: Job) -> bool: ...

    def conclude(self, job: Job) -> Decision: ...

    def refuse(self, refusal: Refused, job: Job | None) -> Refused: ...


async def decide_later(director: _SynchronousSteps, job: Job, waiting: Awaitable[None] | None) -> Decision:
    """Finish a decision that waits for flow control or for producers. `waiting` is None without flow control."""
    try:
        if waiting is not None:
            await waiting
            if not director.prepare(job):
                return director.conclude(job)
        for producer in job.pipeline.producers_later:
            if producer.awaits:
                await _produce_later(producer, director.access, job)
            else:
                produce((producer,), job.built.request, job.endpoints, job.state, director.access)
        return director.conclude(job)
    except RequestRefused as refusal:
        return director.refuse(refusal.refused, job)


async def _produce_later(producer: CompiledProducer, host: Access, job: Job) -> None:
    """Uses a separate `Access`, because other requests run meanwhile."""
    access = Access(None, host.on_violation)
    endpoints, state = job.endpoints._accessed_by(access), job.state._accessed_by(access)
    answer = await producer.step.run_async(access, producer.timeout_seconds, job.built.request, endpoints, state)
    if isinstance(answer, Fault) and answer.refuses:
        raise RequestRefused(refused(answer))
