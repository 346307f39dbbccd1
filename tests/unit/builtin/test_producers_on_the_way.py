"""Producers that act when a request leaves."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest

from endpick.api import WAITING_QUEUE_SIZE, InferenceRequest, Modality, ProfileRunResult, SchedulingResult
from endpick.api.keys import (
    INFLIGHT_TOKENS,
    PREFIX_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    TOKENIZED_PROMPT,
    UNCACHED_REQUEST_TOKENS,
    MediaPlace,
    PrefixBlocks,
    PromptTokens,
)
from endpick.api.state import CycleState
from endpick.requests.headers import HeadersForUpstream
from endpick.testing import make_pool
from endpick_builtin.parsers.openai import OpenAIParser
from endpick_builtin.producers.cached_content import SOURCE_HEADER, MediaCacheProducer, P2PSourceProducer
from endpick_builtin.producers.inflight_load import InflightLoadProducer
from endpick_builtin.producers.prefix_cache import ApproxPrefixCacheProducer, MulticlusterApproxPrefixCacheProducer
from endpick_builtin.producers.token_producer import TokenProducer
from unit.scheduling.workbench import access, instance, pool


class Cycle:
    """One request against a pool: what others left for it, and what the producer under test makes of it."""

    def __init__(self, producer, request=None, table=None):
        self.producer = producer
        self.request = request or InferenceRequest("r", "m")
        self.access = access()
        self.endpoints = (table or pool(size=3)).view(self.access)
        self.state = CycleState(self.access)
        self.headers = HeadersForUpstream({})

    def prefix(self, total, matched, size=64):
        self.state.put(PREFIX_BLOCKS, PrefixBlocks(total, size))
        self.state.put_column(PREFIX_MATCH_BLOCKS, self.endpoints, np.array(matched, dtype=float))
        return self

    def tokens(self, count, *media):
        self.state.put(TOKENIZED_PROMPT, (PromptTokens(np.arange(count, dtype=np.uint32), media),))
        return self

    def run(self, **picks):
        """Produce, then route: profile → position of the pick, None for a failed run; the first one is the primary."""
        self.access.scope = self.producer.scope
        self.producer.plugin.produce(self.request, self.endpoints, self.state)
        if picks:
            runs = {
                profile: ProfileRunResult(profile, None if row is None else self.endpoints.take([row])) for profile, row in picks.items()
            }
            result = SchedulingResult(next(iter(picks)), runs, ("x:1",))
            self.producer.plugin.before_request(self.request, result, self.headers, self.state)
        self.access.scope = None
        return self


@pytest.mark.parametrize(
    ("matched", "picks", "parameters", "pulls_from"),
    [
        ([4, 0, 0], {"decode": 1}, {}, 0),
        ([4, 0, 0], {"decode": 0}, {}, None),
        ([4, 0, 0], {"decode": 0, "prefill": 1}, {}, 0),
        ([4, 0, 0], {"decode": 1, "prefill": None}, {}, 0),
        ([4, 0, 0], {"decode": 0, "first": 1}, {"prefillProfileName": "first"}, 0),
        ([4, 1, 0], {"decode": 1}, {"minCachedTokenDelta": 193}, None),
        ([np.nan, np.nan, 2], {"decode": 1}, {}, 2),
    ],
)
def test_a_p2p_source_must_hold_enough_more(matched, picks, parameters, pulls_from):
    cycle = Cycle(instance(P2PSourceProducer, **parameters)).prefix(4, matched).run(**picks)
    expected = {} if pulls_from is None else {SOURCE_HEADER: cycle.endpoints.members[pulls_from].address}
    assert cycle.headers._values == expected


def test_a_client_cannot_choose_the_p2p_source():
    request = InferenceRequest("r", "m", headers={SOURCE_HEADER: "192.0.2.1:1"})
    assert Cycle(instance(P2PSourceProducer), request).run(decode=1).headers._values == {SOURCE_HEADER: ""}


def test_p2p_sources_are_weighted_by_queue():
    table = make_pool({WAITING_QUEUE_SIZE: [0.0, 1.0, 9.0]})
    drawn = {"10.0.0.1:8000": 0, "10.0.0.2:8000": 0}
    ids = Random(1)
    for _ in range(600):
        cycle = (
            Cycle(instance(P2PSourceProducer), InferenceRequest(f"{ids.getrandbits(128):032x}"), table).prefix(4, [4, 4, 0]).run(decode=2)
        )
        drawn[cycle.headers._values[SOURCE_HEADER]] += 1
    assert 350 < drawn["10.0.0.1:8000"] < 450


def test_media_are_counted_by_kind_and_endpoint():
    producer = instance(MediaCacheProducer)
    places = MediaPlace(Modality.IMAGE, "i", 0, 1), MediaPlace(Modality.AUDIO, "s", 1, 1)
    for _ in range(2):
        Cycle(producer).tokens(4, *places).run(default=1)
    Cycle(producer).tokens(4, places[0]).run(default=2)
    counted = {
        (sample.name, *sample.labels.values()): sample.value
        for family in producer.registry.collect()
        for sample in family.samples
        if "bucket" not in sample.name
    }
    name = Cycle(producer).endpoints.members[1].name.rpartition("/")[2]
    prefix = "llm_d_epp_encoder_cache"
    assert counted[f"{prefix}_queries_total", "image"] == 3
    assert counted[f"{prefix}_queries_total", "audio"] == 2
    assert counted[f"{prefix}_hits_total", "image", name] == 1
    assert counted[f"{prefix}_hits_total", "audio", name] == 1
    assert counted[f"{prefix}_hit_ratio_count",] == 3
    assert counted[f"{prefix}_hit_ratio_sum",] == 1


def test_uncached_tokens_are_in_flight():
    table = pool(size=3)
    producer = instance(InflightLoadProducer, columns=table.writer(instance(InflightLoadProducer).scope))
    cycle = Cycle(producer, InferenceRequest("r", size_bytes=4000), table).prefix(4, [4, 1, np.nan]).tokens(300).run(default=1)
    assert cycle.state.column(UNCACHED_REQUEST_TOKENS, cycle.endpoints).tolist() == [44, 236, 300]
    assert table.view(access())[INFLIGHT_TOKENS].tolist() == [0, 236, 0]


@pytest.mark.parametrize("kind", [ApproxPrefixCacheProducer, MulticlusterApproxPrefixCacheProducer])
def test_prefixes_are_matched_by_tokens(kind):
    producer = instance(kind, autoTune=False)
    Cycle(producer).tokens(200).run(default=1)
    cycle = Cycle(producer).tokens(130).run()
    assert cycle.state.get(PREFIX_BLOCKS).total_blocks == 3
    assert cycle.state.column(PREFIX_MATCH_BLOCKS, cycle.endpoints).tolist() == [0, 2, 0]


def test_estimated_tokens_match_like_bytes():
    parser = instance(OpenAIParser).plugin
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 300}]}).encode()
    parsed = parser.parse("/v1/chat/completions", {}, body)
    request = InferenceRequest("r", "m", prompt=parsed.prompt, payload=parsed.payload)
    producer, tokens = instance(ApproxPrefixCacheProducer), instance(TokenProducer)
    plain = Cycle(producer, request).run()
    estimated = Cycle(producer, request)
    estimated.access.scope = tokens.scope
    tokens.plugin.produce(request, estimated.endpoints, estimated.state)
    assert estimated.run().state.get(PREFIX_BLOCKS) == plain.state.get(PREFIX_BLOCKS)


def test_a_block_size_in_characters_is_logged(caplog):
    instance(ApproxPrefixCacheProducer, blockSize=256)
    assert "blockSize has no effect" in caplog.text
