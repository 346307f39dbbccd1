"""Limits, dispatch order, and faults of policies."""

from __future__ import annotations

import math

import pytest

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
def test_limits_of_requests_and_bytes(caps, waiting, size, allowed):
    template = band(max_bytes=caps.get("band_bytes", 10**9), max_requests=caps.get("band_requests", 5000))
    bench = Bench(settings(max_bytes=caps.get("max_bytes", 0), max_requests=caps.get("max_requests", 0), template=template))
    for position, waits in enumerate(waiting):
        assert bench.offer(f"w{position}", size=waits) is None
    assert (bench.offer("one more", size=size) is None) is allowed
    assert bench.log.refusals == ([] if allowed else [("one more", "RejectedCapacity")])
    assert not bench.ended


def test_a_request_larger_than_its_band_does_not_pass():
    bench = Bench(settings(template=band(max_bytes=50)), saturation=0.0)
    assert not bench.controller.may_pass(bench.request("large", size=51))
    assert bench.controller.may_pass(bench.request("small", size=50))


def test_bands_are_served_from_the_highest_until_one_is_closed():
    bench = Bench(saturation=0.5, ceilings=lambda saturation, priorities: [1.0 if priority > 0 else 0.4 for priority in priorities])
    for name, priority in (("low", -1), ("zero", 0), ("high", 9), ("higher", 2**63 - 1), ("lowest", -(2**63))):
        bench.offer(name, priority=priority)
    assert bench.gone() == ["higher", "high"]
    assert bench.controller.waiting == 3
    bench.saturation = 0.3
    assert bench.gone() == ["zero", "low", "lowest"]


def test_nothing_is_dispatched_to_a_full_or_empty_pool():
    bench = Bench(ceilings=lambda saturation, priorities: [9.0] * len(priorities), endpoints=0)
    bench.offer("waits")
    assert bench.gone() == []
    bench.grow(1)
    assert bench.gone() == ["waits"]
    bench.policies["ceilings"] = lambda saturation, priorities: [1.0] * len(priorities)
    full = Bench(saturation=1.0)
    full.offer("waits")
    assert full.gone() == [], "at the ceiling is full"


def test_the_detector_is_called_between_two_dispatches():
    bench = Bench(saturation=lambda endpoints: len(bench.ended) / 2)
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


def test_the_ordering_policy_orders_a_flow():
    shortest = settings(template=band(ordering="shortest"))
    bench = Bench(shortest, shortest=lambda waiting: (waiting.size_bytes,))
    for name, size in (("large", 30), ("small", 10), ("middle", 20), ("small too", 10)):
        bench.offer(name, size=size)
    bench.saturation = 0.0
    assert bench.gone() == ["small", "small too", "middle", "large"]


def test_fairness_policies_hear_of_heads_and_dispatches():
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
    assert bench.controller.may_pass(bench.request("three", "b"))
    assert heard == [
        ("head", "a", "one"),
        ("head", "a", None),
        ("went", "a", "one"),
        ("head", "b", "three"),
        ("head", "b", None),
        ("went", "b", "three"),
    ]


@pytest.mark.parametrize("wrong", ["raises", "foreign", "gone", "nonsense"])
def test_a_failed_fairness_policy_serves_in_order_of_arrival(wrong):
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


def test_a_fairness_policy_may_serve_nothing_of_its_band():
    bench = Bench(settings(bands={5: band(fairness="idle")}), idle=lambda band: None)
    bench.offer("starves", priority=5)
    bench.offer("goes", priority=0)
    bench.saturation = 0.0
    assert bench.gone() == ["goes"]
    bench.now += 60.0
    assert bench.controller.expire() == 1
    assert bench.ended[-1] == ("starves", "EXPIRED")


@pytest.mark.parametrize("key", [(math.nan,), ("soon",), None])
def test_an_invalid_sort_key_is_last(key):
    ordered = settings(template=band(ordering="odd"))
    bench = Bench(ordered, odd=lambda waiting: key if waiting.request.id == "odd" else (5.0,))
    for name in ("odd", "even", "even too"):
        bench.offer(name)
    bench.saturation = 0.0
    assert bench.gone() == ["even", "even too", "odd"]
    assert [fault[:2] for fault in bench.telemetry.faults] == [("odd", "OrderingPolicy")]


@pytest.mark.parametrize("answer", [[1.0, 0.5], [0.1, 0.9, 0.2], [math.nan] * 3, None, [None] * 3])
def test_invalid_ceilings_are_1(answer):
    bench = Bench(saturation=0.9, ceilings=lambda saturation, priorities: answer)
    for priority in (2, 1, 0):
        bench.offer(f"p{priority}", priority=priority)
    assert bench.gone() == ["p2", "p1", "p0"]
    assert bench.telemetry.faults[0][:2] == ("whole", "UsageLimitPolicy")


@pytest.mark.parametrize(("on_fault", "goes"), [(None, ["waits"]), (REFUSE, [])])
@pytest.mark.parametrize("answer", ["raise", math.nan, "full", None])
def test_a_failed_detector_reports_idle_or_full(answer, on_fault, goes):
    def saturation(endpoints):
        if answer == "raise":
            raise ValueError(answer)
        return answer

    bench = Bench(saturation=saturation, on_fault=on_fault)
    bench.offer("waits")
    assert bench.gone() == goes
    assert bench.telemetry.faults


def test_a_client_that_leaves_frees_its_place():
    bench = Bench()
    for number in range(100):
        bench.offer(str(number), flow="ab"[number % 2])
    for number in [*range(0, 100, 3), 99, 0]:
        bench.controller.leave(bench.entries[str(number)])
    left = {str(number) for number in range(0, 100, 3)}
    assert bench.controller.waiting == 100 - len(left)
    assert bench.controller.bands.size_bytes == 10 * bench.controller.waiting
    assert dict(bench.log.ends) == dict.fromkeys(left, "EvictedContextCancelled")
    assert not bench.ended, "there is no one to tell"
    bench.saturation = 0.0
    assert set(bench.gone()) == {str(number) for number in range(100)} - left


def test_recovered_fairness_policy_is_notified_of_all_flows(monkeypatch):
    heard = []
    policy = {
        "choose": lambda band: max(band.flows, key=lambda flow: flow.id),
        "flow_changed": lambda band, flow: heard.append((flow.id, band.private.setdefault(flow.id, flow.id))),
    }
    monkeypatch.setattr(Bench, "budget_seconds", 1.0)
    bench = Bench(settings(template=band(fairness="slow"), ttl_seconds=0.0), slow=policy)
    bench.offer("a", "a")
    for _ in range(3):
        bench.controller.bands.band(0, 0.0).rules.fairness.choose.breaker.took(5.0)
    for name in "bcd":
        bench.offer(name, name)
    assert heard == [("a", "a")]
    bench.saturation = 0.0
    assert bench.controller.dispatch()
    assert bench.ended == [("a", "DISPATCHED")], "in order of arrival while the policy is left out"
    bench.now += 5.0
    assert bench.gone() == ["d", "c", "b"]
    assert heard[1:4] == [("b", "b"), ("c", "c"), ("d", "d")]
