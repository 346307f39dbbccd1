"""The overload watch: metrics, log lines and health remarks."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry

from endpick.requests.memory import Memory
from endpick.serve.watchdog import OverloadWatch, available_bytes


@pytest.mark.asyncio
async def test_watch_measures_and_reports_the_stage(caplog):
    resident = [100]
    memory, registry = Memory(1000, lambda: resident[0]), CollectorRegistry()
    watch = OverloadWatch(memory, registry)
    watch.start()
    watch.stop()
    assert watch.remarks() == ()
    memory.shed, memory.refused = 3, 2
    resident[0] = 850
    with caplog.at_level(logging.INFO, "endpick.overload"):
        watch.start()
        watch.stop()
    assert watch.remarks() == ("short of memory: requests with negative priority get 429",)
    values = {
        (stage,): registry.get_sample_value("endpick_overload_stage", {"stage": stage}) for stage in ("normal", "shedding", "refusing")
    }
    assert values == {("normal",): 0, ("shedding",): 1, ("refusing",): 0}
    refusals = [registry.get_sample_value("endpick_overload_refusals_total", {"action": action}) for action in ("shed", "refused")]
    assert refusals == [3, 2]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_available_memory_is_known():
    assert available_bytes() > 1 << 24
