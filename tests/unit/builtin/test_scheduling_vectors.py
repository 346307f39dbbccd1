"""Golden vectors of filters and scorers: what llm-d's formulas say, computed by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

import yaml_files
from endpick.api import DataKey, InferenceRequest, Scope, keys
from endpick.api.access import AccessScope
from endpick.api.keys import TOKENIZED_PROMPT, LoraAdapters, PrefixBlocks, PromptTokens, Topology
from endpick.api.scheduling import ProfileRunResult, SchedulingResult
from endpick.api.state import CycleState
from endpick.host.discovery import discover
from endpick.host.loader import load
from endpick.host.resolution import Reference
from endpick.requests.headers import HeadersForUpstream
from endpick.scheduling.scheduler import as_view
from unit.builtin.vectors import each
from unit.scheduling.workbench import access, instance, names, pool

VECTORS = Path(__file__).parents[2] / "fixtures" / "vectors"
KEYS = {key.name: key for key in vars(keys).values() if isinstance(key, DataKey)}
CLASSES = {one.type: one for one in discover() if one.distribution.startswith("endpick")}
FIELDS = {"case", "plugin", "parameters", "request", "columns", "labels", "state", "endpoints", "candidates", "used", "producer"}


def vectors(topic, answer):
    cases = yaml_files.load(VECTORS / f"{topic}.yaml")
    chosen = [one for one in cases if answer in one]
    return [pytest.param(one, id=f"{one['plugin']}: {one['case']}") for one in chosen]


def plugin_class(name):
    return load(CLASSES[name], Reference(name), ()).loaded.plugin


def value_of(key, written):
    if key == keys.LORA_ADAPTERS and written is not None:
        return LoraAdapters(frozenset(written["running"]), frozenset(written["waiting"]), written["max"])
    if key == keys.TOPOLOGY and written is not None:
        return Topology(*written)
    return written


class Scene:
    """One vector, set up."""

    def __init__(self, vector):
        assert vector.keys() - FIELDS <= {"scores", "kept", "refused"}
        self.built = instance(plugin_class(vector["plugin"]), **vector.get("parameters", {}))
        written = {KEYS.get(name) or DataKey(name, float): values for name, values in vector.get("columns", {}).items()}
        columns = {key: [value_of(key, one) for one in values] for key, values in written.items()}
        state, labels = vector.get("state", {}), vector.get("labels")
        size = vector.get("endpoints") or max((len(one) for one in state.values() if isinstance(one, list)), default=3)
        self.access = access()
        self.whole = pool(columns, size=size, labels=labels).view(self.access)
        self.endpoints = self.whole.take(vector["candidates"]) if "candidates" in vector else self.whole
        self.request = InferenceRequest(id="r", **vector.get("request", {}))
        self.state = CycleState(self.access)
        produced = frozenset({*KEYS, *state})
        self.access.scope = AccessScope(vector.get("producer", "producer"), produced, produced)
        for name, value in state.items():
            self.put(name, value)
        for position in vector.get("used", ()):
            self.send_cold(position)
        self.access.scope = self.built.scope

    def put(self, name, value):
        if name == "tokens":
            self.state.put(TOKENIZED_PROMPT, (PromptTokens(np.zeros(value, dtype=np.uint32)),))
        elif KEYS[name].scope is Scope.CANDIDATE:
            self.state.put_column(KEYS[name], self.whole, np.array([np.nan if one is None else one for one in value], dtype=float))
        elif name == "prefix-blocks":
            self.state.put(KEYS[name], PrefixBlocks(value["total"], value["size"]))
        elif name == "peer-endpoint":
            self.state.put(KEYS[name], self.whole.members[value])
        else:
            self.state.put(KEYS[name], value)

    def send_cold(self, position):
        """A request that no endpoint has cached goes to this endpoint."""
        state = CycleState(self.access)
        self.access.scope = self.built.scope
        self.built.plugin.score(self.request, self.whole, state)
        picked = self.whole.take([position])
        result = SchedulingResult("default", {"default": ProfileRunResult("default", picked)}, (picked.members[0].address,))
        self.built.plugin.before_request(self.request, result, HeadersForUpstream({}), state)


@each([*vectors("scorers", "scores"), *vectors("latency_scorer", "scores")], "vector")
def test_scorer_scores(vector):
    scene = Scene(vector)

    answer = scene.built.plugin.score(scene.request, scene.endpoints, scene.state)

    assert answer.tolist() == pytest.approx(vector["scores"], abs=1e-9)


@each(vectors("filters", "kept"), "vector")
def test_filter_keeps(vector):
    scene = Scene(vector)

    answer = as_view(scene.endpoints, scene.built.plugin.filter(scene.request, scene.endpoints, scene.state))

    assert names(answer) == [f"e{position}" for position in vector["kept"]]


@each(vectors("filters", "refused"), "vector")
def test_filter_parameters_refused(vector):
    with pytest.raises(ValidationError, match=vector["refused"]):
        instance(plugin_class(vector["plugin"]), **vector["parameters"])


def test_scheduling_vectors_are_complete():
    cases = [one for topic in ("scorers", "latency_scorer", "filters") for one in yaml_files.load(VECTORS / f"{topic}.yaml")]

    assert len(cases) >= 120
    assert all(len({"scores", "kept", "refused"} & one.keys()) == 1 for one in cases)
    assert len({(one["plugin"], one["case"]) for one in cases}) == len(cases)
