"""The guess at what each prefix cache holds: the hashes of blocks, and the producer that keeps the tree."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from endpick.api import (
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    PREFIX_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    Endpoint,
    InferenceRequest,
    ProfileRunResult,
    Prompt,
    SchedulingResult,
)
from endpick.api.state import CycleState
from endpick.requests.intake import HeadersForUpstream
from endpick_builtin.producers.prefix_cache import ApproxPrefixCacheProducer
from endpick_builtin.producers.prompt_blocks import block_hashes, chain_root
from unit.scheduling.workbench import access, instance, pool

BLOCK = 64 * 4


@pytest.mark.parametrize(
    ("text", "digest"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_the_hash_is_xxhash64_without_a_seed(text, digest):
    assert chain_root(text.decode(), "") == digest


def reference_hashes(text: bytes, model: str, salt: str, block_tokens: int) -> list[int]:
    """The chain as it is described: token ids packed from four bytes, hashed per block, seeded with the hash of what precedes."""
    padded = text + b"\0" * (-len(text) % 4)
    tokens = struct.unpack(f"<{len(padded) // 4}I", padded)
    previous = xxhash.xxh64((model + salt).encode()).intdigest()
    hashes = []
    for start in range(0, len(tokens), block_tokens):
        block = b"".join(struct.pack("<I", token) for token in tokens[start : start + block_tokens])
        previous = xxhash.xxh64(block, seed=previous).intdigest()
        hashes.append(previous)
    return hashes


@given(st.binary(max_size=300), st.text(max_size=5), st.text(max_size=5), st.integers(1, 20))
def test_hashes_are_a_chain_of_tokens(text, model, salt, block_tokens):
    assert block_hashes(text, chain_root(model, salt), block_tokens, None) == reference_hashes(text, model, salt, block_tokens)


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(1, 8))
def test_a_common_beginning_gives_common_hashes_and_only_that(first, second, block_tokens):
    size = block_tokens * 4
    common = 0
    while common * size + size <= min(len(first), len(second)) and first[: common * size + size] == second[: common * size + size]:
        common += 1
    one, other = (block_hashes(text, 7, block_tokens, None) for text in (first, second))
    assert one[:common] == other[:common]
    if len(one) > common < len(other) and min(len(first), len(second)) >= common * size + size:
        assert set(one[common:]).isdisjoint(other[common:])


@pytest.mark.parametrize(
    ("length", "limit", "blocks"), [(0, None, 0), (1, None, 1), (16, None, 1), (17, None, 2), (64, 3, 3), (40, 3, 3), (8, 0, 0)]
)
def test_a_prompt_has_as_many_blocks_as_it_fills_and_the_limit_allows(length, limit, blocks):
    assert len(block_hashes(bytes(length), 1, 4, limit)) == blocks


def test_models_and_salts_do_not_share_prefixes():
    roots = {chain_root(model, salt) for model, salt in (("m", ""), ("n", ""), ("m", "tenant-a"), ("m", "tenant-b"))}
    assert len({block_hashes(b"same text", root, 4, None)[0] for root in roots}) == 4


class Bench:
    """The producer with a pool, as the host drives it."""

    def __init__(self, table=None, **parameters):
        self.instance = instance(ApproxPrefixCacheProducer, **parameters)
        self.table = table or pool()
        self.table.on_removed.append(self.instance.plugin.endpoint_removed)

    def produce(self, *texts, model="m", salt="", rows=None):
        shared = access()
        endpoints, state = self.table.view(shared), CycleState(shared)
        if rows is not None:
            endpoints = endpoints.take(rows)
        request = InferenceRequest(id="r", model=model, cache_salt=salt, prompt=Prompt(lambda: texts))
        shared.scope = self.instance.scope
        self.instance.plugin.produce(request, endpoints, state)
        shared.scope = None
        return request, endpoints, state, shared

    def matched(self, *texts, **request):
        _, endpoints, state, _ = self.produce(*texts, **request)
        return state.column(PREFIX_MATCH_BLOCKS, endpoints).tolist()

    def blocks(self, *texts):
        _, _, state, _ = self.produce(*texts)
        return state.get(PREFIX_BLOCKS)

    def send(self, row, *texts, prefill=None, **request):
        asked, endpoints, state, shared = self.produce(*texts, **request)
        runs = {"decode": ProfileRunResult("decode", endpoints.take([row]))}
        if prefill is not None:
            runs["prefill"] = ProfileRunResult("prefill", endpoints.take([prefill]))
        runs["shadow"] = ProfileRunResult("shadow", endpoints.take([2]))
        result = SchedulingResult("decode", runs, ("10.0.0.1:8000",))
        shared.scope = self.instance.scope
        self.instance.plugin.before_request(asked, result, HeadersForUpstream({}), state)


def text(blocks, seed=1):
    return random.Random(seed).randbytes(blocks * BLOCK)


def test_the_next_turn_of_a_conversation_matches_where_the_last_one_went():
    bench = Bench()
    first = text(3)
    assert bench.matched(first) == [0, 0, 0]
    bench.send(1, first)
    assert bench.matched(first) == [0, 3, 0]
    assert bench.matched(first + text(2, seed=2)) == [0, 3, 0]
    assert bench.matched(first[: 2 * BLOCK] + text(2, seed=3)) == [0, 2, 0]
    assert bench.matched(first, rows=[2, 1]) == [0, 3]


def test_it_says_what_it_has_learnt_and_forgets_the_half_that_was_sent_first():
    bench = Bench()
    plugin = bench.instance.plugin
    assert plugin.learnt_bytes() == 0
    bench.send(1, text(4))
    bench.send(1, text(4, seed=2))
    learnt = plugin.learnt_bytes()
    plugin.forget_some()
    assert plugin.learnt_bytes() == learnt / 2 > 0
    assert (bench.matched(text(4)), bench.matched(text(4, seed=2))) == ([0, 0, 0], [0, 4, 0])


@pytest.mark.parametrize(("parameters", "looked_at"), [({}, 256), ({"maxPrefixTokensToMatch": 300 * 64}, 300)])
def test_of_many_short_prompts_in_a_request_the_first_are_looked_at(parameters, looked_at):
    bench = Bench(**parameters)
    _, _, state, shared = bench.produce(*[f"{number}".encode() for number in range(3000)])
    shared.scope = None
    blocks = state.get(PREFIX_BLOCKS)
    assert (blocks.total_blocks, len(blocks.hashes)) == (looked_at, looked_at)


def test_a_prefill_endpoint_holds_the_prompt_too_and_a_shadow_pick_does_not():
    bench = Bench()
    bench.send(0, text(2), prefill=1)
    assert bench.matched(text(2)) == [2, 2, 0]


def test_other_models_and_salts_do_not_match():
    bench = Bench()
    bench.send(0, text(2))
    assert bench.matched(text(2), model="other") == [0, 0, 0]
    assert bench.matched(text(2), salt="tenant") == [0, 0, 0]


def test_matches_of_several_prompts_add_up():
    bench = Bench()
    bench.send(0, text(2), text(3, seed=2))
    assert bench.matched(text(2), text(3, seed=2), text(1, seed=3)) == [5, 0, 0]
    assert bench.blocks(text(2), text(3, seed=2)).total_blocks == 5


def test_the_hashes_of_all_blocks_are_there_for_those_who_ask():
    bench = Bench()
    found = bench.blocks(text(2), text(20, seed=2) + b"rest").hashes
    chains = [block_hashes(prompt, chain_root("m", ""), 64, None) for prompt in (text(2), text(20, seed=2) + b"rest")]
    assert list(found) == chains[0] + chains[1]
    assert (len(found), found[1], found[1:3]) == (23, chains[0][1], (chains[0][1], chains[1][0]))


def test_a_prompt_of_a_request_that_makes_room_is_the_last_one():
    bench = Bench(lruCapacityPerServer=5)
    bench.send(0, text(3), text(3, seed=2))
    assert bench.matched(text(3)) == [3, 0, 0]
    assert bench.matched(text(3, seed=2)) == [2, 0, 0]


def test_all_prompts_of_a_request_share_the_limit():
    bench = Bench(maxPrefixTokensToMatch=10 * 64)
    assert bench.blocks(text(8), text(8, 2), text(8, 3)).total_blocks == 10


def test_a_request_without_a_prompt_has_no_blocks():
    bench = Bench()
    bench.send(0)
    assert bench.matched() == [0, 0, 0]
    assert bench.blocks().total_blocks == 0


def test_an_endpoint_that_left_is_forgotten_and_its_successor_starts_cold():
    bench = Bench()
    bench.send(1, text(2))
    gone = bench.table.generation.endpoints[1]
    bench.table.remove(gone.name)
    assert bench.matched(text(2)) == [0, 0]
    bench.table.upsert(Endpoint(gone.name, gone.host, gone.port))
    assert bench.matched(text(2)) == [0, 0, 0]


def test_an_endpoint_that_moved_to_another_address_starts_cold():
    bench = Bench()
    bench.send(1, text(2))
    moved = bench.table.generation.endpoints[1]
    bench.table.upsert(Endpoint(moved.name, "10.9.9.9", moved.port))
    assert bench.matched(text(2)) == [0, 0, 0]


@pytest.mark.parametrize(
    ("parameters", "reported", "expected"),
    [
        ({}, None, 64),
        ({}, 16.0, 64),
        ({}, 128.0, 128),
        ({"autoTune": False}, 128.0, 64),
        ({"autoTune": False, "blockSizeTokens": 256}, 128.0, 256),
        ({"blockSizeTokens": 96}, None, 96),
    ],
)
def test_the_block_size_is_the_engines_or_the_configured_one_but_at_least_64(parameters, reported, expected):
    table = pool({CACHE_BLOCK_SIZE: [None, reported, reported]})
    assert Bench(table, **parameters).blocks(text(1)).block_size_tokens == expected


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ([16.0, 16.0, 1e300], 64),
        ([128.0, 128.0, 999_999_999_999_999.0], 128),
        ([None, None, 4096.0], 64),
        ([1e300, 1e300, 1e300], 64),
        ([-1.0, 0.0, 0.5], 64),
        ([128.0, 256.0, None], 256),
    ],
)
def test_what_one_endpoint_says_of_its_blocks_changes_nothing_for_the_others(reported, expected):
    assert Bench(pool({CACHE_BLOCK_SIZE: reported})).blocks(text(1)).block_size_tokens == expected


def test_a_cache_of_absurd_size_is_no_fault():
    bench = Bench(pool({CACHE_BLOCK_SIZE: [1e300, 16.0, 16.0], CACHE_NUM_BLOCKS: [1e300, 1e300, 16.0]}))
    for row in range(3):
        bench.send(row, text(8))
    assert bench.matched(text(8)) == [8, 8, 4]


@pytest.mark.parametrize(
    ("parameters", "blocks"),
    [
        ({"maxPrefixTokensToMatch": 192}, 3),
        ({"maxPrefixTokensToMatch": 0, "maxPrefixBlocksToMatch": 4}, 4),
        ({"maxPrefixTokensToMatch": 192, "maxPrefixBlocksToMatch": 9}, 3),
        ({"maxPrefixTokensToMatch": 0, "maxPrefixBlocksToMatch": 0}, 10),
        ({}, 10),
    ],
)
def test_how_much_of_a_prompt_is_looked_at(parameters, blocks):
    assert Bench(**parameters).blocks(text(10)).total_blocks == blocks


def test_capacity_is_what_the_engine_reports_in_our_block_size():
    table = pool({CACHE_BLOCK_SIZE: [16.0, 16.0, None], CACHE_NUM_BLOCKS: [16.0, None, 3.0]})
    bench = Bench(table, lruCapacityPerServer=2)
    for row in range(3):
        bench.send(row, text(8))
    assert bench.matched(text(8)) == [4, 2, 3]


def test_without_auto_tune_capacity_is_the_configured_one():
    table = pool({CACHE_BLOCK_SIZE: [16.0], CACHE_NUM_BLOCKS: [16.0]})
    bench = Bench(table, autoTune=False, blockSizeTokens=64, lruCapacityPerServer=5)
    asked, endpoints, state, shared = bench.produce(text(8))
    shared.scope = bench.instance.scope
    result = SchedulingResult("p", {"p": ProfileRunResult("p", endpoints.take([0]))}, ("x:1",))
    bench.instance.plugin.before_request(asked, result, HeadersForUpstream({}), state)
    assert bench.matched(text(8)) == [5]


@pytest.mark.parametrize(
    "parameters", [{"autoTune": False, "blockSizeTokens": 0}, {"maxPrefixTokensToMatch": -1}, {"lruCapacityPerServer": 0}]
)
def test_parameters_that_make_no_sense_are_refused(parameters):
    with pytest.raises(ValidationError):
        instance(ApproxPrefixCacheProducer, **parameters)


def test_a_thousand_endpoints_keep_their_matches_apart():
    bench = Bench(pool(size=1000))
    for row in (0, 7, 512, 999):
        bench.send(row, text(3))
    assert np.flatnonzero(bench.matched(text(3))).tolist() == [0, 7, 512, 999]


def test_its_metrics_tell_what_it_holds_and_how_much_of_each_prompt_was_found_where_it_went():
    bench = Bench()
    read = bench.instance.registry.get_sample_value
    bench.send(0, text(4), prefill=1)
    bench.send(0, text(3) + text(1, seed=2))
    bench.send(2, text(4))

    assert read("llm_d_epp_prefix_indexer_size") == 4 + 1 + 4 + 4
    assert [read("llm_d_epp_prefix_indexer_hit_ratio_bucket", {"le": bound}) for bound in ("0.0", "0.7", "0.8", "+Inf")] == [2, 2, 3, 3]
    assert read("llm_d_epp_prefix_indexer_hit_ratio_sum") == 0.75
    assert read("llm_d_epp_prefix_indexer_hit_bytes_sum") == 3 * BLOCK
    assert [read("llm_d_epp_prefix_indexer_hit_bytes_bucket", {"le": bound}) for bound in ("0.0", "512.0", "1024.0")] == [2, 2, 3]


def test_a_request_without_a_prompt_says_nothing_about_hits():
    bench = Bench()
    bench.send(0)
    assert bench.instance.registry.get_sample_value("llm_d_epp_prefix_indexer_hit_ratio_count") == 0
