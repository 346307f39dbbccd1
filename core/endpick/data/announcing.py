"""Tells instances what they have to hear of once: an endpoint that joined or left.

What is not told would be missing for good, so nothing is left out; but thousands of endpoints may leave at once, and a plugin may block at
each. So instances are told at once for as long as that is short, and the rest between the turns of everything else. One that is left out
because it blocks is told when it is called again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

from endpick.host.boundary import admitted
from endpick.host.instance import Instance
from endpick.host.telemetry import Telemetry

AT_ONCE_SECONDS = 0.02
"""For so long instances are told without a turn for others."""
LOOK_SECONDS = 1.0
"""How often those that are left out are looked at."""


class Announcements:
    """What instances are yet to be told, each in its order; on one event loop."""

    def __init__(self, telemetry: Telemetry) -> None:
        """`telemetry` hears of circuits that change."""
        self._telemetry = telemetry
        self._waiting: dict[int, tuple[Instance, deque[Callable[[], None]]]] = {}
        """By the id of the breaker, which an instance keeps over reloads."""
        self._spent_seconds = 0.0
        """Since the event loop turned."""
        self._timer: asyncio.Handle | None = None

    def tell(self, instance: Instance, call: Callable[[], None]) -> None:
        """Call an instance once, now or later.

        Args:
            instance: Who is told.
            call: Tells it; raises nothing, and reports to the circuit of the instance how long that took.
        """
        waiting = self._waiting.get(id(instance.breaker))
        if waiting is not None:
            waiting[1].append(call)
        elif self._spent_seconds < AT_ONCE_SECONDS and not instance.breaker.seconds_left:
            self._call(instance, call)
        else:
            self._waiting[id(instance.breaker)] = instance, deque((call,))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._turn)

    def keep(self, instances: dict[int, Instance]) -> None:
        """Tell no others from now on, given by the ids of their breakers."""
        for gone in self._waiting.keys() - instances.keys():
            del self._waiting[gone]

    def stop(self) -> None:
        """Tell nothing more."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn(self) -> None:
        self._timer = None
        self._spent_seconds = 0.0
        for key, (instance, calls) in tuple(self._waiting.items()):
            while calls and self._spent_seconds < AT_ONCE_SECONDS and not instance.breaker.seconds_left:
                self._call(instance, calls.popleft())
            if not calls:
                self._waiting.pop(key, None)
        if self._waiting:
            loop = asyncio.get_running_loop()
            are_left_out = all(instance.breaker.seconds_left for instance, _ in self._waiting.values())
            self._timer = loop.call_later(LOOK_SECONDS, self._turn) if are_left_out else loop.call_soon(self._turn)

    def _call(self, instance: Instance, call: Callable[[], None]) -> None:
        if instance.breaker.state:
            admitted(instance, self._telemetry)  # the time is over for which it is left out
        began = perf_counter()
        call()
        self._spent_seconds += perf_counter() - began
