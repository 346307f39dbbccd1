"""Objectives and model rewrites that a discovery publishes."""

from __future__ import annotations

import json
from random import Random

from endpick.api.discovery import ModelRewrite, ModelTarget
from unit.requests.stage import CHAT, Stage, detector_of
from unit.requests.test_director_candidates import OBJECTIVES, SATURATED


def test_configured_objectives_override_discovered_ones():
    stage = Stage(detector=detector_of(1.0), objectives=OBJECTIVES)
    assert stage.route(x_llm_d_inference_objective="nightly")
    stage.table.set_objectives({"nightly": -2, "urgent": -1})
    assert stage.refuse(x_llm_d_inference_objective="nightly") == SATURATED
    assert stage.route(x_llm_d_inference_objective="urgent")
    stage.table.set_objectives({})
    assert stage.route(x_llm_d_inference_objective="nightly")
    assert [decided[3] for decided in stage.telemetry.decided] == [0, 5, 0]


def test_rewrite_follows_the_weights():
    stage = Stage(random=Random(7))
    stage.table.set_rewrites([ModelRewrite(("m",), (ModelTarget("m-1", 3), ModelTarget("m-2", 1)))])
    models = []
    for _ in range(400):
        body = stage.route().body
        assert body is not None
        models.append(json.loads(body)["model"])
    assert set(models) == {"m-1", "m-2"}
    assert 0.6 < models.count("m-1") / 400 < 0.9
    assert [decided[:2] for decided in stage.telemetry.decided] == [("m", model) for model in models]


def test_rewrite_overrides_the_clients_header():
    stage = Stage()
    stage.table.set_rewrites([ModelRewrite(("m",), (ModelTarget("by-rule"),))])
    ruled, asked = (stage.route({**CHAT, "model": model}, x_llm_d_model_name_rewrite="by-header").body for model in ("m", "n"))
    assert ruled is not None
    assert asked is not None
    assert (json.loads(ruled)["model"], json.loads(asked)["model"]) == ("by-rule", "by-header")


def test_rewrite_for_all_models_adds_a_missing_model():
    stage = Stage()
    body = {"messages": CHAT["messages"]}
    assert stage.refuse(body).status == 400
    stage.table.set_rewrites([ModelRewrite((), (ModelTarget("default"),))])
    decided = stage.route(body)
    assert decided.body is not None
    assert json.loads(decided.body)["model"] == "default"
