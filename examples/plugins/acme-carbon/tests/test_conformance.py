"""Runs endpick's conformance kit."""

from __future__ import annotations

from collections.abc import Callable

from endpick.testing import parametrize_conformance

from acme_carbon.collector import CarbonCollector
from acme_carbon.keys import CARBON_INTENSITY
from acme_carbon.scorer import CarbonScorer
from acme_carbon.source import CarbonReport, CarbonSource

ZONES = {"a": 300.0, "b": 20.0}


@parametrize_conformance(
    [CarbonScorer, CarbonSource, CarbonCollector],
    payloads=[CarbonReport(ZONES)],
    samples={CARBON_INTENSITY: [ZONES]},
)
def test_conformance(check: Callable[[], None]) -> None:
    check()
