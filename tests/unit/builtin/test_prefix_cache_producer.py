"""The guess at what each prefix cache holds: the hashes of blocks, and the producer that keeps the tree."""

from __future__ import annotations

import random
import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from endpick.api import Endpoint, InferenceRequest, ProfileRunResult, Prompt, SchedulingResult
from endpick.api.keys import CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS, PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS
from endpick.api.state import CycleState
from endpick.requests.headers import HeadersForUpstream
from endpick_builtin.producers.prefix_cache import ApproxPrefixCacheProducer
from endpick_builtin.producers.prompt_blocks import block_hashes, chain_root
from unit.scheduling.workbench import access, instance, pool

BLOCK = 64 * 4


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
def test_common_prefixes_have_common_hashes(first, second, block_tokens):
    size = block_tokens * 4
    common = 0
    while common * size + size <= min(len(first), len(second)) and first[: common * size + size] == second[: common * size + size]:
        common += 1
    one, other = (block_hashes(text, 7, block_tokens, None) for text in (first, second))
    assert one[:common] == other[:common]
    if len(one) > common < len(other) and min(len(first), len(second)) >= common * size + size:
        assert set(one[common:]).isdisjoint(other[common:])


@pytest.mark.parametrize(("length", "limit", "blocks"), [(0, None, 0), (17, None, 2), (64, 3, 3), (8, 0, 0)])
def test_block_hashes_respect_the_limit(length, limit, blocks):
    assert len(block_hashes(bytes(length), 1, 4, limit)) == blocks


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


def test_a_conversation_matches_the_endpoint_of_its_last_request():
    bench = Bench()
    first = text(3)
    assert bench.matched(first) == [0, 0, 0]
    bench.send(1, first)
    assert bench.matched(first) == [0, 3, 0]
    assert bench.matched(first + text(2, seed=2)) == [0, 3, 0]
    assert bench.matched(first[: 2 * BLOCK] + text(2, seed=3)) == [0, 2, 0]
    assert bench.matched(first, rows=[2, 1]) == [0, 3]


def test_restarted_endpoint_has_no_prefixes():
    bench = Bench()
    bench.send(1, text(3))
    bench.table.restarted(bench.table.generation.endpoints[1])
    assert bench.matched(text(3)) == [0, 0, 0]


@pytest.mark.parametrize(("parameters", "looked_at"), [({}, 256), ({"maxPrefixTokensToMatch": 300 * 64}, 300)])
def test_a_bounded_number_of_prompts_is_looked_up(parameters, looked_at):
    bench = Bench(**parameters)
    _, _, state, shared = bench.produce(*[f"{number}".encode() for number in range(3000)])
    shared.scope = None
    blocks = state.get(PREFIX_BLOCKS)
    assert blocks.total_blocks == looked_at


def test_picks_of_prefill_hold_the_prompt_and_shadows_do_not():
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


def test_the_last_prompt_of_a_request_makes_room():
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
    assert bench.instance.registry.get_sample_value("llm_d_epp_prefix_indexer_hit_ratio_count") == 0
    assert bench.matched() == [0, 0, 0]
    assert bench.blocks().total_blocks == 0


def test_a_successor_of_a_removed_endpoint_starts_cold():
    bench = Bench()
    bench.send(1, text(2))
    gone = bench.table.generation.endpoints[1]
    bench.table.remove(gone.name)
    assert bench.matched(text(2)) == [0, 0]
    bench.table.upsert(Endpoint(gone.name, gone.host, gone.port))
    assert bench.matched(text(2)) == [0, 0, 0]


def test_an_endpoint_with_a_new_address_starts_cold():
    bench = Bench()
    bench.send(1, text(2))
    moved = bench.table.generation.endpoints[1]
    bench.table.upsert(Endpoint(moved.name, "10.9.9.9", moved.port))
    assert bench.matched(text(2)) == [0, 0, 0]


@pytest.mark.parametrize(
    ("parameters", "reported", "expected"),
    [
        ({}, 16.0, 64),
        ({}, 128.0, 128),
        ({"blockSizeTokens": 96}, None, 96),
    ],
)
def test_block_size_is_reported_or_configured(parameters, reported, expected):
    table = pool({CACHE_BLOCK_SIZE: [None, reported, reported]})
    assert Bench(table, **parameters).blocks(text(1)).block_size_tokens == expected


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ([128.0, 128.0, 999_999_999_999_999.0], 128),
        ([None, None, 4096.0], 64),
        ([128.0, 256.0, None], 256),
    ],
)
def test_the_most_frequent_block_size_wins(reported, expected):
    assert Bench(pool({CACHE_BLOCK_SIZE: reported})).blocks(text(1)).block_size_tokens == expected


def test_an_absurd_cache_size_is_no_fault():
    bench = Bench(pool({CACHE_BLOCK_SIZE: [1e300, 16.0, 16.0], CACHE_NUM_BLOCKS: [1e300, 1e300, 16.0]}))
    for row in range(3):
        bench.send(row, text(8))
    assert bench.matched(text(8)) == [8, 8, 4]


@pytest.mark.parametrize(
    ("parameters", "blocks"),
    [
        ({"maxPrefixTokensToMatch": 192}, 3),
        ({"maxPrefixTokensToMatch": 0, "maxPrefixBlocksToMatch": 4}, 4),
        ({"maxPrefixTokensToMatch": 0, "maxPrefixBlocksToMatch": 0}, 10),
    ],
)
def test_blocks_to_match_follow_the_parameters(parameters, blocks):
    assert Bench(**parameters).blocks(text(10)).total_blocks == blocks


def test_capacity_is_converted_to_our_block_size():
    table = pool({CACHE_BLOCK_SIZE: [16.0, 16.0, None], CACHE_NUM_BLOCKS: [16.0, None, 3.0]})
    bench = Bench(table, lruCapacityPerServer=2)
    for row in range(3):
        bench.send(row, text(8))
    assert bench.matched(text(8)) == [4, 2, 3]


def test_capacity_is_configured_without_auto_tune():
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
def test_invalid_parameters_are_refused(parameters):
    with pytest.raises(ValidationError):
        instance(ApproxPrefixCacheProducer, **parameters)


def test_metrics_count_entries_and_hits():
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
