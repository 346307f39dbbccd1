"""The precise producer and scorer, driven as the host drives them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from endpick.api import ProfileRunResult, ResponseEnd, ResponseHead, SchedulingResult, TerminationCause, Usage
from endpick.api.access import Access
from endpick.api.keys import (
    PREFIX_BLOCKS,
    PREFIX_CACHED_BLOCKS,
    PREFIX_HOST_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    PREFIX_MATCH_SHARE,
    TOKENIZED_PROMPT,
    PromptTokens,
)
from endpick.requests.headers import HeadersForUpstream
from endpick_kv_events import plugins
from endpick_kv_events.block_index import Speculation, TierIndex
from endpick_kv_events.parameters import PrecisePrefixCacheParameters
from endpick_kv_events.plugins import PrecisePrefixCacheScorer
from unit.builtin.kv_publisher import BLOCK, Picker, Publisher, endpoint, picking, ports, prompt, stored, until

SILENT = {"kvEventsConfig": {"discoverPods": False}}
POOL = [endpoint("pool/a", 8000), endpoint("pool/b", 8001), endpoint("pool/c", 8002)]


def send(picker, blocks, row, prefill=None):
    request, endpoints, state = picker.look_up(prompt(blocks))
    runs = {"decode": ProfileRunResult("decode", endpoints.take([row]))}
    if prefill is not None:
        runs["prefill"] = ProfileRunResult("prefill", endpoints.take([prefill]))
    result = SchedulingResult("decode", runs, (endpoints.members[row].address,))
    picker.plugin.before_request(request, result, HeadersForUpstream({}), state)
    picker.plugin.response_started(request, ResponseHead(200, {}, endpoints.members[row]), state)
    return request, state


def answer(picker, sent, cached, blocks, cause=TerminationCause.NATURAL):
    usage = Usage(blocks * BLOCK, 1, cached)
    picker.plugin.response_ended(sent[0], ResponseEnd(cause, 200, usage, 10, 0.1, 0.1), sent[1])


def clocked(picker):
    """The picker's time, to be moved by hand."""
    now = [0.0]
    object.__setattr__(picker.plugin.context, "clock", lambda: now[0])
    return now


def test_speculative_blocks_count_until_they_expire():
    picker = Picker(POOL, speculativeIndexing=True, speculativeTTL="2s", **SILENT)
    now = clocked(picker)
    send(picker, 3, row=0, prefill=2)
    assert picker.matches(4) == [3.0, 0.0, 3.0]
    now[0] = 1.0
    send(picker, 2, row=0)
    now[0] = 2.5
    assert picker.matches(4) == [2.0, 0.0, 0.0]
    now[0] = 3.5
    assert picker.matches(4) == [0.0, 0.0, 0.0]
    assert picker.count("endpick_kv_cache_index_blocks") == 0


def test_a_removed_endpoint_loses_its_speculative_blocks():
    picker = Picker(POOL, speculativeIndexing=True, **SILENT)
    send(picker, 2, row=0)
    send(picker, 2, row=1)
    picker.table.remove("pool/a")
    assert picker.matches(2) == [2.0, 0.0]
    picker.table.upsert(endpoint("pool/d", 8003))
    assert picker.matches(2) == [2.0, 0.0, 0.0]


@pytest.mark.asyncio
async def test_tiers_are_weighted_and_counted_apart():
    publisher = Publisher()
    try:
        async with picking([endpoint()], **ports(publisher)) as picker:
            await publisher.found()
            publisher.send(0, stored(1, count=2), {**stored(3, parent=2, count=3), "medium": "CPU"})
            await until(lambda: picker.matches(5) == [4.0])
            _, endpoints, state = picker.look_up(prompt(6))
            read = [
                state.column(key, endpoints).tolist()
                for key in (PREFIX_MATCH_BLOCKS, PREFIX_CACHED_BLOCKS, PREFIX_HOST_BLOCKS, PREFIX_MATCH_SHARE)
            ]
            assert read == [[4.0], [5.0], [3.0], [pytest.approx(4 / 6)]]
            blocks = state.get(PREFIX_BLOCKS)
            assert (blocks.total_blocks, blocks.block_size_tokens, len(blocks.hashes)) == (6, BLOCK, 6)
    finally:
        publisher.close()


def scores(picker, blocks):
    request, endpoints, state = picker.look_up(prompt(blocks))
    return picker.plugin.score(request, endpoints, state).tolist()


def test_a_scorer_with_parameters_is_a_producer():
    picker = Picker(POOL, PrecisePrefixCacheScorer, speculativeIndexing=True, **SILENT)
    parameters = picker.plugin.parameters
    assert PREFIX_MATCH_BLOCKS in PrecisePrefixCacheScorer.subscriptions(parameters).produces
    assert PrecisePrefixCacheScorer.subscriptions(parameters).consumes == (TOKENIZED_PROMPT,)
    send(picker, 2, row=1)
    assert scores(picker, 4) == [0.0, 0.5, 0.0]


def test_a_scorer_without_parameters_reads_the_producer():
    subscriptions = PrecisePrefixCacheScorer.subscriptions(PrecisePrefixCacheParameters())
    assert subscriptions.consumes == (PREFIX_MATCH_SHARE,)
    assert subscriptions.produces == ()
    assert PREFIX_MATCH_SHARE.default_producer == "precise-prefix-cache-producer"


@pytest.mark.parametrize(
    ("block", "blocks"),
    [
        ({}, 6),
        ({"blockSizeTokens": 32}, 3),
        ({"blockSize": 8, "blockSizeTokens": 48}, 2),
    ],
)
def test_the_block_size_is_the_configured_one_or_16(block, blocks):
    picker = Picker(POOL, tokenProcessorConfig=block, **SILENT)
    _, _, state = picker.look_up(prompt(24))
    assert state.get(PREFIX_BLOCKS).total_blocks == blocks


@pytest.mark.parametrize(
    "block",
    [
        {"tokenProcessorConfig": {"hashAlgorithm": "xxhash"}},
        {"kvEventsConfig": {"zmqEndpoint": "0.0.0.0:5557"}},
        {"speculativeTTL": "soon"},
        {"indexerConfig": {"kvBlockIndexConfig": {"costAwareMemoryConfig": {"size": "much"}}}},
    ],
)
def test_invalid_parameters_are_refused(block):
    with pytest.raises(ValidationError):
        PrecisePrefixCacheParameters.model_validate(block)


def test_a_memory_bound_becomes_a_number_of_blocks():
    block = {"indexerConfig": {"kvBlockIndexConfig": {"costAwareMemoryConfig": {"size": "1.5GiB"}, "inMemoryConfig": {"size": 7}}}}
    assert PrecisePrefixCacheParameters.model_validate(block).indexer.block_index.blocks_per_endpoint == 3 * 2**29 // 320


@pytest.mark.asyncio
async def test_disproved_blocks_are_purged():
    publisher = Publisher()
    try:
        async with picking([endpoint()], **ports(publisher)) as picker:
            await publisher.found()
            publisher.send(0, stored(1, count=8))
            await until(lambda: picker.matches(8) == [8.0])
            answer(picker, send(picker, 8, 0), cached=7 * BLOCK, blocks=8)
            assert picker.matches(8) == [8.0]
            answer(picker, send(picker, 8, 0), cached=2 * BLOCK, blocks=8, cause=TerminationCause.ERROR)
            assert picker.matches(8) == [8.0]
            answer(picker, send(picker, 8, 0), cached=2 * BLOCK, blocks=8)
            assert picker.count("endpick_prefix_purged_blocks_total", endpoint_name="a") == 6
            _, endpoints, state = picker.look_up(prompt(8))
            assert state.column(PREFIX_CACHED_BLOCKS, endpoints).tolist() == [2.0]
    finally:
        publisher.close()


@pytest.mark.asyncio
async def test_blocks_stored_meanwhile_are_not_purged():
    publisher = Publisher()
    try:
        async with picking([endpoint()], **ports(publisher)) as picker:
            await publisher.found()
            publisher.send(0, stored(1, count=8))
            await until(lambda: picker.matches(8) == [8.0])
            sent = send(picker, 8, 0)
            publisher.send(1, stored(1, count=6))
            await until(lambda: picker.count("llm_d_epp_kv_cache_index_admissions_total") == 14)
            answer(picker, sent, cached=0, blocks=8)
            assert picker.count("endpick_prefix_purged_blocks_total", endpoint_name="a") == 2
    finally:
        publisher.close()


def test_promises_are_not_compared_without_self_check():
    picker = Picker(POOL, speculativeIndexing=True, selfCheck=False, **SILENT)
    answer(picker, send(picker, 3, 0), cached=0, blocks=3)
    answer(picker, send(picker, 3, 0), cached=0, blocks=3)
    assert picker.matches(3) == [3.0, 0.0, 0.0]
    assert picker.count("endpick_prefix_checks_total", endpoint_name="a") == 0


def test_equal_prompts_of_one_request_expire_once():
    index = TierIndex({})
    slot = index.slot("pool/a")
    speculation = Speculation(index, 2.0)
    speculation.add(slot, [1, 2, 1, 2], 0.0)
    assert index.size == 2
    speculation.expire(2.0)
    assert index.size == 0


@pytest.mark.parametrize(("speculative", "keys"), [(False, 1), (True, 2049)])
def test_keys_are_made_up_to_the_first_unheld_block(speculative, keys):
    picker = Picker(POOL, speculativeIndexing=speculative, **SILENT)
    _, _, state = picker.look_up(prompt(5000))
    blocks = state.get(PREFIX_BLOCKS)
    assert (blocks.total_blocks, len(blocks.hashes)) == (5000, keys)


def test_a_long_speculated_prompt_matches_in_full():
    picker = Picker(POOL, speculativeIndexing=True, **SILENT)
    for _ in range(3):
        send(picker, 5000, row=0)
    assert picker.matches(5000) == [5000, 0, 0]


@pytest.mark.parametrize("prompts", [1, 40])
def test_a_request_makes_a_bounded_number_of_new_keys(monkeypatch, prompts):
    monkeypatch.setattr(plugins, "MAX_NEW_TOKENS", 64 * BLOCK)
    picker = Picker(POOL, speculativeIndexing=True, tokenProcessorConfig={"hashSeed": f"{prompts}", "blockSizeTokens": BLOCK}, **SILENT)
    given = [PromptTokens(prompt(4000 // prompts, first=100 * number)) for number in range(prompts)]
    found = [picker.plugin._cache.look_up("m", given, "", picker.table.view(Access())) for _ in range(3)]
    counts = [len(each.keys) for each in found]
    assert 64 <= counts[0] <= 128
    assert counts[0] < counts[1] < counts[2], "known keys cost nothing"
