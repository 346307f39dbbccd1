"""Eviction of requests in flight: which, how many, and when."""

from __future__ import annotations

import math

import pytest

from endpick.api.flow_control import EvictionFilter, EvictionOrderingPolicy
from endpick.flow_control.controller import CONFIRMATION_SECONDS, REPORTED_GRACE_SECONDS, FlightState, Reclaimer
from endpick.flow_control.policies import BoundEviction
from endpick.host.boundary import bind
from endpick.host.methods import EVICTION_SORT_KEY, IS_EVICTABLE
from unit.flow_control.queue_bench import Bench, settings
from unit.scheduling.workbench import plugin_of


class Flights:
    """A bench with requests in flight; `revoked` has the evicted ones in order."""

    def __init__(self, rules=None, *, allows=lambda dispatched: dispatched.request.priority < 0, order=None, **keywords):
        self.bench = Bench(rules or settings(), saturation=1.0, **keywords)
        order = order or (lambda dispatched: (dispatched.request.priority, -dispatched.dispatched_at))
        telemetry = self.bench.telemetry
        bound = BoundEviction(
            bind(plugin_of(EvictionFilter, "allows", is_evictable=allows), IS_EVICTABLE, telemetry),
            bind(plugin_of(EvictionOrderingPolicy, "order", sort_key=order), EVICTION_SORT_KEY, telemetry),
        )
        controller = self.bench.controller
        self.reclaimer = Reclaimer(bound, self.bench.access, lambda: self.bench.now, self.bench.log, is_counted_here=False)
        controller.reclaimer = self.reclaimer
        self.revoked: list[str] = []
        self.flights = {}

    def send(self, name: str, priority: int = 0, connected: bool = True):
        self.bench.now += 0.001
        flight = self.reclaimer.track(self.bench.request(name, priority=priority), self.bench.table.generation.endpoints[0])
        self.flights[name] = flight
        if connected:
            flight.connect(lambda: self.revoked.append(name))
        return flight

    def reclaim(self, saturation: float = 1.0) -> list[str]:
        """The requests that one dispatch cycle evicts."""
        before = len(self.revoked)
        self.bench.saturation = saturation
        self.bench.controller.dispatch()
        return self.revoked[before:]


def test_the_newest_of_the_lowest_priority_is_evicted_first():
    flights = Flights()
    for name, priority in (("zero", 0), ("one", -1), ("two", -2), ("two newer", -2)):
        flights.send(name, priority)
    flights.bench.offer("waits")
    assert flights.reclaim(1.75) == ["two newer", "two"], "0.75 of 1.75 is two of four"
    assert flights.bench.log.ends[:2] == [("-2", "revoked 0.75"), ("-2", "revoked 0.75")]


@pytest.mark.parametrize(("saturation", "in_flight", "count"), [(1.0, 10, 1), (1.05, 10, 1), (1.2, 10, 2), (9.0, 10, 2), (9.0, 1, 1)])
def test_evictions_free_the_missing_room_two_at_most(saturation, in_flight, count):
    flights = Flights()
    for number in range(in_flight):
        flights.send(str(number), -1)
    flights.bench.offer("waits")
    assert len(flights.reclaim(saturation)) == count


def test_the_next_eviction_waits_for_confirmation_and_a_pause():
    flights = Flights()
    for name in "abc":
        flights.send(name, -1)
    flights.bench.offer("waits")
    (first,) = flights.reclaim()
    assert flights.reclaim() == []
    flights.flights[first].ended()
    assert flights.reclaim() == [], "cooling"
    flights.bench.now += REPORTED_GRACE_SECONDS
    (second,) = flights.reclaim()
    flights.bench.now += CONFIRMATION_SECONDS
    assert flights.reclaim() == [], "given up, but cooling"
    flights.bench.now += REPORTED_GRACE_SECONDS
    assert len(flights.reclaim()) == 1
    assert [outcome for outcome, _ in flights.bench.log.ends if "confirmed" in outcome] == ["confirmed", "unconfirmed"]
    flights.flights[second].ended()
    assert flights.reclaimer.in_flight == 1


def test_infinite_saturation_evicts_the_most():
    flights = Flights()
    for name in ("a", "b", "c"):
        flights.send(name, -1)
    flights.bench.offer("waits")
    assert flights.reclaim(math.inf) == ["c", "b"]
    assert flights.bench.controller.waiting == 1


def test_only_a_higher_waiting_priority_evicts():
    flights = Flights()
    flights.send("flies", -1)
    assert flights.reclaim() == []
    flights.bench.offer("equal", priority=-1)
    assert flights.reclaim() == []
    flights.bench.offer("lower", priority=-2)
    assert flights.reclaim() == []
    flights.bench.offer("higher", priority=0)
    assert flights.reclaim() == ["flies"]


def test_bands_with_ceiling_0_evict_nothing():
    flights = Flights(ceilings=lambda saturation, priorities: [1.0 if priority > 5 else 0.0 for priority in priorities])
    flights.send("flies", -1)
    flights.bench.offer("barred", priority=3)
    assert flights.reclaim() == []
    flights.bench.offer("served", priority=6)
    assert flights.reclaim() == ["flies"]


def test_ended_or_unconnected_requests_are_not_evicted():
    flights = Flights()
    flights.send("over", -1).ended()
    flights.send("unconnected", -1, connected=False)
    flights.bench.offer("waits")
    assert flights.reclaim() == []
    flights.flights["over"].ended()
    assert flights.reclaimer.in_flight == 1
    assert flights.flights["unconnected"].state is FlightState.BARRED


@pytest.mark.parametrize("answer", [None, 1, "yes"])
def test_a_fault_of_the_filter_prevents_eviction(answer):
    flights = Flights(allows=lambda dispatched: answer)
    flights.send("flies", -1)
    flights.bench.offer("waits")
    assert flights.reclaim() == []
    assert flights.bench.telemetry.faults[0][:2] == ("allows", "EvictionFilter")


def test_a_fault_of_the_order_is_last():
    def order(dispatched):
        if dispatched.request.id == "odd":
            raise RuntimeError("broken")
        return (1.0,)

    flights = Flights(order=order)
    flights.send("odd", -1)
    flights.send("even", -1)
    flights.bench.offer("waits")
    assert flights.reclaim(2.0) == ["even"]


def test_ended_requests_leave_nothing_behind():
    flights = Flights()
    for number in range(1000):
        flights.send(str(number), -1).ended()
    assert len(flights.reclaimer._evictable) == 0
    assert flights.reclaimer.in_flight == 0
