"""Requests that wait for their turn: the decision that comes later, and what the client is told if none comes.

A request that waits costs an entry in the queues of flow control and the object here; no task, no coroutine, no timer. Where many wait,
what their bodies were parsed into is given up, and a body is parsed again when its turn has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from endpick.api.access import Access
from endpick.api.endpoint import Endpoint
from endpick.api.request import InferenceRequest, Media, ParsedRequest, Piece, Prompt, Rejection
from endpick.api.state import CycleState
from endpick.host.apart import apart
from endpick.host.boundary import Fault, Step
from endpick.host.failures import CALL_FAILURES, kind_of
from endpick.requests.intake import BuiltRequest, plainly
from endpick.requests.memory import MemoryAccount
from endpick.requests.model import CloseCause, Decision, IncomingRequest, Refused, Routed, plain_rejection, refused
from endpick.requests.parsers import UNSEEN
from endpick.scheduling.trace import Waited

if TYPE_CHECKING:
    # Most processes have no flow control: what it is made of is imported with the first configuration that has it.
    from endpick.flow_control.controller import FlowController
    from endpick.flow_control.policies import BoundFlowControl
    from endpick.flow_control.queues import Entry
    from endpick.flow_control.reclaim import Flight
    from endpick.flow_control.report import Report
    from endpick.flow_control.saturation import Pool
    from endpick.flow_control.states import EntryEvent
    from endpick.requests.turns import Turns


KEPT_PARSED_BYTES: Final = 4 * 2**20
"""What bodies became that wait is kept up to so much, by the estimate of `parsed_size`: some two thousand bodies of 1 KB."""


class LetGo:
    """What is known of a request from before it waited, when its turn has come."""

    __slots__ = ("built", "state", "waited")

    def __init__(self, built: BuiltRequest, state: CycleState | None, saturation: float) -> None:
        self.built = built
        """As it was read when it came."""
        self.state = state
        """What request-header processors left."""
        self.waited = Waited(0.0, saturation)
        """For how long, and why."""


class GoesOn(Protocol):
    """The director, as those who wait know it."""

    def decide(self, incoming: IncomingRequest, begun: LetGo | None = None) -> Decision | Awaitable[Decision]:
        """Route or refuse a request."""

    def refuse(self, built: BuiltRequest, refusal: Refused) -> Refused:
        """Count a request that was read, and that is refused."""


def close_with(task: asyncio.Future[Any], waiting: Awaitable[object]) -> None:
    """Close a coroutine when the task ends that awaits it: one cancelled before its first step never does, and Python warns of that."""
    if asyncio.iscoroutine(waiting):
        task.add_done_callback(lambda _: waiting.close())


class LaterDecision(LetGo):
    """The decision about a request that waits. Transports either `deliver` it, without a task, or await it, once."""

    # One object for each request that waits, and no more than it needs: ten thousand may.
    __slots__ = ("_deliver", "_error", "_future", "_incoming", "_inner", "_parsed_bytes", "_result", "_room", "entry")

    def __init__(
        self, room: WaitingRoom, incoming: IncomingRequest, built: BuiltRequest, state: CycleState | None, saturation: float
    ) -> None:
        super().__init__(built, state, saturation)
        self._room = room
        self._incoming = incoming
        self._parsed_bytes = 0
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

    def begin(self, entry: Entry) -> None:
        """The request waits now: keep what its body became, or remember only the body."""
        self.entry = entry
        built, room = self.built, self._room
        if built.request.payload is None:
            return
        if room.parsed_bytes + built.parsed_bytes <= KEPT_PARSED_BYTES or built.parser is None:
            self._parsed_bytes = built.parsed_bytes
            room.hold_parsed(built.parsed_bytes)
        else:
            built.request = replace(built.request, payload=None, prompt=_PromptOfBody(self))
            object.__setattr__(entry, "request", built.request)  # a policy is shown the entry, and may not

    def read_again(self) -> ParsedRequest | Refused:
        """What the body says of which only the bytes were kept; nothing where a parser that may be skipped fails now."""
        incoming, parser = self._incoming, self.built.parser
        assert parser is not None
        step = parser.parse
        answer: object = step.run(self._room.access, self.built.request.path, MappingProxyType(incoming.headers), incoming.body)
        try:
            if isinstance(answer, ParsedRequest):
                parsed = plainly(answer)
                parsed.prompt._parser = step
                return parsed
            if isinstance(answer, Rejection):
                return refused(plain_rejection(answer))
            fault = answer if type(answer) is Fault else step.fault(f"answered {kind_of(answer)} in the end")
        except CALL_FAILURES as problem:  # what answers may answer for itself with code of the plugin
            fault = step.fault(problem)
        if fault.refuses:
            return refused(fault)
        self.built.unread = str(fault)
        return UNSEEN

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

    def __call__(self, entry: Entry, event: EntryEvent) -> None:
        """The waiting has ended: see `FlowController.offer`."""
        self.entry = None
        self._release()
        room = self._room
        director, turns = room.director, room.turns
        refusal = turns.refusal_for(event)
        if refusal is not None:
            self._settle(director.refuse(self.built, refusal))
            return
        self.waited = Waited(turns.controller.now() - entry.enqueued_at, self.waited.saturation)
        built = self.built
        if type(built.request.prompt) is _PromptOfBody:
            parsed = self.read_again()
            if isinstance(parsed, Refused):
                self._settle(director.refuse(built, parsed))
                return
            payload = parsed.payload
            shown = MappingProxyType(payload) if type(payload) is dict else payload
            built.request = replace(built.request, payload=shown, prompt=parsed.prompt)
        try:
            decision = director.decide(self._incoming, self)
        except CALL_FAILURES as error:
            self._settle(None, error)
            return
        if isinstance(decision, Routed | Refused):
            self._settle(decision)
        else:
            self._inner = asyncio.get_running_loop().create_task(self._later(decision))
            close_with(self._inner, decision)

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
        self._room.hold_parsed(-self._parsed_bytes)
        self._parsed_bytes = 0


class _PromptOfBody(Prompt):
    """The prompt of a request of which only the body is kept while it waits: for policies that look at it; parsed each time."""

    __slots__ = ("_later",)

    def __init__(self, later: LaterDecision) -> None:
        self._later = later

    @property
    def texts(self) -> tuple[bytes, ...]:
        parsed = self._later.read_again()
        return () if isinstance(parsed, Refused) else parsed.prompt.texts

    @property
    def pieces(self) -> tuple[tuple[Piece, ...], ...]:
        parsed = self._later.read_again()
        return () if isinstance(parsed, Refused) else parsed.prompt.pieces

    @property
    def media(self) -> tuple[Media, ...]:
        return tuple(piece for prompt in self.pieces for piece in prompt if isinstance(piece, Media))


async def at_once(result: object) -> object:
    """For a transport that awaits what is known already."""
    return result


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
        self.access = access
        self._pool = pool
        self._clock = clock
        self._account = account
        self.parsed_bytes = 0
        """What is kept of what bodies became that wait; an estimate."""
        self._new_report = report
        self._turns: Turns | None = None

    @property
    def turns(self) -> Turns:
        """Who goes when; there are no turns before a configuration with flow control."""
        assert self._turns is not None
        return self._turns

    @property
    def controller(self) -> FlowController:
        """The queues."""
        return self.turns.controller

    def hold(self, incoming: IncomingRequest, built: BuiltRequest, state: CycleState | None) -> LaterDecision | Refused | None:
        """None for a request that may go on at once; else its later decision, or the refusal where there is no room to wait."""
        turns = self._turns
        assert turns is not None
        request, controller = built.request, turns.controller
        if controller.may_pass(request, request.size_bytes):
            return None
        later = LaterDecision(self, incoming, built, state, controller.read_saturation().effective)
        entry, event = controller.offer(request, request.size_bytes, later)
        refusal = turns.refusal_for(event)
        if refusal is not None:
            later.cancel()
            return self.director.refuse(built, refusal)
        later.begin(entry)
        turns.soon()
        return later

    def hold_parsed(self, size: int) -> None:
        """Account for what a body became that waits, or with a negative size for the end of its wait."""
        self.parsed_bytes += size
        self._account.hold_parsed(size)

    def reconfigure(self, bound: BoundFlowControl | None, detector: Step | None) -> None:
        """What holds from now on: what waits goes on to wait under these rules, or goes at once where there is no flow control any more."""
        turns = self._turns
        if bound is None or detector is None:
            if turns is not None:
                turns.let_all_go()
            return
        from endpick.flow_control.controller import FlowController  # noqa: PLC0415 - only where requests may wait
        from endpick.flow_control.limits import rules_of  # noqa: PLC0415 - only where requests may wait
        from endpick.requests.turns import Turns  # noqa: PLC0415 - only where requests may wait

        rules = rules_of(bound, detector, self.access)
        if turns is None:
            controller = FlowController(rules, self._pool, self.access, self._clock, self._new_report())
            self._turns = Turns(controller, self._account)
        else:
            turns.reconfigure(rules)

    def something_changed(self, _change: object = None) -> None:
        """A request that was sent to a model server is over, an endpoint joined or reported: there may be room."""
        turns = self._turns
        if turns is not None and turns.controller.bands.requests:
            turns.soon()

    def track(self, request: InferenceRequest, endpoint: Endpoint) -> Flight | None:
        """A request goes to a model server: what it is known by there, if it may be taken back."""
        turns = self._turns
        reclaimer = None if turns is None else turns.controller.reclaimer
        return None if reclaimer is None else reclaimer.track(request, endpoint)

    async def shut_down(self) -> int:
        """Tell all that wait, some in each turn of the event loop, and from now on all that would have to; how many were told."""
        if self._turns is None:
            return 0
        self.controller.shut_down()
        told = 0
        while some := self._some_told_of_the_end(self._turns):
            told += some
            await asyncio.sleep(0)
        return told

    @staticmethod
    def _some_told_of_the_end(turns: Turns) -> int:
        with apart():  # policies are told what leaves their queues
            return turns.tell_of_the_end()
