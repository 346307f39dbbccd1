"""Who goes when, who has no room, and what ends a wait."""

from __future__ import annotations

import math

import pytest

from endpick.flow_control.states import TRANSITIONS, EntryEvent, EntryState
from unit.flow_control.queue_bench import REFUSE, Bench, band, settings


@pytest.mark.parametrize(
    ("caps", "waiting", "size", "allowed"),
    [
        pytest.param({"max_bytes": 100}, [100], 1, False, id="one byte beyond all bytes"),
        pytest.param({"max_requests": 10}, [0] * 10, 0, False, id="one request beyond all requests"),
        pytest.param({"max_bytes": 200, "band_bytes": 50}, [50], 1, False, id="one byte beyond those of the band"),
        pytest.param({"band_requests": 5}, [0] * 5, 0, False, id="one request beyond those of the band"),
        pytest.param({"max_bytes": 200, "band_bytes": 100}, [50], 10, True, id="room everywhere"),
        pytest.param({}, [999], 999, True, id="no limit in all"),
        pytest.param({"max_bytes": 110, "band_bytes": 60}, [50], 10, True, id="exactly at the limit of the band"),
        pytest.param({"max_bytes": 110, "band_bytes": 60}, [50], 11, False, id="a byte beyond it"),
        pytest.param({"max_requests": 10}, [0] * 9, 0, True, id="the last request of all"),
        pytest.param({"band_requests": 6}, [0] * 5, 0, True, id="the last request of the band"),
        pytest.param({"max_requests": 9, "band_requests": 5}, [0] * 5, 0, False, id="room in all, but not in the band"),
        pytest.param({"band_bytes": 50}, [], 100, False, id="larger than the whole band"),
    ],
)
def test_a_request_waits_where_there_is_room_for_it(caps, waiting, size, allowed):
    template = band(max_bytes=caps.get("band_bytes", 10**9), max_requests=caps.get("band_requests", 5000))
    bench = Bench(settings(max_bytes=caps.get("max_bytes", 0), max_requests=caps.get("max_requests", 0), template=template))
    for position, waits in enumerate(waiting):
        assert bench.offer(f"w{position}", size=waits) is EntryEvent.QUEUED
    assert (bench.offer("one more", size=size) is EntryEvent.QUEUED) is allowed
    assert bench.log.refusals == ([] if allowed else [("one more", "RejectedCapacity")])
    assert not bench.told, "who has no room learns it as the answer"


class CountedInt(int):
    """An integer that counts how often it is compared in order."""

    comparisons = 0

    def __lt__(self, other):
        CountedInt.comparisons += 1
        return int.__lt__(self, other)

    __hash__ = int.__hash__


def test_a_configuration_of_thousands_of_bands_is_put_in_order_once():
    listed = {CountedInt(priority): band() for priority in range(1, 2000)}
    CountedInt.comparisons = 0
    bench = Bench(settings(bands=listed))
    assert bench.controller.bands.priorities == tuple(range(1999, -1, -1))
    assert CountedInt.comparisons < 2000 * 20


def test_a_request_that_is_larger_than_its_band_does_not_pass_an_idle_pool_either():
    bench = Bench(settings(template=band(max_bytes=50)), saturation=0.0)
    request = bench.request("large", size=51)
    assert not bench.controller.may_pass(request, 51)
    assert bench.controller.may_pass(request, 50)


def test_bands_are_served_from_the_highest_and_a_closed_one_closes_those_below():
    bench = Bench(saturation=0.5, ceilings=lambda saturation, priorities: [1.0 if priority > 0 else 0.4 for priority in priorities])
    for name, priority in (("low", -1), ("zero", 0), ("high", 9), ("higher", 2**63 - 1), ("lowest", -(2**63))):
        bench.offer(name, priority=priority)
    assert bench.gone() == ["higher", "high"]
    assert bench.controller.waiting == 3
    bench.saturation = 0.3
    assert bench.gone() == ["zero", "low", "lowest"]


def test_nothing_goes_while_the_pool_is_full_or_empty_whatever_a_ceiling_says():
    bench = Bench(ceilings=lambda saturation, priorities: [9.0] * len(priorities), endpoints=0)
    bench.offer("waits")
    assert bench.gone() == []
    bench.grow(1)
    assert bench.gone() == ["waits"]
    bench.policies["ceilings"] = lambda saturation, priorities: [1.0] * len(priorities)
    full = Bench(saturation=1.0)
    full.offer("waits")
    assert full.gone() == [], "at the ceiling is full"


def test_one_goes_at_a_time_and_the_detector_is_asked_in_between():
    bench = Bench(saturation=lambda endpoints: len(bench.told) / 2)
    for name in "abcd":
        bench.offer(name)
    assert bench.gone() == ["a", "b"]


@pytest.mark.parametrize(
    ("flows", "expected"),
    [(["3", "1", "2", "3", "1", "2"], ["1", "2", "3", "1", "2", "3"]), (["1", "3", "1"], ["1", "3", "1"])],
)
def test_the_fairness_policy_chooses_the_flow(flows, expected):
    bench = Bench()
    for position, flow in enumerate(flows):
        bench.offer(f"{flow}-{position}", flow)
    bench.saturation = 0.0
    assert [name[0] for name in bench.gone()] == expected


def test_the_ordering_policy_orders_a_flow_and_equal_keys_go_as_they_came():
    shortest = settings(template=band(ordering="shortest"))
    bench = Bench(shortest, shortest=lambda waiting: (waiting.size_bytes,))
    for name, size in (("large", 30), ("small", 10), ("middle", 20), ("small too", 10)):
        bench.offer(name, size=size)
    bench.saturation = 0.0
    assert bench.gone() == ["small", "small too", "middle", "large"]


def test_policies_that_listen_are_told_of_heads_and_of_requests_that_went():
    heard = []
    listening = {
        "choose": lambda band: next(iter(band.flows)),
        "flow_changed": lambda band, flow: heard.append(("head", flow.id, flow.head and flow.head.request.id)),
        "dispatched": lambda band, flow, waiting: heard.append(("went", flow.id, waiting.request.id)),
    }
    bench = Bench(settings(template=band(fairness="listening")), listening=listening)
    bench.offer("one")
    bench.offer("two")
    bench.controller.leave(bench.entries["two"])
    bench.saturation = 0.0
    bench.gone()
    assert bench.controller.may_pass(bench.request("three", "b"), 10)
    assert heard == [
        ("head", "a", "one"),
        ("head", "a", None),
        ("went", "a", "one"),
        ("head", "b", "three"),
        ("head", "b", None),
        ("went", "b", "three"),
    ]


@pytest.mark.parametrize("wrong", ["raises", "foreign", "gone", "nonsense"])
def test_a_fairness_policy_that_fails_has_its_band_served_as_requests_came(wrong):
    def choose(band):
        if wrong == "raises":
            raise RuntimeError("broken")
        return {"foreign": elsewhere, "gone": gone, "nonsense": 7}[wrong]

    other = Bench()
    other.offer("elsewhere", "b")
    elsewhere = other.controller.bands.band(0, 0.0).flow("b")
    bench = Bench(settings(template=band(fairness="broken")), broken=choose)
    bench.offer("left", "b")
    gone = bench.controller.bands.band(0, 0.0).flow("b")
    bench.controller.leave(bench.entries["left"])
    for name, flow in (("1", "b"), ("2", "a"), ("3", "b")):
        bench.offer(name, flow)
    bench.saturation = 0.0
    assert bench.gone() == ["1", "2", "3"]
    assert {fault[0] for fault in bench.telemetry.faults} == {"broken"}


def test_a_fairness_policy_that_starves_its_band_leaves_the_others_alone():
    bench = Bench(settings(bands={5: band(fairness="idle")}), idle=lambda band: None)
    bench.offer("starves", priority=5)
    bench.offer("goes", priority=0)
    bench.saturation = 0.0
    assert bench.gone() == ["goes"]
    bench.now += 60.0
    assert bench.controller.sweep(1000) == 1
    assert bench.told[-1] == ("starves", "EXPIRED")


@pytest.mark.parametrize("key", [(math.nan,), "soon", ("soon",), None, [1.0]])
def test_requests_without_a_usable_key_stand_behind_the_others(key):
    ordered = settings(template=band(ordering="odd"))
    bench = Bench(ordered, odd=lambda waiting: key if waiting.request.id == "odd" else (5.0,))
    for name in ("odd", "even", "even too"):
        bench.offer(name)
    bench.saturation = 0.0
    assert bench.gone() == ["even", "even too", "odd"]
    assert [fault[:2] for fault in bench.telemetry.faults] == [("odd", "OrderingPolicy")]


@pytest.mark.parametrize("answer", [[1.0, 0.5], [0.1, 0.9, 0.2], [math.nan] * 3, "high", None, [None] * 3])
def test_ceilings_that_make_no_sense_are_1_for_each(answer):
    bench = Bench(saturation=0.9, ceilings=lambda saturation, priorities: answer)
    for priority in (2, 1, 0):
        bench.offer(f"p{priority}", priority=priority)
    assert bench.gone() == ["p2", "p1", "p0"]
    assert bench.telemetry.faults[0][:2] == ("whole", "UsageLimitPolicy")


@pytest.mark.parametrize(("on_fault", "goes"), [(None, ["waits"]), (REFUSE, [])])
@pytest.mark.parametrize("answer", ["raise", math.nan, "full", None])
def test_a_detector_that_fails_is_as_none_or_as_one_that_says_full(answer, on_fault, goes):
    def saturation(endpoints):
        if answer == "raise":
            raise ValueError(answer)
        return answer

    bench = Bench(saturation=saturation, on_fault=on_fault)
    bench.offer("waits")
    assert bench.gone() == goes
    assert bench.telemetry.faults


def test_a_client_that_leaves_is_gone_at_once_wherever_it_stood():
    bench = Bench()
    for number in range(100):
        bench.offer(str(number), flow="ab"[number % 2])
    for number in [*range(0, 100, 3), 99, 0]:
        bench.controller.leave(bench.entries[str(number)])
    left = {str(number) for number in range(0, 100, 3)}
    assert bench.controller.waiting == 100 - len(left)
    assert bench.controller.bands.size_bytes == 10 * bench.controller.waiting
    assert dict(bench.log.ends) == dict.fromkeys(left, "EvictedContextCancelled")
    assert not bench.told, "there is no one to tell"
    bench.saturation = 0.0
    assert set(bench.gone()) == {str(number) for number in range(100)} - left


def test_keys_of_requests_that_left_do_not_pile_up():
    bench = Bench()
    bench.offer("stays")
    for number in range(1000):
        bench.offer(str(number))
        bench.controller.leave(bench.entries[str(number)])
    flow = bench.controller.bands.band(0, 0.0).flow("a")
    assert len(flow._heap) < 40
    assert flow.head.request.id == "stays"


def test_every_end_is_final():
    for state in (EntryState.LET_GO, EntryState.REFUSED, EntryState.LEFT):
        assert not [event for event in EntryEvent if (state, event) in TRANSITIONS]
    assert {after for _, after in TRANSITIONS.items()} == set(EntryState) - {EntryState.ARRIVED}
