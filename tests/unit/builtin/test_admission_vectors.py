"""Golden vectors of admission: saturation, what is kept, who is admitted, and what clients are told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from endpick.api import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE, CycleState, Endpoint, Rejection
from endpick.api.access import Access
from endpick.api.keys import INFLIGHT_REQUESTS, INFLIGHT_TOKENS, PREDICTED_TTFT, TPOT_HEADROOM, TTFT_HEADROOM
from endpick.data.table import EndpointTable
from endpick_builtin.parsers.openai import OpenAIParser
from unit.builtin.vectors import built, cases, each
from unit.requests.stage import Stage, admitter_of, detector_of
from unit.scheduling.workbench import REQUEST, filter_of, instance, names, pool

COLUMNS = {
    "queue": WAITING_QUEUE_SIZE,
    "usage": KV_CACHE_USAGE,
    "running": RUNNING_REQUESTS_SIZE,
    "requests": INFLIGHT_REQUESTS,
    "tokens": INFLIGHT_TOKENS,
}
PREDICTIONS = {"ttft": PREDICTED_TTFT, "ttft_headroom": TTFT_HEADROOM, "tpot_headroom": TPOT_HEADROOM}


def view_of(endpoints):
    """The endpoints of a case, as the host shows them."""
    now = 0.0
    table = EndpointTable(clock=lambda: now, keys=set(COLUMNS.values()))
    table.replace_all(Endpoint(f"pool/e{row}", "10.0.0.1", 8000 + row) for row in range(len(endpoints)))
    writer = table.writer(None)
    for row, endpoint in zip(endpoints, table.generation.endpoints, strict=True):
        now = 100.0 - row.get("age", 0.0)
        for name in row.keys() & COLUMNS.keys():
            writer.set(COLUMNS[name], float(row[name]), endpoint)
    now = 100.0
    return table.view(Access())


def state_of(endpoints, view):
    state = CycleState()
    for name, key in PREDICTIONS.items():
        if any(name in each for each in endpoints):
            state.put_column(key, view, np.array([each.get(name, np.nan) for each in endpoints]))
    return state


@each([case for case in cases("admission") if "detector" in case.id])
def test_detector_saturation_and_filter(case):
    detector, view, expected = built(case), view_of(case["endpoints"]), case["expect"]

    assert detector.plugin.saturation(view) == pytest.approx(expected["saturation"])
    if "keeps" in expected:
        kept = detector.plugin.filter(REQUEST, view, CycleState())
        assert names(view.where(kept)) == [f"e{row}" for row in expected["keeps"]]
    if "stale" in expected:
        stale = detector.registry.get_sample_value("llm_d_epp_flow_control_stale_endpoints", {"detector": case["type"]})
        assert stale == expected["stale"]


@each([case for case in cases("admission") if "admitter" in case.id])
def test_admitter_decisions(case, monkeypatch):
    admitter, view, expected = built(case).plugin, view_of(case["endpoints"]), case["expect"]
    monkeypatch.setattr(admitter.context.random, "random", lambda: case["random"])
    request = replace(REQUEST, priority=case["priority"], headers=case.get("headers", {}))

    answer = admitter.admit(request, view, state_of(case["endpoints"], view))

    assert (answer is None) is expected["admits"]
    if isinstance(answer, Rejection):
        assert (answer.status, answer.reason) == (429, "rejected-saturated")
    if "probability" in expected:
        depth = admitter.parameters.queue_depth_threshold
        full = [max(each.get("queue", 0) / depth, each.get("usage", 0) / 0.8) if each else 1.0 for each in case["endpoints"]]
        assert admitter.probability(sum(full) / len(full)) == pytest.approx(expected["probability"])


@each(cases("statuses"))
def test_refusal_statuses(case):
    expected = dict(case["expect"])
    stage = Stage(
        table=pool(size=case.get("pool", 3)),
        parsers=[instance(OpenAIParser)],
        detector=detector_of(case.get("saturation", 0.0)),
        objectives={"batch": -1},
        filters=[filter_of(lambda endpoints: np.zeros(len(endpoints), dtype=bool))] if case.get("drained") else [],
        admitters=[admitter_of(lambda request: Rejection("no", case["denied"]))] if "denied" in case else [],
    )
    headers = {name.replace("-", "_"): value for name, value in case.get("headers", {}).items()}
    subset = None if "subset" not in case else tuple(case["subset"])
    body = case.get("body", {"model": "m", "prompt": "x"})

    if "status" not in expected:
        stage.route(body, path=case.get("path", "/v1/completions"), subset=subset, **headers)
        [(_, target, fairness, priority, _)] = stage.telemetry.decided
        found = {"model": target, "fairness": fairness, "priority": priority}
        assert {name: found[name] for name in expected} == expected
        return
    refused = stage.refuse(body, path=case.get("path", "/v1/completions"), subset=subset, **headers)
    assert refused.status == expected["status"]
    assert refused.message == expected.get("message", refused.message)
    assert refused.reason == expected.get("reason", refused.reason)
    assert refused.code == expected.get("code", refused.code)
