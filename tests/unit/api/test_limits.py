"""`Limits`: what a plugin counts and tells when it refuses something."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from endpick.api import Limit, Limits, PluginContext

LONG = Limit("maxBytes", "a page was refused: longer than maxBytes; raise it")
MANY = Limit("MOST_ROWS", "rows were left out: more than 7 (MOST_ROWS, fixed); send fewer")


def count(registry: CollectorRegistry, limit: Limit) -> float | None:
    return registry.get_sample_value("endpick_plugin_limits_total", {"limit": limit.name})


def test_each_limit_is_a_series_that_begins_at_nothing():
    registry = CollectorRegistry()
    limits = Limits(PluginContext(registry=registry), (LONG, MANY))
    assert (count(registry, LONG), count(registry, MANY)) == (0.0, 0.0)
    limits.acted(MANY, times=3)
    limits.acted(MANY)
    assert (count(registry, LONG), count(registry, MANY)) == (0.0, 4.0)


def test_each_is_told_twice_a_minute_at_most_with_how_often_it_acted_since(caplog):
    now = [0.0]
    limits = Limits(PluginContext(clock=lambda: now[0]), (LONG, MANY))
    for now[0], limit, about in ((0.0, LONG, "a"), (1.0, LONG, "b"), (2.0, MANY, ""), (29.9, LONG, "c"), (30.0, LONG, "d" * 1000)):
        limits.acted(limit, about=about)

    told = [(record.getMessage(), record.limit, record.times, record.about) for record in caplog.records]
    assert told == [(LONG.told, "maxBytes", 1, "a"), (MANY.told, "MOST_ROWS", 1, ""), (LONG.told, "maxBytes", 3, "d" * 200)]


def test_a_limit_that_was_not_declared_is_a_mistake_of_the_author():
    with pytest.raises(KeyError):
        Limits(PluginContext(), (LONG,)).acted(MANY)
