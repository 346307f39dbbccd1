"""One polling source as it is asked about endpoints: with its time limit, and where its payloads go."""

from __future__ import annotations

import asyncio
from functools import partial

from endpick.api.datalayer import PollingSource
from endpick.api.endpoint import Endpoint
from endpick.api.plugin import Parameters
from endpick.data.dispatch import PayloadDispatcher
from endpick.data.pace import Pace
from endpick.data.time_limit import TimeLimit
from endpick.host.failures import CALL_FAILURES, is_closing, is_the_hosts
from endpick.host.stretches import Timed


class PolledSource:
    """A polling source with its time limit and where its payloads go."""

    def __init__(self, plugin: PollingSource[Parameters, object], dispatcher: PayloadDispatcher) -> None:
        self.plugin = plugin
        self.limit = TimeLimit(plugin.timeout_seconds, self._goes_on)
        self.interval_seconds = plugin.interval_seconds
        self.repeats_payload = plugin.repeats_payload
        self.dispatcher = dispatcher
        self._budget_seconds = dispatcher.source.breaker.budget_seconds

    def is_told(self, name: str, within_seconds: float) -> bool:
        """Whether the endpoint has told by itself what the source is polled for."""
        told = self.dispatcher.told
        return told.any and bool(self.dispatcher.needed) and told.are_fresh(name, self.dispatcher.needed, within_seconds)

    async def poll(self, endpoint: Endpoint, name: str, pace: Pace) -> None:
        """One poll of one endpoint, delivered or counted as an error; the pace learns whether it brought anything new.

        `name` is the endpoint's, as it was when it joined.
        """
        if not self.dispatcher.is_asked(name):
            return
        began = self.dispatcher.told.now()
        loop = asyncio.get_running_loop()
        task: asyncio.Task[None] = asyncio.current_task(loop)  # type: ignore[assignment]  # there is one: this runs
        self.limit.begin(task, loop, name)
        try:
            payload = await Timed(self.plugin.poll(endpoint), self._budget_seconds, partial(self.dispatcher.held, name))
        except CALL_FAILURES as problem:
            is_late = self.limit.end(task)
            if is_closing(problem, task) or is_the_hosts(problem):
                raise
            pace.failed()
            self.dispatcher.failed(name, f"no answer within {self.limit.seconds:g} s" if is_late else problem)
        else:
            self.limit.end(task)
            pace.answered(payload)
            self.dispatcher.deliver(payload, endpoint, began)

    def _goes_on(self, name: str) -> None:
        self.dispatcher.failed(name, "the poll goes on although it was cancelled: the endpoint is polled again when it has ended")
