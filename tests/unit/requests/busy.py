"""A stage on which requests wait: parts for tests."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from endpick.api import FairnessPolicy, OrderingPolicy, UsageLimitPolicy
from endpick.api.access import Access
from endpick.flow_control.policies import bind_flow_control
from endpick.host.instance import Instance
from endpick.requests.director import Director
from endpick.requests.memory import MemoryAccount
from endpick.requests.pipeline import Pipeline
from endpick.requests.waiting import LaterDecision, WaitingRoom
from unit.flow_control.queue_bench import SETTINGS, Log
from unit.requests.stage import Stage, detector_of
from unit.scheduling.workbench import plugin_of


class Busy(Stage):
    """A stage with queues; `load` is what the detector says."""

    def __init__(self, rules=SETTINGS, limit_bytes=10**9, **keywords):
        self.load = 2.0
        super().__init__(detector=detector_of(lambda endpoints: self.load), objectives={"batch": -1, "high": 5}, **keywords)
        self.account = MemoryAccount(limit_bytes)
        self.log = Log()
        self.room = WaitingRoom(self.table, Access(), lambda: self.now, self.account, lambda: self.log)
        self.pipeline = self.with_queues(rules)
        self.director = Director(self.pipeline, self.table, self.telemetry, lambda: self.now, account=self.account, room=self.room)

    def with_queues(self, rules) -> Pipeline:
        bound = None if rules is None else bind_flow_control(rules, self.policies(), self.telemetry)
        return replace(self.pipeline, flow_control=bound)

    def policies(self) -> dict[str, Instance]:
        return {
            "in-turn": plugin_of(FairnessPolicy, "in-turn", choose=lambda band: next(iter(band.flows))),
            "fcfs": plugin_of(OrderingPolicy, "fcfs", sort_key=lambda waiting: ()),
            "whole": plugin_of(UsageLimitPolicy, "whole", ceilings=lambda saturation, priorities: [1.0] * len(priorities)),
        }

    def wait(self, *arguments, **keywords) -> LaterDecision:
        decision = self.decide(*arguments, **keywords)
        assert isinstance(decision, LaterDecision), decision
        return decision


class Delivered:
    """What a transport gets."""

    def __init__(self, later: LaterDecision) -> None:
        self.results: list[object] = []
        self.errors: list[BaseException] = []
        self.come = asyncio.Event()
        later.deliver(self)

    def __call__(self, result, error):
        self.results.append(result)
        if error is not None:
            self.errors.append(error)
        self.come.set()

    async def result(self) -> object:
        await self.come.wait()
        assert len(self.results) == 1
        return self.results[0]
