"""A stage with flow control."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from endpick.api.access import Access
from endpick.api.flow_control import FairnessPolicy, OrderingPolicy, UsageLimitPolicy
from endpick.flow_control.policies import bind_flow_control
from endpick.host.instance import Instance
from endpick.requests.director import Director
from endpick.requests.pipeline import Pipeline
from endpick.requests.waiting import FlowGate
from unit.flow_control.queue_bench import SETTINGS, Log
from unit.requests.stage import Stage, detector_of
from unit.scheduling.workbench import plugin_of


class Busy(Stage):
    """A stage with queues; `load` is the answer of the detector."""

    def __init__(self, rules=SETTINGS, **keywords):
        self.load = 2.0
        super().__init__(detector=detector_of(lambda endpoints: self.load), objectives={"batch": -1, "high": 5}, **keywords)
        self.log = Log()
        self.gate = FlowGate(self.table, Access(), lambda: self.now, self.director._memory, lambda: self.log)
        self.pipeline = self.with_queues(rules)
        self.director = Director(
            self.pipeline,
            self.table,
            self.telemetry,
            lambda: self.now,
            memory=self.director._memory,
            gate=self.gate,
            decisions=self.director._decisions,
        )

    def with_queues(self, rules) -> Pipeline:
        bound = None if rules is None else bind_flow_control(rules, self.policies(), self.telemetry)
        return replace(self.pipeline, flow_control=bound)

    def policies(self) -> dict[str, Instance]:
        return {
            "in-turn": plugin_of(FairnessPolicy, "in-turn", choose=lambda band: next(iter(band.flows))),
            "fcfs": plugin_of(OrderingPolicy, "fcfs", sort_key=lambda waiting: ()),
            "whole": plugin_of(UsageLimitPolicy, "whole", ceilings=lambda saturation, priorities: [1.0] * len(priorities)),
        }

    def wait(self, *arguments, **keywords) -> asyncio.Task:
        """The task that awaits the decision about a request in the queues."""
        before = self.gate.controller.waiting
        task = asyncio.ensure_future(self.decide(*arguments, **keywords))
        assert self.gate.controller.waiting == before + 1
        return task

    def open(self) -> None:
        """Make room in the pool."""
        self.load = 0.0
        self.gate.something_changed()
