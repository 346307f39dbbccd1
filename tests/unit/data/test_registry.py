"""What a discovery reports is looked at where it reports it: nonsense is its own fault, and no other plugin meets it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from endpick.api import Endpoint
from endpick.api.discovery import ModelRewrite, ModelTarget
from endpick.data.discovery import Registry
from endpick.data.table import EndpointTable

A, B = Endpoint("a", "10.0.0.1", 80), Endpoint("b", "10.0.0.2", 80)


def rewrite(target) -> list:
    return [ModelRewrite((), (target,))]


WRONG = {
    "no endpoint": lambda registry: registry.upsert(None),
    "a text": lambda registry: registry.replace_all(["a"]),
    "no list": lambda registry: registry.replace_all(5),
    "a name that is none": lambda registry: registry.upsert(Endpoint(5, "10.0.0.3", 80)),
    "no name": lambda registry: registry.upsert(Endpoint("", "10.0.0.3", 80)),
    "a host with a line end": lambda registry: registry.upsert(Endpoint("c", "10.0.0.3\r\nx-evil: 1", 80)),
    "a host that is two": lambda registry: registry.upsert(Endpoint("c", "10.0.0.3,10.0.0.4", 80)),
    "a metrics address with a blank": lambda registry: registry.upsert(Endpoint("c", "10.0.0.3", 80, metrics_address="a b")),
    "a port that is a text": lambda registry: registry.upsert(Endpoint("c", "10.0.0.3", "80")),
    "a port that is none": lambda registry: registry.upsert(Endpoint("c", "10.0.0.3", 10**400)),
    "labels that are numbers": lambda registry: registry.upsert(Endpoint("c", "10.0.0.3", 80, {"a": 1})),
    "a priority that is a text": lambda registry: registry.set_objectives({"idle": "low"}),
    "a rewrite that is none": lambda registry: registry.set_rewrites([5]),
    "a weight that is a text": lambda registry: registry.set_rewrites(rewrite(ModelTarget("x", "1"))),
    "a weight below nothing": lambda registry: registry.set_rewrites(rewrite(ModelTarget("x", -1))),
}


@pytest.fixture
def table() -> EndpointTable:
    table = EndpointTable(lambda: 1.0)
    table.replace_all([A, B])
    table.set_objectives({"idle": -1})
    table.on_stand_by.append(lambda reason: pytest.fail(f"told to stand by: {reason!r}"))
    return table


@pytest.mark.parametrize("report", WRONG)
def test_invalid_report_raises_and_changes_nothing(table, report):
    before = table.generation
    with pytest.raises((TypeError, ValueError, AttributeError, SystemExit)):
        WRONG[report](Registry(table))

    assert table.generation is before
    assert table.rules.objectives == {"idle": -1}
    assert table.rules.rewrites == {}


REPORTS = {
    "upsert": lambda registry: registry.upsert(Endpoint("c", "10.0.0.3", 80)),
    "remove": lambda registry: registry.remove("a"),
    "replace_all": lambda registry: registry.replace_all([B]),
    "objectives": lambda registry: registry.set_objectives({"busy": 1}),
    "rewrites": lambda registry: registry.set_rewrites([ModelRewrite(("m",), (ModelTarget("x", 1),))]),
    "ready": Registry.ready,
    "stand_by": lambda registry: registry.stand_by("elsewhere"),
}


@pytest.mark.parametrize("report", REPORTS)
def test_report_from_another_thread_raises(table, report):
    before, registry = table.generation, Registry(table)
    with ThreadPoolExecutor(1) as thread, pytest.raises(RuntimeError, match="another thread"):
        thread.submit(REPORTS[report], registry).result(10)

    assert table.generation is before
    assert table.rules.objectives == {"idle": -1}
    assert table.rules.rewrites == {}
    assert not table.is_ready.is_set()


def test_what_is_right_is_taken_as_it_is(table):
    c = Endpoint("c", "10.0.0.3", 80, {"role": "decode"})
    registry = Registry(table)
    registry.replace_all(iter([A, c]))
    assert table.generation.endpoints == (A, c)
    registry.remove("a")
    assert table.generation.endpoints == (c,)
    registry.ready()
    assert table.is_ready.is_set()


def test_one_that_is_closed_hears_nothing(table):
    registry, before = Registry(table), table.generation
    registry.close()
    registry.replace_all([])
    registry.upsert(Endpoint("c", "10.0.0.3", 80))
    registry.remove("a")
    registry.set_objectives({})
    registry.set_rewrites(rewrite(ModelTarget("x", 1)))
    registry.stand_by("another serves")
    registry.ready()

    assert table.generation is before
    assert table.rules.objectives == {"idle": -1}
    assert not table.is_ready.is_set()
