"""The worst that may come: tenants that flood, detectors that flap or always say full, policies that take for ever, silent servers."""

from __future__ import annotations

import random

import numpy as np
import pytest

from endpick.api import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from endpick_builtin.admission.detectors import UtilizationDetector
from endpick_builtin.scorers.load import share_left
from unit.flow_control.queue_bench import Bench, band, settings
from unit.scheduling.workbench import instance


def test_a_flood_fills_the_band_it_shares_and_no_other():
    bench = Bench(settings(bands={5: band(max_requests=10)}))
    events = [bench.offer(f"flood {number}", "flood", priority=5).name for number in range(1000)]
    assert (events.count("QUEUED"), events.count("NO_ROOM")) == (10, 990)
    assert bench.offer("trickle", "trickle", priority=5).name == "NO_ROOM"
    assert bench.offer("elsewhere", "trickle", priority=0).name == "QUEUED"


def test_a_detector_that_flaps_loses_nothing_and_lets_nothing_go_while_it_says_full():
    chance = random.Random(3)
    said = []

    def flapping(endpoints):
        said.append(chance.choice((0.0, 0.999, 1.0, 7.0)))
        return said[-1]

    bench = Bench(settings(template=band(max_requests=300)), saturation=flapping)
    waiting = [f"r{number}" for number in range(300)]
    for name in waiting:
        assert bench.offer(name, flow=name[-1]).name == "QUEUED"
    for _ in range(5000):
        before = len(bench.told)
        bench.now += 0.02
        went = bench.controller.attempt()
        assert went == (len(bench.told) > before) == (said[-1] < 1.0 and before < len(waiting))
    assert sorted(name for name, _ in bench.told) == sorted(waiting)


def test_while_a_detector_always_says_full_each_request_waits_for_its_time_and_is_told():
    bench = Bench(settings(template=band(max_requests=50)), saturation=float("inf"))
    for number in range(60):
        bench.offer(f"r{number}")
    for _ in range(100):
        assert not bench.controller.attempt()
    assert (bench.controller.waiting, len(bench.log.refusals)) == (50, 10)
    bench.now += 60.0
    assert bench.controller.sweep(1000) == 50
    assert {outcome for _, outcome in bench.log.ends} == {"EvictedTTL"}
    assert bench.controller.bands.size_bytes == 0


class Impatient(Bench):
    """Every call takes too long."""

    budget_seconds = 0.0


def test_a_fairness_policy_that_takes_too_long_is_left_out_and_its_band_served_as_requests_came():
    def slowest(band):
        flows = list(band.flows)
        return max(flows, key=lambda flow: sum(other.head.arrival <= flow.head.arrival for other in flows))

    bench = Impatient(settings(template=band(fairness="slow")), slow=slowest)
    names = [f"r{number}" for number in range(50)]
    for name in names:
        bench.offer(name, flow=name)
    bench.saturation = 0.0
    gone = bench.gone()
    assert gone[0] == "r49", "it is asked at first"
    left = [name for name in names if name not in gone[:10]]
    assert gone[10:] == left, "and is not any more"


class Reporting(Bench):
    """Judged by what endpoints report."""

    keys = (WAITING_QUEUE_SIZE, KV_CACHE_USAGE)

    def __init__(self, **keywords) -> None:
        super().__init__(**keywords)
        self.controller.reconfigure(self.rules(settings(), instance(UtilizationDetector)))


def test_requests_wait_for_metrics_that_never_come_and_go_with_the_first():
    bench = Reporting()
    bench.offer("waits")
    bench.offer("waits as well", "b")
    for _ in range(10):
        bench.now += 1.0
        assert not bench.controller.attempt()
    for endpoint in bench.table.generation.endpoints:
        bench.table.write(WAITING_QUEUE_SIZE, endpoint, 0.0)
        bench.table.write(KV_CACHE_USAGE, endpoint, 0.1)
    assert bench.gone() == ["waits", "waits as well"]
    bench.offer("too late")
    bench.now += 60.0
    assert not bench.controller.attempt(), "what was reported is stale by now"
    assert bench.controller.sweep(1000) == 1


@pytest.mark.parametrize(
    ("queue", "usage", "goes"),
    [(-np.inf, -np.inf, False), (np.inf, 0.0, True), (np.inf, 1.0, False), (0.0, np.inf, True), (-5.0, 0.0, True)],
)
def test_a_figure_that_no_server_means_counts_as_none_and_the_other_decides(queue, usage, goes):
    bench = Reporting(endpoints=1)
    bench.offer("waits")
    (endpoint,) = bench.table.generation.endpoints
    bench.table.write(WAITING_QUEUE_SIZE, endpoint, queue)
    bench.table.write(KV_CACHE_USAGE, endpoint, usage)
    assert bench.controller.attempt() is goes


def test_scores_of_a_usage_that_no_server_means_are_finite():
    usage = np.array([-np.inf, -1.0, 0.0, 0.25, 1.0, 3.0, np.inf, np.nan])
    assert share_left(usage).tolist() == [1.0, 1.0, 1.0, 0.75, 0.0, 0.0, 0.0, 0.0]


class Faceless:
    @property
    def __class__(self):
        raise SystemExit(1)


class Unequal(tuple):
    __eq__ = __iter__ = __len__ = lambda *_: 1 / 0
    __hash__ = tuple.__hash__


class Unordered(float):
    __lt__ = __gt__ = __le__ = lambda *_: 1 / 0


@pytest.mark.parametrize("answer", [Faceless, Unequal, lambda: (10**400, Faceless()), lambda: (10**400,), lambda: ((),)])
def test_a_sort_key_that_cannot_be_looked_at_is_its_policys_fault_and_every_request_goes(answer):
    bench = Bench(settings(template=band(ordering="odd")), odd=lambda waiting: answer())
    for name in "abc":
        assert bench.offer(name).name == "QUEUED"
    bench.saturation = 0.0
    assert bench.gone() == ["a", "b", "c"]
    assert {name for name, *_ in bench.telemetry.faults} == {"odd"}


def test_numbers_of_a_policys_own_are_compared_as_numbers():
    bench = Bench(settings(template=band(ordering="odd")), odd=lambda waiting: (Unordered(-ord(waiting.request.id)),))
    for name in "abc":
        bench.offer(name)
    bench.saturation = 0.0
    assert bench.gone() == ["c", "b", "a"]
    assert bench.telemetry.faults == []


@pytest.mark.parametrize("answer", [Faceless, lambda: [Unordered(0.5)], lambda: Unequal((1.0,)), lambda: [Faceless()]])
def test_ceilings_that_cannot_be_looked_at_are_their_policys_fault(answer):
    bench = Bench(ceilings=lambda saturation, priorities: answer())
    bench.offer("a")
    bench.saturation = 0.0
    assert bench.gone() == ["a"]
    assert {name for name, *_ in bench.telemetry.faults} == {"whole"}


@pytest.mark.parametrize("answer", [Faceless, lambda: 10**400, lambda: Unequal((1.0,))])
def test_a_saturation_that_cannot_be_looked_at_holds_nothing_up(answer):
    bench = Bench(saturation=lambda endpoints: answer())
    bench.offer("a")
    assert bench.gone() == ["a"]
    assert {name for name, *_ in bench.telemetry.faults} == {"detector"}


@pytest.mark.parametrize("answer", [Faceless, lambda: Unequal((1.0,))])
def test_a_choice_that_cannot_be_looked_at_is_its_policys_fault(answer):
    bench = Bench(settings(template=band(fairness="odd")), odd=lambda band: answer())
    bench.offer("a")
    bench.saturation = 0.0
    assert bench.gone() == ["a"]
    assert {name for name, *_ in bench.telemetry.faults} == {"odd"}
