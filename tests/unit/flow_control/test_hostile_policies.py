"""What policies of flow control throw, answer, or do to what they are shown: each request that waits goes all the same, once."""

from __future__ import annotations

import contextlib
import math

import pytest

from endpick.flow_control.queues import BandQueue, FlowQueue
from unit.flow_control.queue_bench import Bench, band, settings
from unit.oddities import THROWN, Own, odd

NAMES = [f"r{number}" for number in range(6)]


class OddNumber(float):
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __float__ = odd
    __hash__ = None


class OddList(list):
    __len__ = __iter__ = odd


class Faceless:
    @property
    def __class__(self):
        raise Own("do not look")


FAILURES = (*THROWN, StopIteration(), RecursionError())
ANSWERS = {
    "None": lambda: None,
    "object": object,
    "text": lambda: "x",
    "NaN": lambda: math.nan,
    "number": lambda: 10**400,
    "numbers": lambda: (10**400,),
    "no number": lambda: (math.nan,),
    "many": lambda: (1.0,) * 100_000,
    "a million": lambda: [0.5] * 1_000_000,
    "odd": lambda: (OddNumber(1.0),),
    "odd list": lambda: OddList([1.0]),
    "faceless": Faceless,
    "generator": lambda: iter(int, 1),
}


def _spoil(shown) -> None:
    """Assign to whatever of it can be read, and empty what can be emptied."""
    for name in [each for each in dir(type(shown)) if not each.startswith("_")]:
        if not callable(getattr(type(shown), name, None)):
            with contextlib.suppress(AttributeError, TypeError):
                setattr(shown, name, None)


def choosing(shown_band):
    """Spoil everything that a fairness policy is shown, and choose all the same."""
    first = next(iter(shown_band.flows))
    for shown in (shown_band, first, first.head, first.head.request):
        _spoil(shown)
    return first


def ordering(waiting):
    _spoil(waiting)
    return ()


def told(shown_band, flow, *waiting):
    for shown in (shown_band, flow, *waiting):
        _spoil(shown)


def let_go(bench: Bench) -> list[str]:
    """Have all wait, open the pool and let all go; whichever policy fails, each goes once."""
    for name in NAMES:
        assert bench.offer(name, flow=name[-1]).name == "QUEUED"
    bench.saturation = 0.0
    gone = bench.gone()
    assert sorted(gone) == NAMES
    assert bench.controller.waiting == 0
    assert bench.controller.bands.size_bytes == 0
    return gone


def bench_with(point: str, act) -> Bench:
    """With a policy that does this at a point, and nothing wrong elsewhere."""
    if point == "sort_key":
        return Bench(settings(template=band(ordering="bad")), bad=act)
    if point == "ceilings":
        return Bench(ceilings=act)
    first = lambda shown_band: next(iter(shown_band.flows))  # noqa: E731 - one of the policies in a line
    methods = {"choose": first} | {point: act}
    return Bench(settings(template=band(fairness="bad")), bad=methods)


@pytest.mark.parametrize("thrown", FAILURES, ids=lambda thrown: type(thrown).__name__)
@pytest.mark.parametrize("point", ["choose", "flow_changed", "dispatched", "sort_key", "ceilings"])
def test_whatever_a_policy_throws_each_request_goes_and_the_fault_is_its_own(point, thrown):
    def throw(*_arguments):
        raise thrown

    bench = bench_with(point, throw)
    assert let_go(bench) == NAMES
    assert {name for name, *_ in bench.telemetry.faults} == {"whole" if point == "ceilings" else "bad"}


ANSWERED = [(point, answer) for point in ("choose", "sort_key", "ceilings") for answer in ANSWERS]
ANSWERED.remove(("choose", "None"))  # it says that nothing of the band goes now


@pytest.mark.parametrize(("point", "answer"), ANSWERED)
def test_whatever_a_policy_answers_each_request_goes(point, answer):
    bench = bench_with(point, lambda *_arguments: ANSWERS[answer]())
    let_go(bench)
    assert {name for name, *_ in bench.telemetry.faults} == {"whole" if point == "ceilings" else "bad"}
    assert all(len(problem) < 1000 for *_, problem in bench.telemetry.faults)


@pytest.mark.parametrize(("point", "act"), [("choose", choosing), ("flow_changed", told), ("dispatched", told), ("sort_key", ordering)])
def test_a_policy_changes_nothing_of_what_it_is_shown(point, act):
    bench = bench_with(point, act)
    assert let_go(bench) == NAMES
    assert bench.telemetry.faults == []


def test_what_policies_are_shown_has_nothing_that_can_be_assigned():
    bench = Bench()
    bench.offer("r0")
    entry = bench.entries["r0"]
    for shown in (entry, entry.flow, entry.band):
        assert isinstance(shown, (type(entry), FlowQueue, BandQueue))
        for name in ("id", "priority", "size_bytes", "request", "arrival", "key", "private", "rules", "idle_since", "ttl_seconds", "state"):
            if hasattr(shown, name):
                with pytest.raises(AttributeError):
                    setattr(shown, name, None)


class Blocks:
    """A fairness policy that takes half a second at a point as long as it is told to; serves the flow whose name comes last."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.blocks = True
        self.calls = 0
        self.heard: list[str] = []

    def methods(self):
        return {
            "choose": lambda band: self.act("choose", band, max(band.flows, key=lambda flow: flow.id)),
            "flow_changed": lambda band, flow: self.act("flow_changed", band, self.keep(band, flow)),
            "dispatched": lambda band, flow, waiting: self.act("dispatched", band, None),
        }

    def keep(self, band, flow):
        self.heard.append(flow.id)
        band.private[flow.id] = flow.head

    def act(self, point, band, answer):
        self.calls += 1
        if point == self.point and self.blocks:
            self.bench.now += 0.5
            self.clock.seconds += 0.5
        return answer


@pytest.fixture
def blocking(monkeypatch):
    """A bench with a policy that blocks at a point, and a clock that it moves."""

    class Clock:
        seconds = 0.0

        def __call__(self):
            return self.seconds

    def make(point: str) -> tuple[Bench, Blocks]:
        policy = Blocks(point)
        clock = Clock()
        monkeypatch.setattr("endpick.host.boundary.perf_counter", clock)
        monkeypatch.setattr("endpick.flow_control.calls.perf_counter", clock)
        monkeypatch.setattr(Bench, "budget_seconds", 0.05)
        bench = policy.bench = Bench(settings(template=band(fairness="bad"), ttl_seconds=0.0), bad=policy.methods())
        policy.clock = clock
        return bench, policy

    return make


@pytest.mark.parametrize("point", ["choose", "flow_changed", "dispatched"])
def test_a_fairness_policy_that_blocks_is_told_nothing_while_it_is_left_out(blocking, point):
    bench, policy = blocking(point)
    for name in NAMES:
        bench.offer(name, flow=name)
    bench.saturation = 0.0
    assert sorted(bench.gone()) == NAMES
    assert bench.now <= 1000.0 + 3 * 0.5, "three late calls, and no more, are made"
    called = policy.calls
    assert bench.controller.may_pass(bench.request("later"), 10)
    assert policy.calls == called


def test_a_fairness_policy_that_was_left_out_is_told_of_all_that_waits_before_it_is_asked(blocking):
    bench, policy = blocking("flow_changed")
    bench.saturation = 2.0
    for name in NAMES:
        bench.offer(name, flow=name)
    kept = bench.entries["r5"].band.private
    assert kept == {}, "what it kept before it missed three of them is void"

    policy.blocks = False
    policy.heard.clear()
    bench.now += 5.0
    bench.saturation = 0.0
    assert bench.gone() == ["r5", "r4", "r3", "r2", "r1", "r0"], "as the policy says, not as they came"
    assert policy.heard[:6] == NAMES


def test_of_many_flows_a_policy_is_told_in_parts_and_meanwhile_the_band_is_served_as_requests_came(blocking):
    bench, policy = blocking("flow_changed")
    bench.saturation = 2.0
    for name in NAMES:
        bench.offer(name, flow=name)
    policy.blocks = False
    policy.heard.clear()
    bench.now += 5.0
    bench.saturation = 0.0
    keep = policy.keep

    def slowly(shown_band, flow):
        keep(shown_band, flow)
        policy.clock.seconds += 0.0015

    policy.keep = slowly
    assert bench.controller.attempt()
    assert bench.told == [("r0", "CHOSEN")]
    assert policy.heard == ["r0", "r1", "r0"], "two are told of before the time is up, and one has gone"
    assert bench.gone() == ["r1", "r2", "r5", "r4", "r3"]
