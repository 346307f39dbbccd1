"""Time limits, reloads, shedding, and idle bands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from endpick.flow_control.queues import WaitEnd
from unit.flow_control.queue_bench import Bench, band, settings


def test_a_wait_ends_at_its_time_limit():
    bench = Bench()
    bench.offer("first")
    bench.now += 1.0
    bench.offer("second")
    bench.now += 58.9
    assert bench.controller.expire() == 0
    bench.now += 0.1
    assert bench.controller.expire() == 1
    assert bench.ended == [("first", "EXPIRED")]
    assert bench.log.ends == [("first", "EvictedTTL")]


def test_a_pool_change_restarts_time_limits_up_to_the_longest():
    bench = Bench(settings(ttl_seconds=10.0, no_endpoint_ttl_seconds=30.0))
    bench.offer("first")
    for size in (0, 2, 0, 2):
        bench.now += 7.0
        bench.grow(size)
        assert bench.controller.expire() == 0
    bench.now += 2.0
    bench.offer("second")
    assert bench.controller.expire() == 1, "30 s in all"
    bench.now += 8.0
    assert bench.controller.expire() == 0
    bench.now += 2.0
    assert bench.controller.expire() == 1
    assert bench.ended == [("first", "EXPIRED"), ("second", "EXPIRED")]


def test_an_empty_pool_has_its_own_time_limit_and_outcomes():
    bench = Bench(settings(no_endpoint_ttl_seconds=5.0), endpoints=0)
    bench.offer("waits")
    bench.now += 5.0
    assert bench.controller.expire() == 1
    assert bench.log.ends == [("waits", "EvictedNoEndpoints")]
    full = Bench(settings(template=band(max_requests=1)), endpoints=0)
    full.offer("waits")
    assert full.offer("no room") is WaitEnd.NO_ROOM
    assert full.log.refusals == [("no room", "RejectedNoEndpoints")]


@pytest.mark.parametrize(("ttl", "no_endpoint_ttl", "endpoints"), [(0.0, 0.0, 2), (0.0, 5.0, 2), (5.0, 0.0, 0)])
def test_a_time_limit_of_0_is_no_limit(ttl, no_endpoint_ttl, endpoints):
    bench = Bench(settings(ttl_seconds=ttl, no_endpoint_ttl_seconds=no_endpoint_ttl), endpoints=endpoints)
    bench.offer("waits")
    bench.now += 1e7
    assert bench.controller.expire() == 0


def test_a_reload_sorts_waiting_requests_by_its_policies():
    bench = Bench(shortest=lambda waiting: (waiting.size_bytes,))
    for name, size in (("large", 30), ("small", 10), ("middle", 20)):
        bench.offer(name, size=size)
    bench.offer("urgent", priority=7)
    new = settings(ttl_seconds=5.0, template=band(ordering="shortest"))
    bench.reconfigure(new)
    assert {entry.waiting.ttl_seconds for entry in bench.entries.values()} == {5.0}
    bench.saturation = 0.0
    assert bench.gone() == ["urgent", "small", "middle", "large"]


def test_a_reload_with_the_same_policies_does_not_sort_again():
    asked: list[str] = []

    def shortest(waiting):
        asked.append(waiting.request.id)
        return (waiting.size_bytes,)

    before = settings(template=band(ordering="shortest"))
    bench = Bench(before, shortest=shortest)
    for name, size in (("large", 30), ("small", 10)):
        bench.offer(name, size=size)
    asked.clear()
    bench.reconfigure(replace(before, max_requests=1))
    assert asked == []
    assert bench.offer("other", size=20) is WaitEnd.NO_ROOM
    bench.reconfigure(before)
    bench.offer("other", size=20)
    asked.clear()
    bench.carried.clear()
    bench.reconfigure(before)
    assert asked == ["large", "other"]
    bench.saturation = 0.0
    assert bench.gone() == ["other", "large"]


def test_a_reload_with_less_room_refuses_the_newest():
    bench = Bench()
    for name in "abcde":
        bench.offer(name)
    bench.reconfigure(settings(max_requests=2))
    assert bench.offer("late") is WaitEnd.NO_ROOM
    assert bench.log.ends == [("e", "RejectedCapacity"), ("d", "RejectedCapacity"), ("c", "RejectedCapacity")]
    assert bench.controller.waiting == 2


def test_a_reload_refuses_by_band_and_from_the_lowest():
    bench = Bench()
    for name, priority in (("a", 0), ("b", 3), ("c", 3), ("d", 0)):
        bench.offer(name, priority=priority)
    bench.reconfigure(settings(template=band(max_requests=1)))
    assert bench.ended == [("d", "NO_ROOM"), ("c", "NO_ROOM")]
    bench.reconfigure(settings(max_bytes=1, template=band(max_requests=1)))
    assert bench.controller.waiting == 0


def test_ending_all_waits_serves_the_highest_band_first():
    bench = Bench()
    for name, priority in (("a", 0), ("b", 3), ("c", 3)):
        bench.offer(name, priority=priority)
    assert bench.controller.end_all(WaitEnd.DISPATCHED) == 3
    assert bench.ended == [("b", "DISPATCHED"), ("c", "DISPATCHED"), ("a", "DISPATCHED")]


def test_shutting_down_refuses_waiting_and_later_requests():
    bench = Bench()
    for name in "abc":
        bench.offer(name)
    assert bench.controller.shut_down() == 3
    assert bench.offer("late") is WaitEnd.SHUT_DOWN
    assert {event for _, event in bench.ended} == {"SHUT_DOWN"}
    assert bench.controller.waiting == 0


def test_shedding_refuses_negative_priorities():
    bench = Bench()
    for name, priority in (("a", 0), ("b", -1), ("c", -1), ("d", -2), ("e", 1)):
        bench.offer(name, priority=priority)
    assert bench.controller.shed() == 3
    assert {name for name, _ in bench.ended} == {"b", "c", "d"}


def test_unlisted_idle_bands_are_dropped():
    bench = Bench(settings(bands={5: band(max_requests=1)}))
    for priority in (3, 4, 5):
        bench.offer(str(priority), priority=priority)
    bench.saturation = 0.0
    bench.gone()
    bench.now += 599.0
    bench.controller.may_pass(bench.request("again", priority=4))
    bench.now += 1.0
    bench.controller.expire()
    assert tuple(bench.controller.bands.priorities) == (5, 4, 0)
    bench.now += 1e6
    bench.controller.expire()
    assert tuple(bench.controller.bands.priorities) == (5, 0)
    bench.saturation = 2.0
    assert bench.offer("one", priority=5) is None
    assert bench.offer("two", priority=5) is WaitEnd.NO_ROOM, "a listed band keeps its limits"


def test_a_band_may_have_its_own_time_limit():
    limits = {2: 5.0, 1: 0.0, 0: None}
    bench = Bench(settings(ttl_seconds=20.0, bands={priority: band(ttl_seconds=limit) for priority, limit in limits.items()}))
    for priority in limits:
        bench.offer(f"p{priority}", priority=priority)
    assert [bench.entries[f"p{priority}"].waiting.ttl_seconds for priority in limits] == [5.0, 0.0, 20.0]

    gone = []
    for seconds in (4.9, 0.1, 14.9, 0.1, 1e7):
        bench.now += seconds
        bench.controller.expire()
        gone.append([name for name, _ in bench.ended])
    assert gone == [[], ["p2"], ["p2"], ["p2", "p0"], ["p2", "p0"]]


def test_a_reload_changes_the_time_limit_of_a_band():
    bench = Bench(settings(bands={1: band(ttl_seconds=50.0)}))
    bench.offer("waits", priority=1)
    bench.reconfigure(settings(bands={1: band(ttl_seconds=5.0)}))
    assert bench.entries["waits"].waiting.ttl_seconds == 5.0
    bench.now += 5.0
    assert bench.controller.expire() == 1
