"""The saturation by role, and its cache."""

from __future__ import annotations

import pytest

from endpick.api import SaturationDetector
from endpick.api.access import Access
from endpick.api.keys import INFLIGHT_REQUESTS, KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from endpick.flow_control.policies import FRESH_SECONDS, PoolSaturation
from endpick.host.boundary import bind
from endpick.host.methods import SATURATION
from endpick_builtin.admission.detectors import ConcurrencyDetector
from unit.flow_control.queue_bench import Bench
from unit.scheduling.workbench import KEYS, Recording, instance, pool

LOAD = {"pool/e0": 0.2, "pool/e1": 0.9, "pool/e2": 0.4}


@pytest.mark.parametrize(
    ("roles", "effective", "prefill", "decode"),
    [
        ((None, None, None), 0.5, None, 0.5),
        (("prefill", "decode", None), 0.65, 0.2, 0.65),
        (("prefill", "encode", "prefill"), 0.3, 0.3, None),
        (("both", "encode-prefill", "prefill-decode"), 0.5, 0.5, 0.3),
        (("encode", "encode", "nonsense"), 0.5, None, None),
        (("encode-prefill-decode", "decode", "encode"), 0.55, 0.2, 0.55),
    ],
)
def test_the_fuller_stage_counts(roles, effective, prefill, decode):
    def mean(endpoints):
        return sum(LOAD[endpoint.name] for endpoint in endpoints) / len(endpoints)

    bench = Bench(saturation=mean)
    bench.grow(3, {n: {"llm-d.ai/role": role} for n, role in enumerate(roles) if role is not None})
    reading = bench.controller.read_saturation()
    assert reading.effective == pytest.approx(effective)
    assert reading.prefill == (None if prefill is None else pytest.approx(prefill))
    assert reading.decode == (None if decode is None else pytest.approx(decode))
    assert bench.log.readings == [reading]


def saturation_of(plugin: type, table, clock, **parameters):
    built = instance(plugin, **parameters)
    access = Access()
    return PoolSaturation(bind(built, SATURATION, Recording()), table, access, clock)


def test_a_reading_is_kept_until_its_columns_change():
    now = [100.0]
    table = pool({INFLIGHT_REQUESTS: [0, 0], WAITING_QUEUE_SIZE: [1, 2]})
    saturation = saturation_of(ConcurrencyDetector, table, lambda: now[0], maxConcurrency=2)
    before = saturation.read()
    assert before.effective == 0.0
    first, second = table.generation.endpoints
    table.writer(None).set(WAITING_QUEUE_SIZE, 9.0, first)
    assert not saturation.has_changed()
    assert saturation.read() is before
    table.writer(None).set(INFLIGHT_REQUESTS, 1.0, second)
    assert saturation.has_changed()
    changed = saturation.read()
    assert changed.effective == 0.25
    now[0] += FRESH_SECONDS
    assert saturation.read().effective == 0.25
    assert saturation.read() is not changed, "data get old without changing"
    table.remove(first.name)
    assert saturation.read().effective == 0.5


class Counting(SaturationDetector):
    """One that keeps its own books."""

    asked = 0

    def saturation(self, endpoints):
        type(self).asked += 1
        return 0.0


def test_a_detector_without_columns_is_called_each_time():
    saturation = saturation_of(Counting, pool({KV_CACHE_USAGE: [0.1]}), lambda: 100.0)
    before = Counting.asked
    saturation.read()
    saturation.read()
    assert Counting.asked == before + 2
    assert not saturation.has_changed()


def test_an_empty_pool_is_full():
    saturation = saturation_of(Counting, pool({key: [] for key in KEYS}), lambda: 100.0)
    before = Counting.asked
    reading = saturation.read()
    assert (reading.effective, reading.is_empty) == (1.0, True)
    assert Counting.asked == before
