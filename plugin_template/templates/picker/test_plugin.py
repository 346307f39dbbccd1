"""Tests of `{{ cookiecutter.plugin_type }}`."""

from __future__ import annotations

import random

import numpy as np
from endpick.api import PluginContext, ScoredEndpoints, ScoringState
from endpick.testing import make_request
from endpick.testing.pytest_plugin import MakeEndpoints
from endpick.testing.strategies import scored_endpoints
from hypothesis import given
from hypothesis import strategies as st

from {{ cookiecutter.__package }}.picker import (
    {{ cookiecutter.__parameters }},
    {{ cookiecutter.__class }},
)


def picked(candidates: ScoredEndpoints, choices: int, seed: int = 1) -> list[str]:
    parameters = {{ cookiecutter.__parameters }}(choices=choices)
    plugin = {{ cookiecutter.__class }}("it", parameters, PluginContext(random=random.Random(seed)))
    return [endpoint.name for endpoint in plugin.pick(make_request(), candidates, ScoringState())]


def test_best_of_the_drawn_is_first_and_the_others_are_fallbacks(make_endpoints: MakeEndpoints) -> None:
    candidates = ScoredEndpoints(make_endpoints(3), np.array([0.2, 0.9, 0.5]))

    assert picked(candidates, choices=3) == ["default/e1", "default/e2", "default/e0"]


@given(scored_endpoints(min_size=2), st.integers(0, 1000))
def test_worst_of_all_is_never_first_when_two_are_compared(candidates: ScoredEndpoints, seed: int) -> None:
    score = dict(zip((endpoint.name for endpoint in candidates.endpoints), candidates.scores.tolist(), strict=True))

    first, second = picked(candidates, choices=2, seed=seed)

    assert score[first] >= score[second]
