"""How long a request waits at most, what a reload makes of those that wait, and what is forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from endpick.flow_control.states import EntryEvent
from unit.flow_control.queue_bench import Bench, band, settings


def test_a_request_waits_for_its_time_and_no_longer():
    bench = Bench()
    bench.offer("first")
    bench.now += 1.0
    bench.offer("second")
    bench.now += 58.9
    assert bench.controller.sweep(1000) == 0
    bench.now += 0.1
    assert bench.controller.sweep(1000) == 1
    assert bench.told == [("first", "EXPIRED")]
    assert bench.log.ends == [("first", "EvictedTTL")]


def test_a_change_of_the_pool_gives_all_their_time_anew_but_none_more_than_the_longest():
    bench = Bench(settings(ttl_seconds=10.0, no_endpoint_ttl_seconds=30.0))
    bench.offer("first")
    for size in (0, 2, 0, 2):
        bench.now += 7.0
        bench.grow(size)
        assert bench.controller.sweep(1000) == 0
    bench.now += 2.0
    bench.offer("second")
    assert bench.controller.sweep(1000) == 1, "30 s in all"
    bench.now += 8.0
    assert bench.controller.sweep(1000) == 0
    bench.now += 2.0
    assert bench.controller.sweep(1000) == 1
    assert bench.told == [("first", "EXPIRED"), ("second", "EXPIRED")]


def test_without_endpoints_the_other_time_counts_and_the_pool_is_blamed():
    bench = Bench(settings(no_endpoint_ttl_seconds=5.0), endpoints=0)
    bench.offer("waits")
    bench.now += 5.0
    assert bench.controller.sweep(1000) == 1
    assert bench.log.ends == [("waits", "EvictedNoEndpoints")]
    full = Bench(settings(template=band(max_requests=1)), endpoints=0)
    full.offer("waits")
    assert full.offer("no room") is EntryEvent.NO_ROOM
    assert full.log.refusals == [("no room", "RejectedNoEndpoints")]


@pytest.mark.parametrize(("ttl", "no_endpoint_ttl", "endpoints"), [(0.0, 0.0, 2), (0.0, 5.0, 2), (5.0, 0.0, 0)])
def test_a_time_of_0_is_any_time(ttl, no_endpoint_ttl, endpoints):
    bench = Bench(settings(ttl_seconds=ttl, no_endpoint_ttl_seconds=no_endpoint_ttl), endpoints=endpoints)
    bench.offer("waits")
    bench.now += 1e7
    assert bench.controller.sweep(1000) == 0


def test_a_clock_that_jumps_back_stands_still_and_one_that_jumps_ahead_is_believed():
    bench = Bench()
    bench.offer("before")
    bench.now -= 500.0
    bench.offer("after")
    assert bench.controller.sweep(1000) == 0
    bench.now += 560.0
    assert bench.controller.sweep(1000) == 2


def test_a_reload_keeps_what_waits_in_the_order_and_the_bands_of_the_new_rules():
    bench = Bench(shortest=lambda waiting: (waiting.size_bytes,))
    for name, size in (("large", 30), ("small", 10), ("middle", 20)):
        bench.offer(name, size=size)
    bench.offer("urgent", priority=7)
    new = settings(ttl_seconds=5.0, template=band(ordering="shortest"))
    bench.controller.reconfigure(bench.rules(new))
    assert bench.controller.trim(1000) == 0
    assert {entry.ttl_seconds for entry in bench.entries.values()} == {5.0}
    bench.saturation = 0.0
    assert bench.gone() == ["urgent", "small", "middle", "large"]


def test_a_reload_asks_policies_about_what_waits_only_where_one_of_them_is_another():
    asked: list[str] = []

    def shortest(waiting):
        asked.append(waiting.request.id)
        return (waiting.size_bytes,)

    before = settings(template=band(ordering="shortest"))
    bench = Bench(before, shortest=shortest)
    for name, size in (("large", 30), ("small", 10)):
        bench.offer(name, size=size)
    asked.clear()
    bench.controller.reconfigure(bench.rules(replace(before, max_requests=1)))
    assert asked == []
    assert bench.controller.trim(1000) == 1
    assert bench.offer("other", size=20) is EntryEvent.NO_ROOM
    bench.controller.reconfigure(bench.rules(before))
    bench.offer("other", size=20)
    asked.clear()
    bench.carried.clear()
    bench.controller.reconfigure(bench.rules(before))
    assert asked == ["large", "other"]
    bench.saturation = 0.0
    assert bench.gone() == ["other", "large"]


def test_a_reload_that_leaves_less_room_tells_those_that_came_last():
    bench = Bench()
    for name in "abcde":
        bench.offer(name)
    bench.controller.reconfigure(bench.rules(settings(max_requests=2)))
    assert bench.controller.waiting == 5
    assert bench.offer("late") is EntryEvent.NO_ROOM
    assert bench.controller.trim(2) == 2
    assert bench.told == [("e", "NO_ROOM"), ("d", "NO_ROOM")]
    assert bench.controller.trim(2) == 1
    assert bench.log.ends[-3:] == [("e", "RejectedCapacity"), ("d", "RejectedCapacity"), ("c", "RejectedCapacity")]
    assert bench.controller.waiting == 2


def test_a_band_with_less_room_is_trimmed_by_itself_and_all_together_from_the_lowest():
    bench = Bench()
    for name, priority in (("a", 0), ("b", 3), ("c", 3), ("d", 0)):
        bench.offer(name, priority=priority)
    bench.controller.reconfigure(bench.rules(settings(template=band(max_requests=1))))
    assert bench.controller.trim(10) == 2
    assert bench.told == [("d", "NO_ROOM"), ("c", "NO_ROOM")]
    bench.controller.reconfigure(bench.rules(settings(max_bytes=1, template=band(max_requests=1))))
    assert bench.controller.trim(10) == 2


def test_without_flow_control_all_that_waits_goes():
    bench = Bench()
    for name, priority in (("a", 0), ("b", 3), ("c", 3)):
        bench.offer(name, priority=priority)
    assert bench.controller.end_some(2, EntryEvent.CHOSEN) == 2
    assert bench.told == [("b", "CHOSEN"), ("c", "CHOSEN")]
    assert bench.controller.end_some(2, EntryEvent.CHOSEN) == 1
    assert bench.told[-1] == ("a", "CHOSEN")


def test_at_the_end_all_are_told_and_nothing_waits_any_more():
    bench = Bench()
    for name in "abc":
        bench.offer(name)
    bench.controller.shut_down()
    assert bench.offer("late") is EntryEvent.SHUT_DOWN
    assert bench.controller.end_some(1000, EntryEvent.SHUT_DOWN) == 3
    assert {event for _, event in bench.told} == {"SHUT_DOWN"}
    assert bench.controller.waiting == 0


def test_those_that_came_last_in_the_lowest_bands_are_shed_first():
    bench = Bench()
    for name, priority in (("a", 0), ("b", -1), ("c", -1), ("d", -2), ("e", 1)):
        bench.offer(name, priority=priority)
    assert bench.controller.shed(2, below=0) == 2
    assert bench.controller.shed(9, below=0) == 1
    assert bench.controller.shed(1, below=None) == 1
    assert [name for name, _ in bench.told] == ["d", "c", "b", "a"]


def test_bands_that_are_idle_for_long_are_forgotten_unless_they_are_listed():
    bench = Bench(settings(bands={5: band(max_requests=1)}))
    for priority in (3, 4, 5):
        bench.offer(str(priority), priority=priority)
    bench.saturation = 0.0
    bench.gone()
    bench.now += 599.0
    bench.controller.may_pass(bench.request("again", priority=4), 1)
    bench.now += 1.0
    bench.controller.sweep(1000)
    assert tuple(bench.controller.bands.priorities) == (5, 4, 0)
    bench.now += 1e6
    bench.controller.sweep(1000)
    assert tuple(bench.controller.bands.priorities) == (5, 0)
    bench.saturation = 2.0
    assert bench.offer("one", priority=5) is EntryEvent.QUEUED
    assert bench.offer("two", priority=5) is EntryEvent.NO_ROOM, "a listed band keeps its limits"
