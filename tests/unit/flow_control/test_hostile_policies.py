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
    """Have all wait, open the pool and let all go; whoever fails, each goes once."""
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
