"""A controller with real queues, policies in a few lines, and a clock and a pool that tests move."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from endpick.api import Endpoint, FairnessPolicy, OrderingPolicy, SaturationDetector, UsageLimitPolicy
from endpick.api.access import Access
from endpick.api.request import InferenceRequest
from endpick.data.table import EndpointTable
from endpick.flow_control.controller import FlowController
from endpick.flow_control.limits import Rules, rules_of
from endpick.flow_control.policies import bind_flow_control
from endpick.flow_control.queues import Entry
from endpick.flow_control.states import EntryEvent
from endpick.host.boundary import bind
from endpick.host.breaker import Breaker, BreakerSettings
from endpick.host.instance import Instance
from endpick.host.kinds import OnFault
from endpick.host.planning.flow_control_settings import BandSettings, FlowControlSettings
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
    """What flow control reports, as it reports it."""

    passes: list[str] = field(default_factory=list)
    ends: list[tuple[str, str]] = field(default_factory=list)
    refusals: list[tuple[str, str]] = field(default_factory=list)
    readings: list[object] = field(default_factory=list)

    def passed(self, request):
        self.passes.append(request.id)

    def queued(self, entry, band, bands, seconds):
        assert band is entry.band

    def left(self, entry, band, bands, outcome, waited_seconds):
        self.ends.append((entry.request.id, str(outcome)))

    def refused(self, entry, outcome):
        self.refusals.append((entry.request.id, str(outcome)))

    def revoked(self, priority, target, pending):
        self.ends.append((str(priority), f"revoked {target:g}"))

    def confirmed(self, outcome, seconds):
        self.ends.append((outcome, f"{seconds:g}"))

    def attempted(self, seconds):
        assert seconds >= 0.0

    def read(self, reading):
        self.readings.append(reading)


class Bench:
    """Requests are named; `told` says what became of each, in order."""

    budget_seconds = math.inf
    """How long a call of a policy may take before its circuit is in question."""
    keys = ()
    """What endpoints report."""

    def __init__(self, settings: FlowControlSettings = SETTINGS, *, saturation=2.0, endpoints: int = 2, **policies) -> None:
        """`saturation` is a number or a function of endpoints; policies are functions, by their names in `settings`."""
        self.now = 1000.0
        self.saturation = saturation
        self.telemetry = Recording()
        self.table = EndpointTable(lambda: self.now, self.keys)
        self.grow(endpoints)
        self.log = Log()
        self.told: list[tuple[str, str]] = []
        self.entries: dict[str, Entry] = {}
        self.policies = {"in-turn": in_turn, "first-come": first_come} | policies
        self.carried: dict[str, Instance] = {}
        """Policies that the next rules take over, as a reload does where nothing about them has changed."""
        self.access = Access()
        self.controller = FlowController(self.rules(settings), self.table, self.access, lambda: self.now, self.log)

    def rules(self, settings: FlowControlSettings, detector=None) -> Rules:
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
        detector = detector or plugin_of(SaturationDetector, "detector", self.policies.get("on_fault"), saturation=self.saturated)
        return rules_of(
            bind_flow_control(settings, {name: self._in_test_time(each) for name, each in instances.items()}, self.telemetry),
            bind(self._in_test_time(detector), SaturationDetector, "saturation", self.telemetry),
            self.access,
        )

    def _in_test_time(self, instance: Instance) -> Instance:
        """The same instance, whose circuit neither opens because the machine is busy nor closes because time passes there."""
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

    def offer(self, name: str, *arguments, **keywords) -> EntryEvent:
        request = self.request(name, *arguments, **keywords)
        entry, event = self.controller.offer(request, request.size_bytes, self._tell)
        self.entries[name] = entry
        return event

    def _tell(self, entry, event) -> None:
        self.told.append((entry.request.id, event.name))

    def gone(self) -> list[str]:
        """Let all go that may; their names in order."""
        before = len(self.told)
        while self.controller.attempt():
            pass
        return [name for name, event in self.told[before:] if event == "CHOSEN"]


def settings(**changes) -> FlowControlSettings:
    return replace(SETTINGS, **changes)


def band(**changes) -> BandSettings:
    return replace(BAND, **changes)


REFUSE = OnFault.REFUSE
