"""Handlers and deciders against vectors worked out by hand from llm-d's rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

import yaml_files
from endpick.api import (
    CycleState,
    DisaggregationDecider,
    Endpoint,
    InferenceRequest,
    Media,
    Modality,
    Parameters,
    PluginContext,
    ProfileRunResult,
    Prompt,
)
from endpick.api.keys import PEER_ENDPOINT, PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, TOKENIZED_PROMPT, PrefixBlocks, PromptTokens
from endpick.data.table import EndpointTable
from endpick.host.discovery import discover
from endpick.host.loader import LoadedPlugin, load
from endpick.host.parameters import check_parameters
from endpick.host.resolution import Reference
from unit.builtin.vectors import each

VECTORS = Path(__file__).parents[2] / "fixtures" / "vectors"
OFFERED = {one.type: one for one in discover() if one.is_builtin}
ENDPOINTS = (*(Endpoint(f"e{number}", f"10.0.0.{number + 1}", 8000) for number in range(4)), Endpoint("v6", "2001:db8::1", 8003))


def cases(topic: str) -> list[Any]:
    return [pytest.param(case, id=f"{case['type']}: {case['case']}") for case in yaml_files.load(VECTORS / f"{topic}.yaml")]


class Scripted(DisaggregationDecider):
    """Answers what the case says, and counts the questions."""

    def __init__(self, name: str, answer: bool) -> None:
        super().__init__(name, Parameters(), PluginContext())
        self.answer = answer
        self.asked = 0

    def disaggregate(self, request, endpoint, state):
        assert len(endpoint) == 1
        self.asked += 1
        return self.answer


def built(case: dict[str, Any], context: PluginContext) -> Any:
    loaded = load(OFFERED[case["type"]], Reference(case["type"]), ()).loaded
    assert isinstance(loaded, LoadedPlugin)
    parameters = check_parameters(loaded, case.get("parameters", {}))
    assert isinstance(parameters, Parameters), parameters
    return loaded.plugin(case["type"], parameters, context)


def pool() -> Any:
    table = EndpointTable(lambda: 0.0, ())
    table.replace_all(ENDPOINTS)
    return table.view()


def counted(registry: CollectorRegistry) -> dict[str, str]:
    samples = [sample for family in registry.collect() for sample in family.samples if sample.name.endswith("decision_total")]
    assert all(sample.value == 1 for sample in samples)
    return {"decision": samples[0].labels["decision_type"]} if samples else {}


@each(cases("handlers"))
def test_handler_decisions(case: dict[str, Any]) -> None:
    registry, endpoints, state = CollectorRegistry(), pool(), CycleState()
    deciders = {name: Scripted(name, answer) for name, answer in case.get("deciders", {}).items()}
    handler = built(case, PluginContext(registry=registry, instances=deciders))
    request = InferenceRequest("r", model="m", headers=case.get("headers", {}))
    names = [endpoint.name for endpoint in ENDPOINTS]
    runs: dict[str, ProfileRunResult] = {}
    rounds: list[str] = []

    while len(runs) < len(case["profiles"]):
        wanted = handler.pick_profiles(request, tuple(case["profiles"]), runs, state)
        if not wanted:
            break
        (profile,) = wanted
        rounds.append(profile)
        picked = [names.index(name) for name in case["picks"].get(profile, ())]
        runs[profile] = ProfileRunResult(profile, endpoints.take(picked) if picked else None)

    told: dict[str, Any] = {"rounds": rounds}
    if runs:
        result = handler.process_results(request, runs, state)
        parts = {"destinations": list(result.destinations), "headers": dict(result.headers), "removed": list(result.removed_headers)}
        told |= {"failure": result.failure} if result.failure else {name: value for name, value in parts.items() if value}
        assert result.failure or result.runs == runs
    peer = state.get(PEER_ENDPOINT)
    told |= counted(registry) | ({} if peer is None else {"peer": peer.name})
    if deciders:
        told["asked"] = {name: decider.asked for name, decider in deciders.items() if decider.asked}
    assert told == case["expect"]


@each(cases("deciders"))
def test_decider_answers(case: dict[str, Any]) -> None:
    endpoints, state = pool(), CycleState()
    text = (case["text"] * case.get("times", 1)).encode()
    media = [Media(Modality(modality), f"https://example.org/{modality}") for modality in case.get("media", ())]
    prompt = Prompt(lambda: (text,), (lambda: ((text, *media),)) if media else None)
    if "block" in case:
        state.put(PREFIX_BLOCKS, PrefixBlocks(100, case["block"]))
        matched = case["matched"]
        others = [50.0] * (len(ENDPOINTS) - 2)
        state.put_column(PREFIX_MATCH_BLOCKS, endpoints, np.array([50.0, np.nan if matched is None else matched, *others]))
    if "tokens" in case:
        state.put(TOKENIZED_PROMPT, tuple(PromptTokens(np.zeros(length, dtype=np.uint32)) for length in case["tokens"]))

    answer = built(case, PluginContext()).disaggregate(InferenceRequest("r", prompt=prompt), endpoints.take([1]), state)

    assert answer is case["expect"]
