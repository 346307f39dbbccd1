"""Tests of `{{ cookiecutter.plugin_type }}`."""

from __future__ import annotations

import numpy as np
from endpick.api import WAITING_QUEUE_SIZE, Endpoints, FloatArray, PluginContext, ScoringState
from endpick.testing import make_request
from endpick.testing.pytest_plugin import MakeEndpoints
from endpick.testing.strategies import endpoints
from hypothesis import given

from {{ cookiecutter.__package }}.scorer import (
    {{ cookiecutter.__parameters }},
    {{ cookiecutter.__class }},
)


def scores(candidates: Endpoints, cap: int) -> FloatArray:
    parameters = {{ cookiecutter.__parameters }}(cap=cap)
    plugin = {{ cookiecutter.__class }}("it", parameters, PluginContext())
    return plugin.score(make_request(), candidates, ScoringState())


def test_shorter_queues_score_higher(make_endpoints: MakeEndpoints) -> None:
    candidates = make_endpoints({WAITING_QUEUE_SIZE: [0, 5, 10, 99, None]})

    assert scores(candidates, cap=10).tolist() == [1.0, 0.5, 0.0, 0.0, 0.0]


@given(endpoints(WAITING_QUEUE_SIZE))
def test_longer_queue_never_scores_higher(candidates: Endpoints) -> None:
    by_length = np.argsort(candidates[WAITING_QUEUE_SIZE])

    assert (np.diff(scores(candidates, cap=100)[by_length]) <= 0).all()
