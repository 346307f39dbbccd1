"""The screener of silent endpoints."""

from __future__ import annotations

import pytest

from endpick.api import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, Endpoint, Endpoints, InferenceRequest, PluginContext
from endpick.data.table import EndpointTable
from endpick.scheduling.scheduler import as_view
from endpick_builtin.admission.admitters import SilentEndpointParameters, SilentEndpointScreener


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> EndpointTable:
    table = EndpointTable(clock, (WAITING_QUEUE_SIZE, KV_CACHE_USAGE))
    table.replace_all([Endpoint(f"default/{name}", "10.0.0.1", 8000 + n) for n, name in enumerate("abc")])
    return table


@pytest.fixture
def screener(clock: Clock) -> SilentEndpointScreener:
    return SilentEndpointScreener("silent", SilentEndpointParameters(), PluginContext(clock=clock))


def kept(screener: SilentEndpointScreener, table: EndpointTable) -> list[str]:
    endpoints = table.view()
    answer = as_view(endpoints, screener.filter_candidates(InferenceRequest("r"), endpoints))
    assert isinstance(answer, Endpoints)
    return [endpoint.name for endpoint in answer]


def report(table: EndpointTable, *names: str) -> None:
    for endpoint in table.generation.endpoints:
        if endpoint.name.removeprefix("default/") in names:
            table.write(WAITING_QUEUE_SIZE, endpoint, 0.0)


def test_silent_endpoint_is_excluded(screener, table, clock):
    report(table, "a", "b", "c")
    clock.now = 2.1
    report(table, "a", "c")

    assert kept(screener, table) == ["default/a", "default/c"]


def test_silence_within_the_tolerance_is_accepted(screener, table, clock):
    report(table, "a", "b", "c")
    clock.now = 2.0

    assert kept(screener, table) == ["default/a", "default/b", "default/c"]


def test_one_fresh_metric_is_enough(screener, table, clock):
    report(table, "a", "b", "c")
    clock.now = 5.0
    report(table, "a", "c")
    table.write(KV_CACHE_USAGE, table.generation.endpoints[1], 0.5)

    assert kept(screener, table) == ["default/a", "default/b", "default/c"]


def test_endpoint_that_never_reported_stays(screener, table, clock):
    report(table, "a", "b")
    clock.now = 5.0
    report(table, "a")

    assert kept(screener, table) == ["default/a", "default/c"]


def test_all_silent_endpoints_stay(screener, table, clock):
    report(table, "a", "b", "c")
    clock.now = 60.0

    assert kept(screener, table) == ["default/a", "default/b", "default/c"]


def test_empty_pool_is_accepted(screener, table):
    table.replace_all([])

    assert kept(screener, table) == []


def test_cached_answer_expires_with_the_tolerance(screener, table, clock):
    report(table, "a", "b", "c")
    clock.now = 1.0
    report(table, "a", "c")
    for clock.now in (1.0, 1.5, 2.0):
        assert kept(screener, table) == ["default/a", "default/b", "default/c"]
    clock.now = 2.1
    assert kept(screener, table) == ["default/a", "default/c"]


def test_answer_for_a_subset_is_not_cached(screener, table, clock):
    report(table, "a", "b", "c")
    clock.now = 3.0
    report(table, "a")
    some = table.view().take([0])
    assert screener.filter_candidates(InferenceRequest("r"), some) is some
    assert kept(screener, table) == ["default/a"]


def test_new_member_invalidates_the_cached_answer(screener, table, clock):
    report(table, "a", "b", "c")
    assert len(kept(screener, table)) == 3
    table.upsert(Endpoint("default/d", "10.0.0.1", 9000))
    report(table, "d")
    clock.now = 1.9
    report(table, "a", "b", "c")
    assert len(kept(screener, table)) == 4
    clock.now = 2.1
    assert kept(screener, table) == ["default/a", "default/b", "default/c"]
