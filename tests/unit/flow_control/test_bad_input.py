"""Floods, flapping detectors, full pools, and missing or impossible metrics."""

from __future__ import annotations

import random

import numpy as np
import pytest

from endpick.api import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from endpick.flow_control.queues import WaitEnd
from endpick_builtin.admission.detectors import UtilizationDetector
from endpick_builtin.scorers.load import share_left
from unit.flow_control.queue_bench import Bench, band, settings
from unit.scheduling.workbench import instance


def test_a_flood_fills_only_its_own_band():
    bench = Bench(settings(bands={5: band(max_requests=10)}))
    events = [bench.offer(f"flood {number}", "flood", priority=5) for number in range(1000)]
    assert (events.count(None), events.count(WaitEnd.NO_ROOM)) == (10, 990)
    assert bench.offer("trickle", "trickle", priority=5) is WaitEnd.NO_ROOM
    assert bench.offer("other band", "trickle", priority=0) is None


def test_a_flapping_detector_loses_no_request():
    chance = random.Random(3)
    said = []

    def flapping(endpoints):
        said.append(chance.choice((0.0, 0.999, 1.0, 7.0)))
        return said[-1]

    bench = Bench(settings(template=band(max_requests=300)), saturation=flapping)
    waiting = [f"r{number}" for number in range(300)]
    for name in waiting:
        assert bench.offer(name, flow=name[-1]) is None
    for _ in range(5000):
        before = len(bench.ended)
        bench.now += 0.02
        went = bench.controller.dispatch()
        assert went == (len(bench.ended) > before) == (said[-1] < 1.0 and before < len(waiting))
    assert sorted(name for name, _ in bench.ended) == sorted(waiting)


def test_a_pool_that_stays_full_expires_every_request():
    bench = Bench(settings(template=band(max_requests=50)), saturation=float("inf"))
    for number in range(60):
        bench.offer(f"r{number}")
    for _ in range(100):
        assert not bench.controller.dispatch()
    assert (bench.controller.waiting, len(bench.log.refusals)) == (50, 10)
    bench.now += 60.0
    assert bench.controller.expire() == 50
    assert {outcome for _, outcome in bench.log.ends} == {"EvictedTTL"}
    assert bench.controller.bands.size_bytes == 0


class Reporting(Bench):
    """Judged by what endpoints report."""

    keys = (WAITING_QUEUE_SIZE, KV_CACHE_USAGE)

    def __init__(self, **keywords) -> None:
        super().__init__(**keywords)
        self.detector = instance(UtilizationDetector)
        self.reconfigure(settings())


def test_requests_wait_for_the_first_metrics():
    bench = Reporting()
    bench.offer("waits")
    bench.offer("waits as well", "b")
    for _ in range(10):
        bench.now += 1.0
        assert not bench.controller.dispatch()
    for endpoint in bench.table.generation.endpoints:
        bench.table.write(WAITING_QUEUE_SIZE, endpoint, 0.0)
        bench.table.write(KV_CACHE_USAGE, endpoint, 0.1)
    assert bench.gone() == ["waits", "waits as well"]
    bench.offer("too late")
    bench.now += 60.0
    assert not bench.controller.dispatch(), "what was reported is stale by now"
    assert bench.controller.expire() == 1


@pytest.mark.parametrize(
    ("queue", "usage", "goes"),
    [(-np.inf, -np.inf, False), (np.inf, 0.0, True), (np.inf, 1.0, False), (0.0, np.inf, True), (-5.0, 0.0, True)],
)
def test_an_impossible_metric_counts_as_missing(queue, usage, goes):
    bench = Reporting(endpoints=1)
    bench.offer("waits")
    (endpoint,) = bench.table.generation.endpoints
    bench.table.write(WAITING_QUEUE_SIZE, endpoint, queue)
    bench.table.write(KV_CACHE_USAGE, endpoint, usage)
    assert bench.controller.dispatch() is goes


def test_scores_of_impossible_usage_are_finite():
    usage = np.array([-np.inf, -1.0, 0.0, 0.25, 1.0, 3.0, np.inf, np.nan])
    assert share_left(usage).tolist() == [1.0, 1.0, 1.0, 0.75, 0.0, 0.0, 0.0, 0.0]
