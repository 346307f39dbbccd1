"""Flow control in front of the director: requests wait here until the pool has capacity for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING

from endpick.api.access import Access
from endpick.api.endpoint import Endpoint
from endpick.api.request import InferenceRequest
from endpick.api.state import CycleState
from endpick.host.boundary import Step
from endpick.requests.intake import BuiltRequest
from endpick.requests.memory import Memory
from endpick.requests.model import Refused, RequestRefused
from endpick.scheduling.trace import WAITED, Waited

if TYPE_CHECKING:
    from endpick.flow_control.policies import BoundFlowControl
    from endpick.flow_control.queues import Entry
    from endpick.flow_control.reclaim import Flight
    from endpick.flow_control.report import Report
    from endpick.flow_control.saturation import Pool
    from endpick.flow_control.states import EntryEvent
    from endpick.requests.turns import Turns


class _Waiting:
    """A request in a queue; awaiting it ends when the request is dispatched."""

    def __init__(self, gate: FlowGate, state: CycleState, saturation: float) -> None:
        self._gate = gate
        self._state = state
        self._saturation = saturation
        self.future: asyncio.Future[Refused | None] = asyncio.get_running_loop().create_future()
        self.entry: Entry | None = None

    def __await__(self) -> Generator[object, None, None]:
        try:
            refusal = yield from self.future
        except asyncio.CancelledError:
            if self.entry is not None:
                self._gate.turns.controller.leave(self.entry)
            raise
        if refusal is not None:
            raise RequestRefused(refusal)

    def __call__(self, entry: Entry, event: EntryEvent) -> None:
        self.entry = None
        if not self.future.done():
            self._state.put(WAITED, Waited(self._gate.turns.controller.now() - entry.enqueued_at, self._saturation))
            self.future.set_result(self._gate.turns.refusal_for(event))


class FlowGate:
    """Queues of one process."""

    def __init__(self, pool: Pool, access: Access, clock: Callable[[], float], memory: Memory, report: Callable[[], Report]) -> None:
        self.access = access
        self._pool = pool
        self._clock = clock
        self._memory = memory
        self._new_report = report
        self._turns: Turns | None = None

    @property
    def turns(self) -> Turns:
        """The queues' timers."""
        assert self._turns is not None
        return self._turns

    def enter(self, built: BuiltRequest, state: CycleState) -> Awaitable[None] | None:
        """None for a request that may pass at once, else what to await until it is dispatched."""
        turns, request = self.turns, built.request
        controller = turns.controller
        if controller.may_pass(request, request.size_bytes):
            return None
        waiting = _Waiting(self, state, controller.read_saturation().effective)
        entry, event = controller.offer(request, request.size_bytes, waiting)
        refusal = turns.refusal_for(event)
        if refusal is not None:
            raise RequestRefused(refusal)
        waiting.entry = entry
        turns.soon()
        return waiting

    def reconfigure(self, bound: BoundFlowControl | None, detector: Step | None) -> None:
        """Apply other rules to what waits and to what comes."""
        turns = self._turns
        if bound is None or detector is None:
            if turns is not None:
                turns.let_all_go()
            return
        from endpick.flow_control.controller import FlowController  # noqa: PLC0415
        from endpick.flow_control.limits import rules_of  # noqa: PLC0415
        from endpick.requests.turns import Turns  # noqa: PLC0415

        rules = rules_of(bound, detector, self.access)
        if turns is None:
            controller = FlowController(rules, self._pool, self.access, self._clock, self._new_report())
            self._turns = Turns(controller, self._memory)
        else:
            turns.reconfigure(rules)

    def something_changed(self, _change: object = None) -> None:
        """There may be capacity: a request ended, an endpoint joined or reported."""
        turns = self._turns
        if turns is not None and turns.controller.bands.requests:
            turns.soon()

    def track(self, request: InferenceRequest, endpoint: Endpoint) -> Flight | None:
        """Note that a request is sent to a model server."""
        reclaimer = None if self._turns is None else self._turns.controller.reclaimer
        return None if reclaimer is None else reclaimer.track(request, endpoint)

    async def shut_down(self) -> int:
        """Refuse all that wait."""
        if self._turns is None:
            return 0
        self._turns.controller.shut_down()
        told = 0
        while some := self._turns.tell_of_the_end():
            told += some
            await asyncio.sleep(0)
        return told
