"""Runs an `Engine` on the clock of an event loop and hands every request the stream of its own events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from endpick.simulation.engine import Engine
from endpick.simulation.generation import EngineMetrics, Event, Finished, GenerationRequest


class LiveEngine:
    """Wakes when the engine says something is due, and sleeps otherwise; all calls belong to one event loop."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._loop = asyncio.get_running_loop()
        self._queues: dict[str, asyncio.Queue[Event]] = {}
        self._alarm: asyncio.TimerHandle | None = None

    @contextmanager
    def generating(self, request: GenerationRequest) -> Iterator[tuple[float, AsyncIterator[Event]]]:
        """The time of submission and the request's events, up to `Finished`. Leaving early aborts the request.

        Raises:
            ValueError: the engine cannot take the request; see `Engine.submit`.
        """
        now = self._advance()
        self.engine.submit(request, now)
        queue = self._queues[request.id] = asyncio.Queue()
        self._set_alarm()
        try:
            yield now, _until_finished(queue)
        finally:
            del self._queues[request.id]
            self.engine.abort(request.id, self._advance())
            self._set_alarm()

    def metrics(self) -> EngineMetrics:
        """State and totals now."""
        return self.engine.metrics(self._advance())

    def close(self) -> None:
        """Stop the clock; requests still running get no further events."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _advance(self) -> float:
        now = self._loop.time()
        for event in self.engine.advance(now):
            queue = self._queues.get(event.request_id)
            if queue is not None:
                queue.put_nowait(event)
        return now

    def _set_alarm(self) -> None:
        due = self.engine.next_event_time()
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None if due is None else self._loop.call_at(due, self._ring)

    def _ring(self) -> None:
        self._advance()
        self._set_alarm()


async def _until_finished(queue: asyncio.Queue[Event]) -> AsyncIterator[Event]:
    while True:
        event = await queue.get()
        yield event
        if isinstance(event, Finished):
            return
