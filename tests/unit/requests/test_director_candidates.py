"""Candidates: subset hints, shedding, candidate filters and admitters."""

from __future__ import annotations

import numpy as np
import pytest

from endpick.api import Rejection
from endpick.data.table import EndpointTable
from endpick.host.kinds import OnFault
from endpick.requests.model import Refused
from unit.requests.stage import Stage, admitter_of, candidate_filter_of, detector_of

NO_CANDIDATES = Refused(
    503, "ServiceUnavailable", "failed to find endpoint candidates for serving the request", reason="rejected-no-endpoints"
)
SATURATED = Refused(429, "ResourceExhausted", "system saturated, sheddable request dropped", reason="rejected-saturated")
OBJECTIVES = {"batch": -1, "urgent": 5}


@pytest.mark.parametrize(
    ("subset", "allowed"),
    [
        (None, {"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"}),
        (("10.0.0.1:8000",), {"10.0.0.1:8000"}),
        (("10.0.0.1:8000", "10.0.0.3:8000"), {"10.0.0.1:8000", "10.0.0.3:8000"}),
        (("10.0.0.2",), {"10.0.0.2:8000"}),
    ],
)
def test_subset_hint_limits_candidates(subset, allowed):
    stage = Stage()
    assert {stage.route(subset=subset).destinations[0] for _ in range(60)} == allowed
    assert {stage.route(None, subset=subset).destinations[0] for _ in range(60)} == allowed


@pytest.mark.parametrize("subset", [(), ("192.168.1.99:8000",), ("10.0.0.1:9999",)])
def test_subset_hint_without_candidates_is_503(subset):
    assert Stage().refuse(subset=subset) == NO_CANDIDATES
    assert Stage().refuse(None, subset=subset) == NO_CANDIDATES


def test_empty_pool_is_503():
    table = EndpointTable(clock=lambda: 0.0)
    assert Stage(table=table).refuse() == NO_CANDIDATES
    assert Stage(table=table).refuse(None) == NO_CANDIDATES


@pytest.mark.parametrize("header", ["x_llm_d_inference_objective", "x_gateway_inference_objective"])
def test_sheddable_request_is_refused_by_a_full_pool(header):
    stage = Stage(detector=detector_of(1.0), objectives=OBJECTIVES)
    assert stage.refuse(**{header: "batch"}) == SATURATED
    assert stage.route(**{header: "urgent"})
    assert stage.route(**{header: "unheard of"})
    assert stage.route()
    assert [decided[3] for decided in stage.telemetry.decided] == [5, 0, 0]


def test_sheddable_request_passes_while_there_is_room():
    assert Stage(detector=detector_of(0.99), objectives=OBJECTIVES).route(x_llm_d_inference_objective="batch")
    stage = Stage(detector=detector_of(0.0), objectives=OBJECTIVES)
    assert stage.refuse(x_llm_d_inference_objective="batch", subset=()) == SATURATED
    assert stage.refuse(subset=()) == NO_CANDIDATES


def test_nothing_is_shed_without_a_detector():
    assert Stage(objectives=OBJECTIVES).route(x_llm_d_inference_objective="batch")


def test_candidate_filters_see_the_same_candidates():
    seen = []

    def keep(*positions):
        def filter_candidates(endpoints):
            seen.append(len(endpoints))
            return endpoints.take(positions)

        return filter_candidates

    stage = Stage(candidate_filters=[candidate_filter_of(keep(0, 1), "a"), candidate_filter_of(keep(2, 1), "b")])
    assert stage.route().destinations == ("10.0.0.2:8000",)
    assert seen == [3, 3]


def test_candidate_filters_without_common_endpoint_are_503():
    stage = Stage(
        candidate_filters=[
            candidate_filter_of(lambda endpoints: endpoints.take([0]), "a"),
            candidate_filter_of(lambda endpoints: endpoints.take([1]), "b"),
        ]
    )
    assert stage.refuse() == NO_CANDIDATES


@pytest.mark.parametrize("bad", [lambda endpoints: 1 / 0, lambda endpoints: "x", lambda endpoints: np.ones(99, dtype=bool)])
def test_candidate_filter_fault_follows_on_fault(bad):
    keeps_first = candidate_filter_of(lambda endpoints: endpoints.take([0]), "good")
    assert Stage(candidate_filters=[candidate_filter_of(bad, "bad"), keeps_first]).refuse() == Refused(
        500, "Internal", "plugin 'bad' failed"
    )
    assert Stage(candidate_filters=[candidate_filter_of(bad, "bad", OnFault.SKIP), keeps_first]).route().destinations == ("10.0.0.1:8000",)


def test_first_rejecting_admitter_decides():
    asked = []
    admitters = [
        admitter_of(lambda request: asked.append("a"), "a"),
        admitter_of(lambda request: asked.append("b") or Rejection("not today", 403, "closed"), "b"),
        admitter_of(lambda request: asked.append("c"), "c"),
    ]
    assert Stage(admitters=admitters).refuse() == Refused(403, "Forbidden", "not today", "closed")
    assert asked == ["a", "b"]


@pytest.mark.parametrize("bad", [lambda request: 1 / 0, lambda request: False])
def test_admitter_fault_follows_on_fault(bad):
    assert Stage(admitters=[admitter_of(bad, "bad")]).refuse() == Refused(500, "Internal", "plugin 'bad' failed")
    assert Stage(admitters=[admitter_of(bad, "bad", OnFault.SKIP)]).route()


@pytest.mark.parametrize("bad", [lambda endpoints: 1 / 0, lambda endpoints: None, lambda endpoints: "full"])
def test_detector_fault_follows_on_fault(bad):
    assert Stage(detector=detector_of(bad), objectives=OBJECTIVES).route(x_llm_d_inference_objective="batch")
    refusing = Stage(detector=detector_of(bad, OnFault.REFUSE), objectives=OBJECTIVES)
    assert refusing.refuse(x_llm_d_inference_objective="batch").status == 500
