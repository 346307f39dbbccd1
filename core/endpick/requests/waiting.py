"""Requests that wait for their turn: the decision that comes later, and what the client is told if none comes.

A request that waits costs an entry in the queues of flow control and the object here; no task, no coroutine, no timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Protocol

from endpick.api.endpoints import Access, Endpoint
from endpick.api.request import InferenceRequest
from endpick.api.state import CycleState
from endpick.flow_control.controller import FlowController
from endpick.flow_control.limits import rules_of
from endpick.flow_control.policies import BoundFlowControl
from endpick.flow_control.queues import Entry
from endpick.flow_control.reclaim import Flight
from endpick.flow_control.report import Report
from endpick.flow_control.saturation import Pool
from endpick.flow_control.states import EntryEvent
from endpick.plugins.failures import CALL_FAILURES
from endpick.requests.intake import BuiltRequest
from endpick.requests.memory import MemoryAccount
from endpick.requests.model import CODE_OF, CloseCause, Decision, IncomingRequest, Refused, Routed
from endpick.requests.turns import Turns
from endpick.scheduling.step import Step
from endpick.scheduling.trace import Waited

_NO_ENDPOINTS = "rejected-no-endpoints"
_TOLD: dict[tuple[EntryEvent, bool], Refused] = {
    (EntryEvent.NO_ROOM, False): Refused(429, CODE_OF[429], "too many requests wait already", "rejected-saturated"),
    (EntryEvent.NO_ROOM, True): Refused(503, CODE_OF[503], "too many requests wait already, and the pool has no endpoints", _NO_ENDPOINTS),
    (EntryEvent.EXPIRED, False): Refused(429, CODE_OF[429], "request timed out in queue", "rejected-ttl-expired"),
    (EntryEvent.EXPIRED, True): Refused(503, CODE_OF[503], "request timed out in queue while the pool had no endpoints", _NO_ENDPOINTS),
    **dict.fromkeys(
        ((EntryEvent.SHUT_DOWN, False), (EntryEvent.SHUT_DOWN, True)),
        Refused(503, CODE_OF[503], "endpick is shutting down", "rejected-shutting-down"),
    ),
    **dict.fromkeys(
        ((EntryEvent.SHED, False), (EntryEvent.SHED, True)),
        Refused(429, CODE_OF[429], "endpick is short of memory, waiting request dropped", "rejected-overloaded"),
    ),
}
"""Statuses and reasons are llm-d's; the flag says whether the pool is empty."""


@dataclass(slots=True)
class LetGo:
    """A request whose turn it is, with what is known of it from before it waited.

    Attributes:
        built: As it was read when it came.
        state: What request-header processors left.
        waited: For how long, and why.
    """

    built: BuiltRequest
    state: CycleState | None
    waited: Waited


class GoesOn(Protocol):
    """The director, as those who wait know it."""

    def decide(self, incoming: IncomingRequest, begun: LetGo | None = None) -> Decision | Awaitable[Decision]:
        """Route or refuse a request."""

    def refuse(self, built: BuiltRequest, refusal: Refused) -> Refused:
        """Count a request that was read, and that is refused."""


class LaterDecision:
    """The decision about a request that waits. Transports either `deliver` it, without a task, or await it, once."""

    __slots__ = (
        "_account",
        "_deliver",
        "_error",
        "_future",
        "_incoming",
        "_inner",
        "_let_go",
        "_parsed_bytes",
        "_result",
        "_room",
        "entry",
    )

    def __init__(self, room: WaitingRoom, incoming: IncomingRequest, let_go: LetGo, account: MemoryAccount) -> None:
        self._room = room
        self._incoming = incoming
        self._let_go = let_go
        self._account = account
        payload = let_go.built.request.payload
        self._parsed_bytes = 0 if payload is None else let_go.built.parsed_bytes
        account.hold_parsed(self._parsed_bytes)
        self.entry: Entry | None = None
        self._deliver: Callable[[object, BaseException | None], None] | None = None
        self._future: asyncio.Future[None] | None = None
        self._inner: asyncio.Task[None] | None = None
        self._result: Decision | None = None
        self._error: BaseException | None = None

    def __await__(self) -> Generator[object, None, Decision]:
        if self._result is None and self._error is None:
            self._future = asyncio.get_running_loop().create_future()
            try:
                yield from self._future
            except asyncio.CancelledError:
                self.cancel()
                raise
        result, self._result = self._result, None
        if self._error is not None:
            raise self._error
        assert result is not None
        return result

    def deliver(self, to: Callable[[object, BaseException | None], None]) -> None:
        """Have the decision, or the exception that came instead, given to `to` as soon as there is one."""
        self._deliver = to

    def cancel(self) -> bool:
        """The client is gone: nothing waits any more, and what was decided meanwhile is over."""
        entry, self.entry = self.entry, None
        self._deliver = None
        if entry is not None:
            self._room.controller.leave(entry)
        self._release()
        if self._inner is not None:
            self._inner.cancel()
        result, self._result = self._result, None
        if isinstance(result, Routed):
            result.exchange.finish(CloseCause.RESET)
        return True

    def told(self, entry: Entry, event: EntryEvent) -> None:
        """The waiting has ended: see `FlowController.offer`."""
        self.entry = None
        self._release()
        room, let_go = self._room, self._let_go
        director = room.director
        if event is not EntryEvent.CHOSEN:
            self._settle(director.refuse(let_go.built, refusal_for(event, room.controller.regime.is_empty)))
            return
        let_go.waited = Waited(room.controller.now() - entry.enqueued_at, let_go.waited.saturation)
        try:
            decision = director.decide(self._incoming, let_go)
        except CALL_FAILURES as error:
            self._settle(None, error)
            return
        if isinstance(decision, Routed | Refused):
            self._settle(decision)
        else:
            self._inner = asyncio.get_running_loop().create_task(self._later(decision))

    async def _later(self, decision: Awaitable[Decision]) -> None:
        """Wait for a producer that has to wait, now that it is the request's turn."""
        try:
            result = await decision
        except asyncio.CancelledError as error:
            self._settle(None, error)
            raise
        except GeneratorExit:
            raise
        except BaseException as error:
            self._settle(None, error)
        else:
            self._settle(result)

    def _settle(self, result: Decision | None, error: BaseException | None = None) -> None:
        self._inner = None
        deliver, self._deliver = self._deliver, None
        if deliver is not None:
            deliver(result, error)
            return
        self._result, self._error = result, error
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def _release(self) -> None:
        self._account.hold_parsed(-self._parsed_bytes)
        self._parsed_bytes = 0


async def at_once(result: object) -> object:
    """For a transport that awaits what is known already."""
    return result


def refusal_for(event: EntryEvent, pool_is_empty: bool) -> Refused:
    """What the client of a request is told that did not go."""
    return _TOLD[event, pool_is_empty]


class WaitingRoom:
    """Where the director sends requests before it looks for endpoints; one for a process."""

    director: GoesOn
    """Set by the director itself."""

    def __init__(
        self, pool: Pool, access: Access, clock: Callable[[], float], account: MemoryAccount, report: Callable[[], Report]
    ) -> None:
        """Nothing waits, and no timer runs, until a request has to.

        Args:
            pool: Where the endpoints are.
            access: What reads of detector and policies are judged by.
            clock: Monotonic seconds.
            account: What waiting requests hold counts there; its stage says when to tell some of them.
            report: Makes what is told of what happens; called when flow control begins.
        """
        self._access = access
        self._pool = pool
        self._clock = clock
        self._account = account
        self._new_report = report
        self._turns: Turns | None = None

    @property
    def controller(self) -> FlowController:
        """The queues; there are none before a configuration with flow control."""
        assert self._turns is not None
        return self._turns.controller

    def hold(self, incoming: IncomingRequest, built: BuiltRequest, state: CycleState | None) -> LaterDecision | Refused | None:
        """None for a request that may go on at once; else its later decision, or the refusal where there is no room to wait."""
        turns = self._turns
        assert turns is not None
        request, controller = built.request, turns.controller
        if controller.may_pass(request, request.size_bytes):
            return None
        later = LaterDecision(self, incoming, LetGo(built, state, Waited(0.0, controller.read_saturation().effective)), self._account)
        entry, event = controller.offer(request, request.size_bytes, later.told)
        if event is not EntryEvent.QUEUED:
            later.cancel()
            return self.director.refuse(built, refusal_for(event, controller.regime.is_empty))
        later.entry = entry
        turns.soon()
        return later

    def reconfigure(self, bound: BoundFlowControl | None, detector: Step | None) -> None:
        """What holds from now on: what waits goes on to wait under these rules, or goes at once where there is no flow control any more."""
        turns = self._turns
        if bound is None or detector is None:
            if turns is not None:
                turns.controller.let_all_go()
            return
        rules = rules_of(bound, detector, self._access)
        if turns is None:
            self._turns = Turns(FlowController(rules, self._pool, self._access, self._clock, self._new_report()), self._account)
        else:
            turns.controller.reconfigure(rules)
            turns.soon()

    def something_changed(self, _change: object = None) -> None:
        """A request that was sent to a model server is over, an endpoint joined or reported: there may be room."""
        turns = self._turns
        if turns is not None and turns.controller.waiting:
            turns.soon()

    def track(self, request: InferenceRequest, endpoint: Endpoint) -> Flight | None:
        """A request goes to a model server: what it is known by there, if it may be taken back."""
        turns = self._turns
        reclaimer = None if turns is None else turns.controller.reclaimer
        return None if reclaimer is None else reclaimer.track(request, endpoint)

    def shut_down(self) -> int:
        """Tell all that wait, and from now on all that would have to; how many were told."""
        return 0 if self._turns is None else self._turns.controller.shut_down()
