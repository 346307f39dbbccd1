"""The rollout screener: shares, requests that belong together, headers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from pydantic import ValidationError

from endpick.api import CycleState, PluginContext, ResponseHead
from endpick.api.access import Access
from endpick_builtin.admission.rollout import RolloutParameters, RolloutScreener
from unit.scheduling.workbench import REQUEST, instance, names, pool

REVISION, ROLE = "disaggregatedset.x-k8s.io/revision", "disaggregatedset.x-k8s.io/role"
DECISION, SENT = "x-llm-d-revision-decision-id", "x-request-id"


def labels(revision, role):
    return {"app": "llama", REVISION: revision, ROLE: role}


OLD = [labels("old", "prefill"), labels("old", "decode"), labels("old", "decode")]
NEW = [labels("new", "prefill"), labels("new", "decode")]


def screener(**gating):
    gating = {"mode": "sum", "requiredRoles": ["prefill", "decode"], **gating}
    return instance(RolloutScreener, scope={"labelSelector": "app=llama"}, revisionGating=gating)


def view_of(endpoints):
    return pool(labels=endpoints).view(Access())


def kept(plugin, view, **headers):
    return names(view.where(plugin.filter_candidates(replace(REQUEST, headers=headers), view)))


def test_screener_shares_requests_by_weight():
    plugin, view = screener().plugin, view_of(OLD + NEW)
    drawn = Counter(tuple(kept(plugin, view)) for _ in range(2000))

    assert set(drawn) == {("e0", "e1", "e2"), ("e3", "e4")}
    assert drawn["e3", "e4"] == pytest.approx(2000 * 2 / 5, abs=120)


@pytest.mark.parametrize("headers", [{DECISION: "d", SENT: "varies"}, {SENT: "s"}])
def test_requests_that_belong_together_get_one_revision(headers):
    plugin, view = screener().plugin, view_of(OLD + NEW)
    answers = {tuple(kept(plugin, view, **headers)) for _ in range(40)}
    others = {tuple(kept(plugin, view, **{DECISION: str(number)})) for number in range(40)}

    assert len(answers) == 1
    assert len(others) == 2


def test_coordination_can_be_disabled():
    plugin, view = screener(disableCoordination=True).plugin, view_of(OLD + NEW)

    assert len({tuple(kept(plugin, view, **{DECISION: "d"})) for _ in range(60)}) == 2


def test_decision_for_a_vanished_revision_is_made_again():
    plugin = screener().plugin
    assert kept(plugin, view_of([*OLD, NEW[1]]), **{DECISION: "d"}) == ["e0", "e1", "e2"]
    assert kept(plugin, view_of([OLD[1], *NEW]), **{DECISION: "d"}) == ["e1", "e2"]


def test_every_picker_draws_the_same_revision_for_a_decision():
    one, other, view = screener().plugin, screener().plugin, view_of(OLD + NEW)
    for number in range(40):
        decision = {DECISION: str(number)}
        assert kept(one, view, **decision) == kept(other, view, **decision)


def test_decisions_are_told_to_other_pickers():
    parameters = screener(requiredRoles=["decode"]).plugin.parameters
    one, told, untold = (RolloutScreener("r", parameters, PluginContext(is_shared=True)) for _ in range(3))

    def chosen(plugin, pool):
        view = view_of(pool)
        return [kept(plugin, view, **{DECISION: str(number)})[0] == "e0" for number in range(60)]

    before = chosen(one, OLD * 4 + NEW)
    told.apply(one.drain_deltas(), "one")

    assert set(before) == {True, False}
    assert chosen(told, OLD + NEW * 8) == before
    assert chosen(untold, OLD + NEW * 8) != before, "the pool has changed, so it draws otherwise"


def test_decisions_outlast_a_change_of_the_pool_for_three_minutes():
    now = [0.0]
    parameters = RolloutParameters.model_validate(
        {"scope": {"labelSelector": "app=llama"}, "revisionGating": {"mode": "sum", "requiredRoles": ["decode"]}}
    )
    mostly_old, mostly_new = view_of(OLD * 4 + NEW), view_of(OLD + NEW * 8)

    def chosen(view, plugin=None):
        plugin = plugin or RolloutScreener("r", parameters, PluginContext(clock=lambda: now[0]))
        return {str(number): len(kept(plugin, view, **{DECISION: str(number)})) == len(OLD) * 4 for number in range(20)}, plugin

    before, plugin = chosen(mostly_old)
    assert any(before.values())
    now[0] = 170.0
    old = [len(kept(plugin, mostly_new, **{DECISION: number})) == len(OLD) for number in before]
    assert old == list(before.values()), "as it was decided"
    now[0] = 351.0
    drawn_again = [len(kept(plugin, mostly_new, **{DECISION: number})) == len(OLD) for number in before]
    assert sum(drawn_again) < sum(old)


def test_unmatched_revisions_are_counted():
    built = screener()
    assert kept(built.plugin, view_of([*OLD, NEW[0]]), **{"x-llm-d-disagg-revision": "new"}) == []
    assert built.registry.get_sample_value("llm_d_epp_disaggregatedset_strict_revision_no_match_total") == 1.0


def test_screener_excludes_endpoints_out_of_scope():
    assert kept(screener().plugin, view_of([{**OLD[0], "app": "other"}, *OLD])) == ["e1", "e2", "e3"]


def test_response_carries_the_revision_of_the_serving_endpoint():
    plugin, [endpoint, bare] = screener(revisionHeaderName="X-Rev").plugin, view_of([NEW[0], {}])
    answers = [plugin.response_started(REQUEST, ResponseHead(200, {}, served), CycleState()) for served in (endpoint, bare, None)]

    assert answers == [{"x-rev": "new"}, {}, {}]


@pytest.mark.parametrize(
    ("scope", "gating", "problem"),
    [
        ({}, {"mode": "disabled"}, "labelSelector"),
        ({"labelSelector": "app in"}, {"mode": "disabled"}, "no label selector"),
        ({"labelSelector": "app"}, {}, "mode"),
        ({"labelSelector": "app"}, {"mode": "sum"}, "mode sum needs requiredRoles"),
        ({"labelSelector": "app"}, {"mode": "max-role", "requireRoles": {}}, "requireRoles"),
    ],
)
def test_wrong_rollout_parameters_are_refused(scope, gating, problem):
    with pytest.raises(ValidationError, match=problem):
        RolloutParameters.model_validate({"scope": scope, "revisionGating": gating})
