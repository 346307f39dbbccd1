"""What the data producers leave, by golden vectors."""

from __future__ import annotations

import json

import numpy as np
import pytest

from endpick.api import InferenceRequest, Media, Modality, ProfileRunResult, Prompt, SchedulingResult
from endpick.api.keys import AGENT_IDENTITY, MEDIA_ITEMS, MEDIA_MATCHED, SESSION_ID, TOKENIZED_PROMPT, OutputLength, PrefixBlocks
from endpick.api.state import CycleState
from endpick.requests.headers import HeadersForUpstream
from endpick_builtin.pairs.sessions import AgentIdentity, SessionIdProducer
from endpick_builtin.parsers.openai import OpenAIParser, PassthroughParser
from endpick_builtin.producers.burst_prefix import Member, assigned
from endpick_builtin.producers.cached_content import MediaCacheProducer, drawn_source, fnv32a
from endpick_builtin.producers.inflight_load import output_tokens, uncached_tokens
from endpick_builtin.producers.token_producer import TokenProducer
from unit.builtin.vectors import vectors
from unit.scheduling.workbench import access, instance, pool


@vectors("token_estimates")
def test_estimated_tokens(vector):
    parser = instance(PassthroughParser if vector.get("parser") else OpenAIParser).plugin
    parsed = parser.parse(f"/v1/{vector['path']}", {}, json.dumps({"model": "m", **vector["body"]}).encode())
    request = InferenceRequest("r", prompt=parsed.prompt, payload=parsed.payload, headers=vector.get("headers", {}))
    producer = instance(TokenProducer, **({"estimate": vector["parameters"]} if "parameters" in vector else {}))
    shared = access()
    state, endpoints = CycleState(shared), pool().view(shared)
    shared.scope = producer.scope
    producer.plugin.produce(request, endpoints, state)

    prompts = state.get(TOKENIZED_PROMPT) or ()
    places = [place for prompt in prompts for place in prompt.media]
    seen = {
        "tokens": [prompt.token_ids.tolist() for prompt in prompts],
        "counts": [len(prompt.token_ids) for prompt in prompts],
        "media": [[place.modality.value, place.identifier, place.offset, place.length] for place in places],
        "lengths": [place.length for place in places],
    }
    expected = {name: vector[name] for name in seen if name in vector}
    assert expected
    assert {name: seen[name] for name in expected} == expected


@vectors("uncached_tokens")
def test_uncached_tokens(vector):
    blocks = None if vector["blocks"] is None else PrefixBlocks(*vector["blocks"])
    assert uncached_tokens(vector["tokens"], blocks, np.array(vector["matched"], dtype=float)).tolist() == vector["expect"]


@vectors("output_tokens")
def test_output_tokens(vector):
    length = None if vector["length"] is None else OutputLength(vector["length"])
    assert output_tokens(length, *vector["limits"]) == vector["expect"]


@vectors("burst_groups")
def test_burst_groups(vector):
    everywhere = frozenset(vector.get("candidates", ["a", "b"]))
    count = len(vector["members"])
    candidates = [frozenset(names) for names in vector["each"]] if "each" in vector else [everywhere] * count
    weights = vector.get("weights", [1.0] * count)
    members = [Member(tuple(blocks), *rest) for blocks, *rest in zip(vector["members"], candidates, weights, strict=True)]
    placed = assigned(
        members,
        vector.get("running", {}),
        max_per_replica=vector.get("maxPerReplica", -1),
        min_colocate_blocks=vector.get("minColocateBlocks", 0),
    )
    assert placed == vector["expect"]


@vectors("p2p_draws")
def test_p2p_draws(vector):
    cached, waiting = (np.array(vector[name], dtype=float) for name in ("cached", "waiting"))
    assert drawn_source(cached, waiting, vector["draw"]) == vector["expect"]


@vectors("fnv32a")
def test_fnv32a(vector):
    assert fnv32a(vector["text"]) == vector["expect"]


@vectors("session_ids")
def test_session_ids(vector):
    producer = instance(SessionIdProducer, **vector["parameters"])
    shared = access()
    state, endpoints = CycleState(shared), pool().view(shared)
    shared.scope = producer.scope
    producer.plugin.produce(InferenceRequest("r", headers=vector["headers"]), endpoints, state)
    assert state.get(SESSION_ID) == vector["expect"]


@vectors("agent_identities")
def test_agent_identities(vector):
    processor = instance(AgentIdentity, **vector.get("parameters", {}))
    shared = access()
    state = CycleState(shared)
    shared.scope = processor.scope
    processor.plugin.request_headers(InferenceRequest("r", headers=vector["headers"]), state)
    assert state.get(AGENT_IDENTITY) == vector["expect"]


@vectors("media_matches")
def test_media_matches(vector):
    producer, table = instance(MediaCacheProducer, **vector.get("parameters", {})), pool(size=3)
    for step in vector["steps"]:
        if "gone" in step:
            producer.plugin.endpoint_removed(table.generation.endpoints[step["gone"]].name)
        pieces = tuple(Media(Modality.IMAGE, content) for content in step["media"])
        request = InferenceRequest("r", prompt=Prompt(lambda: (b"text",), lambda pieces=pieces: (pieces,)))
        shared = access()
        endpoints, state = table.view(shared), CycleState(shared)
        shared.scope = producer.scope
        producer.plugin.produce(request, endpoints, state)
        assert state.get(MEDIA_ITEMS) == step["items"]
        assert state.column(MEDIA_MATCHED, endpoints).tolist() == step["matched"]
        result = SchedulingResult("default", {"default": ProfileRunResult("default", endpoints.take([step["to"]]))}, ("x:1",))
        producer.plugin.before_request(request, result, HeadersForUpstream({}), state)


@pytest.mark.parametrize("parameters", [{}, {"headerName": "a", "cookieName": "b"}])
def test_a_session_has_exactly_one_place(parameters):
    with pytest.raises(ValueError, match="exactly one of headerName and cookieName"):
        instance(SessionIdProducer, **parameters)
