"""What each built-in plugin costs per request stands in the benchmarks' results, and no scorer is above the limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from endpick.api import (
    Admitter,
    CandidateFilter,
    DataProducer,
    DisaggregationDecider,
    Filter,
    Parser,
    Picker,
    PreRequest,
    ProfileHandler,
    RequestHeaderProcessor,
    ResponseObserver,
    SaturationDetector,
    Scorer,
)
from endpick.api.flow_control import EvictionFilter, EvictionOrderingPolicy, FairnessPolicy, OrderingPolicy, UsageLimitPolicy
from endpick.host.discovery import discover
from endpick.host.loader import load
from endpick.host.resolution import Reference

RESULTS = (Path(__file__).parents[2] / "benchmarks/RESULTS.md").read_text()
OF_REQUESTS = (Filter, Scorer, Picker, Parser, Admitter, CandidateFilter, DataProducer, DisaggregationDecider, PreRequest, ProfileHandler)
BESIDE_THEM = (RequestHeaderProcessor, ResponseObserver, SaturationDetector)
POLICIES = (EvictionFilter, EvictionOrderingPolicy, FairnessPolicy, OrderingPolicy, UsageLimitPolicy)
LIMIT_MICROSECONDS = 100.0
WAITS = {"predicted-latency-producer", "burst-prefix-cache-producer"}
"""These wait for a service, or for a window of time; the results say so in their place."""


def section(title: str) -> str:
    """The text below a heading, up to the next one."""
    return RESULTS.split(f"\n{title}\n")[1].split("\n## ")[0].split("\n### ")[0]


def rows(title: str) -> Iterator[tuple[str, str, float, float]]:
    """Type, part, and microseconds at 16 and at 1000 endpoints of each row."""
    for name, part, _, few, many, _ in re.findall(r"^\| `([a-z0-9-]+)`[^|]*" + r"\| ([^|]+) " * 5 + r"\|$", section(title), re.MULTILINE):
        yield name, part, float(few), float(many)


MEASURED = [*rows("## Every filter, scorer and picker"), *rows("### Every other plugin of the request path")]
INSTALLED = {one.type: load(one, Reference(one.type), ()).loaded for one in discover() if one.is_builtin}


def types_of(*kinds: type) -> set[str]:
    """The types of these kinds, each under the name that it has today."""
    return {loaded.type for loaded in INSTALLED.values() if loaded is not None and issubclass(loaded.plugin, kinds)}


def test_every_plugin_that_a_request_meets_has_a_row():
    assert types_of(*OF_REQUESTS, *BESIDE_THEM) - types_of(*POLICIES) - {name for name, *_ in MEASURED} == WAITS


@pytest.mark.parametrize("name", sorted(WAITS))
def test_a_plugin_without_a_row_is_named_as_one_that_waits(name: str):
    assert f"`{name}`" in section("### Every other plugin of the request path").split("\n|")[0]


def test_every_policy_has_a_row():
    told = set(re.findall(r"^\| `([a-z0-9-]+)`", section("## Every policy of flow control"), re.MULTILINE))
    assert types_of(*POLICIES) - told == set()


def test_no_row_is_about_a_type_that_is_gone():
    assert {name for name, *_ in MEASURED} - INSTALLED.keys() == set()


def test_no_scorer_is_above_the_limit_at_1000_endpoints():
    scorers = {name: many for name, part, _, many in MEASURED if part == "scorer"}
    assert types_of(Scorer) - scorers.keys() == set()
    assert max(scorers.values()) <= LIMIT_MICROSECONDS
