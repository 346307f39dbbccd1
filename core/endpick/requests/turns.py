"""Whose turn it is, and when: runs flow control on the event loop, while something waits."""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter

from endpick.flow_control.controller import FlowController
from endpick.flow_control.limits import SWEEP_SECONDS, Rules
from endpick.flow_control.states import EntryEvent
from endpick.requests.memory import Memory, OverloadStage
from endpick.requests.model import CODE_OF, Refused

_log = logging.getLogger("endpick.flow_control")

PACE_SECONDS = 0.001
"""Between two requests that go although what the detector sees has not changed in between; as in llm-d."""
TICK_SECONDS = 0.005
"""How often the pool is looked at while it has no room; ends of requests, and endpoints that join, are acted on at once."""
TURN_SECONDS = 0.002
"""For so long requests may go in one turn of the event loop."""
SHED_AT_ONCE = 32
EXPIRED_AT_ONCE = 32
"""So many clients are told in one turn that they waited too long, or that there is no room or no process for them any more; the others
in the next ones, so that the event loop is not held up."""

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


class Turns:
    """Timers of one `FlowController`: none while nothing waits."""

    def __init__(self, controller: FlowController, account: Memory) -> None:
        """Must be used on one event loop."""
        self.controller = controller
        self._account = account
        self._handle: asyncio.Handle | None = None
        self._is_soon = False
        self._swept_at = controller.now()
        self._trims = False
        """Whether new rules may have no room for all that wait."""
        self._lets_all_go = False
        """Whether the configuration has no flow control any more."""

    def reconfigure(self, rules: Rules) -> None:
        """Go on with other rules; those for which they have no room are told, some in each turn."""
        self.controller.reconfigure(rules)
        self._lets_all_go, self._trims = False, True
        self.soon()

    def let_all_go(self) -> None:
        """There is no flow control any more: let all go that wait, some in each turn, as each of them is a decision."""
        self._lets_all_go = True
        self.soon()

    def tell_of_the_end(self) -> int:
        """Tell some of those that wait that the process ends; how many were told."""
        return self.controller.end_some(EXPIRED_AT_ONCE, EntryEvent.SHUT_DOWN)

    def refusal_for(self, event: EntryEvent) -> Refused | None:
        """What the client of a request is told that this happened to; None where it goes on, or waits."""
        return _TOLD.get((event, self.controller.regime.is_empty))

    def soon(self) -> None:
        """Look at the queues in the next turn of the event loop: something came, went or changed."""
        if self._is_soon:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._is_soon = True
        self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Let go what may go, and end the waiting of what waited too long; come again while something waits."""
        self._handle = None
        self._is_soon = False
        controller = self.controller
        delay = TICK_SECONDS
        try:
            if self._account.stage >= OverloadStage.SHEDDING:
                self._shed()
            if self._trims:
                self._trims = controller.trim(EXPIRED_AT_ONCE) == EXPIRED_AT_ONCE
            delay = self._let_some_of_all_go() if self._lets_all_go else self._let_go()
            now = controller.now()
            if now - self._swept_at >= SWEEP_SECONDS:
                if self._sweep():
                    self._swept_at = now
                else:
                    delay = 0.0
            if self._trims:
                delay = 0.0
        except Exception:  # a fault of endpick's own must not keep the others waiting for ever
            _log.exception("flow control failed in one turn, and goes on")
        if controller.waiting and not self._is_soon:
            self._handle = asyncio.get_running_loop().call_later(delay, self._turn)

    def _let_go(self) -> float:
        """Seconds until the next turn.

        Where the detector sees each request that went, as one that counts them does, the next may go at once. Where it waits for model
        servers to report, it cannot know how many are too many: then one goes in each turn.
        """
        controller, saturation = self.controller, self.controller.saturation
        began = perf_counter()
        while controller.attempt():
            if not controller.waiting:
                return TICK_SECONDS
            if not saturation.has_changed():
                return PACE_SECONDS
            if perf_counter() - began > TURN_SECONDS:
                return 0.0
        return TICK_SECONDS

    def _let_some_of_all_go(self) -> float:
        """Seconds until the next turn."""
        began = perf_counter()
        while self.controller.end_some(1, EntryEvent.CHOSEN) and perf_counter() - began < TURN_SECONDS:
            pass
        return 0.0

    def _sweep(self) -> bool:
        """Tell some that waited too long; False if there may be more of them."""
        return self.controller.sweep(EXPIRED_AT_ONCE) < EXPIRED_AT_ONCE or not self.controller.waiting

    def _shed(self) -> None:
        below = 0 if self._account.stage < OverloadStage.REFUSING else None
        told = self.controller.shed(SHED_AT_ONCE, below)
        self._account.shed += told
