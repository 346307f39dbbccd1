"""Who may serve a request at all: subset hints, shedding, screeners and admitters."""

from __future__ import annotations

import numpy as np
import pytest

from endpick.api import Rejection
from endpick.datalayer.table import EndpointTable
from endpick.plugins.instance import OnFault
from endpick.requests.decision import Refused
from endpick.requests.director import DirectorSettings
from unit.requests.stage import Stage, admitter_of, detector_of, screener_of

NO_CANDIDATES = Refused(
    503, "ServiceUnavailable", "failed to find endpoint candidates for serving the request", reason="rejected-no-endpoints"
)
SATURATED = Refused(429, "ResourceExhausted", "system saturated, sheddable request dropped", reason="rejected-saturated")
SHEDDABLE = DirectorSettings(objectives={"batch": -1, "urgent": 5})


@pytest.mark.parametrize(
    ("subset", "allowed"),
    [
        (None, {"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"}),
        (("10.0.0.1:8000",), {"10.0.0.1:8000"}),
        (("10.0.0.1:8000", "10.0.0.3:8000"), {"10.0.0.1:8000", "10.0.0.3:8000"}),
        (("10.0.0.2",), {"10.0.0.2:8000"}),
    ],
)
def test_a_subset_hint_limits_the_candidates_with_and_without_a_body(subset, allowed):
    stage = Stage()
    assert {stage.route(subset=subset).destinations[0] for _ in range(60)} == allowed
    assert {stage.route(None, subset=subset).destinations[0] for _ in range(60)} == allowed


@pytest.mark.parametrize("subset", [(), ("192.168.1.99:8000",), ("10.0.0.1:9999",)])
def test_a_subset_hint_that_allows_nobody_is_503(subset):
    assert Stage().refuse(subset=subset) == NO_CANDIDATES
    assert Stage().refuse(None, subset=subset) == NO_CANDIDATES


def test_an_empty_pool_is_503():
    table = EndpointTable(clock=lambda: 0.0)
    assert Stage(table=table).refuse() == NO_CANDIDATES
    assert Stage(table=table).refuse(None) == NO_CANDIDATES


@pytest.mark.parametrize("header", ["x_llm_d_inference_objective", "x_gateway_inference_objective"])
def test_a_sheddable_request_is_dropped_while_the_pool_is_full(header):
    stage = Stage(detector=detector_of(1.0), settings=SHEDDABLE)
    assert stage.refuse(**{header: "batch"}) == SATURATED
    assert stage.route(**{header: "urgent"})
    assert stage.route(**{header: "unheard of"})
    assert stage.route()
    assert [decided[3] for decided in stage.instruments.decided] == [5, 0, 0]


def test_a_sheddable_request_passes_while_there_is_room_and_is_dropped_when_there_is_nobody():
    assert Stage(detector=detector_of(0.99), settings=SHEDDABLE).route(x_llm_d_inference_objective="batch")
    stage = Stage(detector=detector_of(0.0), settings=SHEDDABLE)
    assert stage.refuse(x_llm_d_inference_objective="batch", subset=()) == SATURATED
    assert stage.refuse(subset=()) == NO_CANDIDATES


def test_without_a_detector_nothing_is_shed():
    assert Stage(settings=SHEDDABLE).route(x_llm_d_inference_objective="batch")


def test_screeners_all_see_the_same_candidates_and_what_all_keep_remains():
    seen = []

    def keep(*positions):
        def screen(endpoints):
            seen.append(len(endpoints))
            return endpoints.take(positions)

        return screen

    stage = Stage(screeners=[screener_of(keep(0, 1), "a"), screener_of(keep(2, 1), "b")])
    assert stage.route().destinations == ("10.0.0.2:8000",)
    assert seen == [3, 3]


def test_screeners_that_agree_on_nobody_are_503():
    stage = Stage(
        screeners=[screener_of(lambda endpoints: endpoints.take([0]), "a"), screener_of(lambda endpoints: endpoints.take([1]), "b")]
    )
    assert stage.refuse() == NO_CANDIDATES


@pytest.mark.parametrize("bad", [lambda endpoints: 1 / 0, lambda endpoints: "x", lambda endpoints: np.ones(99, dtype=bool)])
def test_a_screener_that_fails_refuses_or_is_skipped_as_its_policy_says(bad):
    keeps_first = screener_of(lambda endpoints: endpoints.take([0]), "good")
    assert Stage(screeners=[screener_of(bad, "bad"), keeps_first]).refuse() == Refused(500, "Internal", "plugin 'bad' failed")
    assert Stage(screeners=[screener_of(bad, "bad", OnFault.SKIP), keeps_first]).route().destinations == ("10.0.0.1:8000",)


def test_the_first_admitter_that_rejects_decides_with_its_own_words():
    asked = []
    admitters = [
        admitter_of(lambda request: asked.append("a"), "a"),
        admitter_of(lambda request: asked.append("b") or Rejection("not today", 403, "closed"), "b"),
        admitter_of(lambda request: asked.append("c"), "c"),
    ]
    assert Stage(admitters=admitters).refuse() == Refused(403, "Forbidden", "not today", "closed")
    assert asked == ["a", "b"]


@pytest.mark.parametrize("bad", [lambda request: 1 / 0, lambda request: False])
def test_an_admitter_that_fails_refuses_or_is_skipped_as_its_policy_says(bad):
    assert Stage(admitters=[admitter_of(bad, "bad")]).refuse() == Refused(500, "Internal", "plugin 'bad' failed")
    assert Stage(admitters=[admitter_of(bad, "bad", OnFault.SKIP)]).route()


@pytest.mark.parametrize("bad", [lambda endpoints: 1 / 0, lambda endpoints: None, lambda endpoints: "full"])
def test_a_detector_that_fails_sheds_nobody_unless_its_policy_says_so(bad):
    assert Stage(detector=detector_of(bad), settings=SHEDDABLE).route(x_llm_d_inference_objective="batch")
    refusing = Stage(detector=detector_of(bad, OnFault.REFUSE), settings=SHEDDABLE)
    assert refusing.refuse(x_llm_d_inference_objective="batch").status == 500
