"""What `acme.cost-picker` picks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from endpick.api import PluginContext, ScoredEndpoints, ScoringState
from endpick.testing import make_request
from endpick.testing.pytest_plugin import MakeEndpoints
from endpick.testing.strategies import scored_endpoints
from hypothesis import given

from acme_cost.picker import CostParameters, CostPicker


def picked(candidates: ScoredEndpoints, tolerance: float = 0.1) -> list[str]:
    plugin = CostPicker("it", CostParameters(tolerance=tolerance), PluginContext())
    return [endpoint.name for endpoint in plugin.pick(make_request(), candidates, ScoringState())]


def test_cheapest_of_the_good_ones_is_first(make_endpoints: MakeEndpoints) -> None:
    labels = [{"cost": "4"}, {"cost": "2.5"}, {"cost": "0.1"}]
    candidates = ScoredEndpoints(make_endpoints(3, labels=labels), np.array([1.0, 0.95, 0.5]))

    assert picked(candidates, tolerance=0.1) == ["default/e1", "default/e0"]
    assert picked(candidates, tolerance=0.0) == ["default/e0"]
    assert picked(candidates, tolerance=0.5) == ["default/e2", "default/e1", "default/e0"]


@pytest.mark.parametrize("unknown", [{}, {"cost": "cheap"}, {"cost": "nan"}, {"cost": ""}])
def test_unknown_cost_is_the_highest(make_endpoints: MakeEndpoints, unknown: dict[str, str]) -> None:
    candidates = ScoredEndpoints(make_endpoints(2, labels=[unknown, {"cost": "1000"}]), np.array([1.0, 1.0]))

    assert picked(candidates) == ["default/e1", "default/e0"]


@given(scored_endpoints())
def test_without_costs_it_is_as_good_as_picking_the_best(candidates: ScoredEndpoints) -> None:
    score = dict(zip((endpoint.name for endpoint in candidates.endpoints), candidates.scores.tolist(), strict=True))

    assert math.isclose(score[picked(candidates)[0]], max(score.values()))
