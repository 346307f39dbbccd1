"""The rollout screener."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from pydantic import ValidationError

from endpick.api import CycleState, ResponseHead
from endpick.api.access import Access
from endpick_builtin.admission.rollout import RolloutParameters, RolloutScreener
from unit.scheduling.workbench import REQUEST, instance, names, pool

REVISION, ROLE = "disaggregatedset.x-k8s.io/revision", "disaggregatedset.x-k8s.io/role"
SELECTORS = [
    {"name": "zone", "headerName": "X-Zone", "labelKey": "zone", "mode": "strict"},
    {"name": "rack", "headerName": "x-rack", "labelKey": "rack", "mode": "prefer"},
]


def labels(revision, role, **others):
    return {"app": "llama", REVISION: revision, ROLE: role, **others}


OLD = [labels("old", "prefill", zone="a"), labels("old", "decode", zone="a"), labels("old", "decode", zone="b")]
NEW = [labels("new", "decode", zone="b", rack="r1")]


def screener(mode="sum", roles=(), selectors=SELECTORS):
    gating = {"mode": mode, "requireRoles": {"values": roles}}
    scope = {"labelSelector": {"matchLabels": {"app": "llama"}}}
    return instance(RolloutScreener, scope=scope, headerSelectors=selectors, revisionGating=gating)


def kept(built, endpoints, **headers):
    view = pool(labels=endpoints).view(Access())
    request = replace(REQUEST, headers={name.replace("_", "-"): value for name, value in headers.items()})
    return names(view.where(built.plugin.filter_candidates(request, view)))


def share(built, revision, mode="sum"):
    labels = {"mode": mode, "revision": revision}
    return built.registry.get_sample_value("llm_d_epp_disaggregatedset_revision_gating_share", labels)


@pytest.mark.parametrize(("mode", "old_share"), [("sum", 3 / 4), ("max-role", 2 / 3)])
def test_screener_shares_requests_by_weight(mode, old_share):
    built = screener(mode)
    view = pool(labels=OLD + NEW).view(Access())
    drawn = Counter(tuple(names(view.where(built.plugin.filter_candidates(REQUEST, view)))) for _ in range(2000))

    assert set(drawn) == {("e0", "e1", "e2"), ("e3",)}
    assert drawn["e0", "e1", "e2"] == pytest.approx(2000 * old_share, abs=100)
    assert share(built, "old", mode) == pytest.approx(old_share)


def test_screener_excludes_incomplete_revisions():
    built = screener(roles=["prefill", "decode"])

    assert kept(built, OLD + NEW) == ["e0", "e1", "e2"]
    assert (share(built, "old"), share(built, "new")) == (1.0, 0.0)
    assert kept(built, NEW) == []
    assert (share(built, "old"), share(built, "new")) == (None, 0.0)


def test_strict_header_selects_endpoints_and_counts_misses():
    built = screener(roles=["decode"])

    assert kept(built, OLD + NEW, x_zone="b") == ["e2", "e3"]
    assert kept(screener(roles=["prefill"]), OLD + NEW, x_zone="b") == ["e2"]
    assert kept(built, OLD + NEW, x_zone="c") == []
    assert built.registry.get_sample_value("llm_d_epp_disaggregatedset_strict_header_no_match_total", {"selector": "zone"}) == 1.0


def test_preferred_and_empty_headers_select_nothing():
    assert kept(screener(), OLD, x_rack="r9", x_zone="") == ["e0", "e1", "e2"]


def test_screener_without_gating_applies_strict_headers():
    assert kept(screener("disabled"), OLD + NEW) == ["e0", "e1", "e2", "e3"]
    assert kept(screener("disabled"), OLD + NEW, x_zone="a") == ["e0", "e1"]


def test_screener_excludes_endpoints_without_revision():
    assert kept(screener(), [{**OLD[0], "app": "other"}, {"app": "llama"}]) == []
    assert kept(screener(), []) == []


def test_response_carries_labels_of_the_serving_endpoint():
    built, [endpoint] = screener(), pool(labels=NEW).view(Access())

    assert built.plugin.response_started(REQUEST, ResponseHead(200, {}, endpoint), CycleState()) == {"x-zone": "b", "x-rack": "r1"}
    assert built.plugin.response_started(REQUEST, ResponseHead(200, {}, None), CycleState()) == {}


def test_duplicate_selectors_are_refused():
    for field in ("name", "headerName"):
        twice = [SELECTORS[0], {**SELECTORS[1], field: SELECTORS[0][field].lower()}]
        with pytest.raises(ValidationError, match="two headerSelectors have the"):
            RolloutParameters.model_validate({"scope": {"labelSelector": {}}, "headerSelectors": twice, "revisionGating": {}})
