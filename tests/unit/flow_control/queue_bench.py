"""A flow controller with real queues, short policies, and a clock and a pool that tests move."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from endpick.api import Endpoint, SaturationDetector
from endpick.api.access import Access
from endpick.api.flow_control import FairnessPolicy, OrderingPolicy, UsageLimitPolicy
from endpick.api.request import InferenceRequest
from endpick.data.table import EndpointTable
from endpick.flow_control.controller import FlowController
from endpick.flow_control.policies import BoundFlowControl, bind_flow_control
from endpick.flow_control.queues import Entry, WaitEnd
from endpick.host.boundary import Step, bind
from endpick.host.breaker import Breaker, BreakerSettings
from endpick.host.instance import Instance
from endpick.host.kinds import OnFault
from endpick.host.methods import SATURATION
from endpick.host.planning.plan import BandSettings, FlowControlSettings
from unit.scheduling.workbench import Recording, plugin_of

BAND = BandSettings(1_000_000_000, 5000, "in-turn", "fcfs")
SETTINGS = FlowControlSettings(0, 0, 60.0, 60.0, {}, BAND, BAND, "whole")


def first_come(band):
    """The flow whose head came first."""
    return min(band.flows, key=lambda flow: flow.head.arrival)


def in_turn(band):
    """Each flow in its turn, by name."""
    names = sorted(flow.id for flow in band.flows)
    later = [name for name in names if name > band.private.get("last", "")]
    band.private["last"] = (later or names)[0]
    return band.flow(band.private["last"])


@dataclass
class Log:
    """A `Report` that keeps what it gets."""

    passes: list[str] = field(default_factory=list)
    ends: list[tuple[str, str]] = field(default_factory=list)
    refusals: list[tuple[str, str]] = field(default_factory=list)
    readings: list[object] = field(default_factory=list)

    def passed(self, request):
        self.passes.append(request.id)

    def queued(self, entry, band, bands, seconds):
        assert band is entry.band

    def left(self, entry, band, bands, outcome, waited_seconds):
        self.ends.append((entry.waiting.request.id, str(outcome)))

    def refused(self, entry, outcome):
        self.refusals.append((entry.waiting.request.id, str(outcome)))

    def revoked(self, priority, target, pending):
        self.ends.append((str(priority), f"revoked {target:g}"))

    def confirmed(self, outcome, seconds):
        self.ends.append((outcome, f"{seconds:g}"))

    def attempted(self, seconds):
        assert seconds >= 0.0

    def read(self, reading):
        self.readings.append(reading)


class Bench:
    """A controller for named requests; `ended` has the end of each wait, in order."""

    budget_seconds = math.inf
    keys = ()

    def __init__(self, settings: FlowControlSettings = SETTINGS, *, saturation=2.0, endpoints: int = 2, **policies) -> None:
        """`saturation` is a number or a function of endpoints; policies are functions, by their names in `settings`."""
        self.now = 1000.0
        self.saturation = saturation
        self.telemetry = Recording()
        self.table = EndpointTable(lambda: self.now, self.keys)
        self.grow(endpoints)
        self.log = Log()
        self.ended: list[tuple[str, str]] = []
        self.entries: dict[str, Entry] = {}
        self.policies = {"in-turn": in_turn, "first-come": first_come} | policies
        self.carried: dict[str, Instance] = {}
        """Policies that the next rules keep, as a reload does with unchanged instances."""
        self.access = Access()
        self.detector = plugin_of(SaturationDetector, "detector", self.policies.get("on_fault"), saturation=self.saturated)
        self.controller = FlowController(self.rules(settings), self.detector_step(), self.table, self.access, lambda: self.now, self.log)

    def rules(self, settings: FlowControlSettings) -> BoundFlowControl:
        ceilings = self.policies.get("ceilings", lambda saturation, priorities: [1.0] * len(priorities))
        instances = {
            settings.usage_limit: plugin_of(UsageLimitPolicy, "whole", ceilings=ceilings),
            "fcfs": plugin_of(OrderingPolicy, "fcfs", sort_key=lambda waiting: ()),
        }
        for band in settings.all_bands:
            methods = self.policies[band.fairness]
            methods = methods if isinstance(methods, Mapping) else {"choose": methods}
            instances[band.fairness] = plugin_of(FairnessPolicy, band.fairness, **methods)
            if band.ordering != "fcfs":
                instances[band.ordering] = plugin_of(OrderingPolicy, band.ordering, sort_key=self.policies[band.ordering])
        instances = self.carried = instances | {name: each for name, each in self.carried.items() if name in instances}
        return bind_flow_control(settings, {name: self._in_test_time(each) for name, each in instances.items()}, self.telemetry)

    def detector_step(self) -> Step[float]:
        return bind(self._in_test_time(self.detector), SATURATION, self.telemetry)

    def reconfigure(self, settings: FlowControlSettings) -> None:
        self.controller.reconfigure(self.rules(settings), self.detector_step())

    def _in_test_time(self, instance: Instance) -> Instance:
        """The instance with a breaker on the clock of the test."""
        return replace(instance, breaker=Breaker(BreakerSettings(budget_seconds=self.budget_seconds), lambda: self.now))

    def saturated(self, endpoints) -> float:
        return self.saturation(endpoints) if callable(self.saturation) else self.saturation

    def grow(self, size: int, labels=None) -> None:
        self.table.replace_all(Endpoint(f"pool/e{n}", f"10.0.0.{n + 1}", 8000, labels=(labels or {}).get(n, {})) for n in range(size))

    def request(self, name: str, flow: str = "a", priority: int = 0, size: int = 10, **headers: str) -> InferenceRequest:
        named = {header.replace("_", "-"): value for header, value in headers.items()}
        return InferenceRequest(
            id=name, model="m", fairness_id=flow, priority=priority, size_bytes=size, headers=named, received_at=self.now
        )

    def offer(self, name: str, *arguments, **keywords) -> WaitEnd | None:
        """Queue a request; returns why it may not wait."""
        offered = self.controller.offer(self.request(name, *arguments, **keywords), self._end)
        if isinstance(offered, WaitEnd):
            return offered
        self.entries[name] = offered
        return None

    def _end(self, entry, end) -> None:
        self.ended.append((entry.waiting.request.id, end.name))

    def gone(self) -> list[str]:
        """Dispatch all that may go; returns their names in order."""
        before = len(self.ended)
        while self.controller.dispatch():
            pass
        return [name for name, end in self.ended[before:] if end == "DISPATCHED"]


def settings(**changes) -> FlowControlSettings:
    return replace(SETTINGS, **changes)


def band(**changes) -> BandSettings:
    return replace(BAND, **changes)


REFUSE = OnFault.REFUSE
