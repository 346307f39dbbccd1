"""The precise producer and its scorer as the host drives them: speculation, adapters of configurations, promises."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from pydantic import ValidationError

from endpick.api import (
    PREFIX_BLOCKS,
    PREFIX_CACHED_BLOCKS,
    PREFIX_HOST_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    PREFIX_MATCH_SHARE,
    TOKENIZED_PROMPT,
    ProfileRunResult,
    PromptTokens,
    ResponseEnd,
    ResponseHead,
    SchedulingResult,
    TerminationCause,
    Usage,
)
from endpick.api.access import Access
from endpick.requests.intake import HeadersForUpstream
from endpick_builtin.producers.precise.block_keys import KnownKeys
from endpick_builtin.producers.precise.parameters import PrecisePrefixCacheParameters
from endpick_builtin.producers.precise.speculation import Speculation
from endpick_builtin.producers.precise.tier_index import TierIndex
from endpick_builtin.producers.precise_prefix_cache import PrecisePrefixCacheProducer
from endpick_builtin.scorers.precise_prefix_cache import PrecisePrefixCacheScorer
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


def test_a_request_on_its_way_counts_for_a_while_where_it_was_sent_and_prefilled():
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


def test_an_endpoint_that_leaves_takes_what_was_on_its_way_along():
    picker = Picker(POOL, speculativeIndexing=True, **SILENT)
    send(picker, 2, row=0)
    send(picker, 2, row=1)
    picker.table.remove("pool/a")
    assert picker.matches(2) == [2.0, 0.0]
    picker.table.upsert(endpoint("pool/d", 8003))
    assert picker.matches(2) == [2.0, 0.0, 0.0]


def test_without_speculation_a_request_on_its_way_counts_for_nothing():
    picker = Picker(POOL, **SILENT)
    send(picker, 3, row=0)
    assert picker.matches(3) == [0.0, 0.0, 0.0]


@pytest.mark.asyncio
async def test_tiers_are_told_apart_in_what_it_produces():
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


@pytest.mark.asyncio
async def test_when_memory_is_short_the_older_half_is_forgotten():
    publisher = Publisher()
    try:
        async with picking([endpoint()], **ports(publisher)) as picker:
            await publisher.found()
            publisher.send(0, stored(1, count=4), stored(11, count=4))
            await until(lambda: picker.matches(4, first=11) == [4.0])
            before = picker.plugin.learnt_bytes()
            picker.plugin.forget_some()
            assert (picker.matches(4), picker.matches(4, first=11)) == ([0.0], [4.0])
            assert picker.plugin.learnt_bytes() == before / 2 > 0
    finally:
        publisher.close()


def scores(picker, blocks):
    request, endpoints, state = picker.look_up(prompt(blocks))
    return picker.plugin.score(request, endpoints, state).tolist()


def test_a_scorer_with_parameters_is_a_producer_of_its_own():
    picker = Picker(POOL, PrecisePrefixCacheScorer, speculativeIndexing=True, **SILENT)
    parameters = picker.plugin.parameters
    assert PREFIX_MATCH_BLOCKS in PrecisePrefixCacheScorer.subscriptions(parameters).produces
    assert PrecisePrefixCacheScorer.subscriptions(parameters).consumes == (TOKENIZED_PROMPT,)
    send(picker, 2, row=1)
    assert scores(picker, 4) == [0.0, 0.5, 0.0]


def test_a_scorer_without_parameters_reads_what_a_producer_left():
    subscriptions = PrecisePrefixCacheScorer.subscriptions(PrecisePrefixCacheParameters())
    assert subscriptions.consumes == (PREFIX_MATCH_SHARE,)
    assert subscriptions.produces == ()
    assert PREFIX_MATCH_SHARE.default_producer == "precise-prefix-cache-producer"


@pytest.mark.parametrize(
    ("block", "blocks"),
    [
        ({}, 6),
        ({"blockSizeTokens": 32}, 3),
        ({"blockSize": 8}, 12),
        ({"blockSize": 8, "blockSizeTokens": 48}, 2),
        ({"hashSeed": "42"}, 6),
    ],
)
def test_the_block_size_is_the_one_given_or_sixteen(block, blocks):
    picker = Picker(POOL, tokenProcessorConfig=block, **SILENT)
    _, _, state = picker.look_up(prompt(24))
    assert state.get(PREFIX_BLOCKS).total_blocks == blocks


@pytest.mark.parametrize(
    "block",
    [
        {"tokenProcessorConfig": {"blockSizeTokens": -1}},
        {"tokenProcessorConfig": {"hashAlgorithm": "xxhash"}},
        {"kvEventsConfig": {"zmqEndpoint": "0.0.0.0:5557"}},
        {"kvEventsConfig": {"engineType": "triton"}},
        {"speculativeTTL": "0s"},
        {"speculativeTTL": "soon"},
        {"indexerConfig": {"kvBlockIndexConfig": {"costAwareMemoryConfig": {"size": "much"}}}},
        {"selfcheck": False},
    ],
)
def test_parameters_that_make_no_sense_are_refused(block):
    with pytest.raises(ValidationError):
        PrecisePrefixCacheParameters.model_validate(block)


def test_a_memory_bound_becomes_a_number_of_blocks():
    block = {"indexerConfig": {"kvBlockIndexConfig": {"costAwareMemoryConfig": {"size": "1.5GiB"}, "inMemoryConfig": {"size": 7}}}}
    assert PrecisePrefixCacheParameters.model_validate(block).indexer.block_index.blocks_per_endpoint == 3 * 2**29 // 320


def test_a_configuration_that_needs_the_extra_says_how_to_get_it(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr("endpick_builtin.producers.precise.parameters.find_spec", lambda name: None if name == "msgspec" else found(name))
    with pytest.raises(ValidationError, match=r"KV events need msgspec, which are not installed: run pip install 'endpick\[kv-events\]'"):
        PrecisePrefixCacheParameters.model_validate({})
    assert not PrecisePrefixCacheParameters.model_validate(SILENT).kv_events.in_use


@pytest.mark.asyncio
async def test_what_an_engine_turns_out_not_to_hold_is_purged():
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
async def test_what_an_engine_has_stored_again_meanwhile_is_not_purged():
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


def test_without_the_self_check_nothing_is_compared():
    picker = Picker(POOL, speculativeIndexing=True, selfCheck=False, **SILENT)
    answer(picker, send(picker, 3, 0), cached=0, blocks=3)
    answer(picker, send(picker, 3, 0), cached=0, blocks=3)
    assert picker.matches(3) == [3.0, 0.0, 0.0]
    assert picker.count("endpick_prefix_checks_total", endpoint_name="a") == 0


def test_it_is_what_its_type_says():
    assert PrecisePrefixCacheProducer.consumes == (TOKENIZED_PROMPT,)


def test_equal_prompts_of_one_request_are_removed_once():
    index = TierIndex({})
    slot = index.slot("pool/a")
    speculation = Speculation(index, 2.0)
    speculation.add(slot, [1, 2, 1, 2], 0.0)
    assert index.size == 2
    speculation.expire(2.0)
    assert index.size == 0


@pytest.mark.parametrize(("speculative", "keys"), [(False, 1), (True, 2049)])
def test_no_more_keys_are_made_than_what_is_held_asks_for(speculative, keys):
    picker = Picker(POOL, speculativeIndexing=speculative, **SILENT)
    _, _, state = picker.look_up(prompt(5000))
    blocks = state.get(PREFIX_BLOCKS)
    assert (blocks.total_blocks, len(blocks.hashes)) == (5000, keys)


def test_a_prompt_that_is_held_further_than_it_is_speculated_on_matches_in_full():
    picker = Picker(POOL, speculativeIndexing=True, **SILENT)
    for _ in range(3):
        send(picker, 5000, row=0)
    assert picker.matches(5000) == [5000, 0, 0]


def test_of_many_prompts_no_more_blocks_are_looked_up_than_keys_can_be_made_for_at_once():
    picker = Picker(POOL, tokenProcessorConfig={"blockSizeTokens": 1024, "hashSeed": "of this test alone"}, **SILENT)
    prompts = [PromptTokens(np.arange(number, number + 1024, dtype=np.uint32)) for number in range(100)]
    found = [picker.plugin._cache.look_up("m", prompts, "", picker.table.view(Access())) for _ in range(3)]
    assert [each.total for each in found] == [100] * 3
    assert [len(each.keys) for each in found] == [33, 66, 99], "131072 bytes are 32 blocks, and those that are known cost nothing"


@pytest.mark.parametrize(("tokens", "extras"), [(bytes(4096), ()), (bytes(64), ("\U0001f600" * 1000,))])
def test_known_keys_take_no_more_memory_than_they_may_however_long_they_are(tokens, extras):
    known = KnownKeys(100_000)
    for number in range(1000):
        known.key(number, tokens, extras)
    assert 20 < len(known) < 50
    made = known.made_bytes
    first, last = known.key(0, tokens, extras), known.key(999, tokens, extras)
    assert first != last
    assert known.made_bytes > made, "the first was forgotten"
    made = known.made_bytes
    known.key(999, tokens, extras)
    assert known.made_bytes == made, "and the last was not"


@pytest.mark.parametrize(("most", "noted"), [(2, 3.0), (5, 6.0), (4096, 7.0)])
def test_of_a_prompt_that_is_held_nowhere_as_much_is_noted_as_the_operator_says(most, noted):
    picker = Picker(POOL, speculativeIndexing=True, maxSpeculatedBlocks=most, **SILENT)
    send(picker, 7, row=0)
    assert picker.matches(7) == [noted, 0.0, 0.0], "and the one that came after them"


@pytest.mark.parametrize(("most", "keys"), [(BLOCK, 2), (3 * BLOCK, 4), (40 * BLOCK, 40)])
def test_keys_are_made_for_as_many_unseen_tokens_as_the_operator_says(most, keys):
    processor = {"maxNewTokens": most, "hashSeed": f"unseen by any test but this one with {most}", "blockSizeTokens": BLOCK}
    picker = Picker(POOL, speculativeIndexing=True, tokenProcessorConfig=processor, **SILENT)
    _, _, state = picker.look_up(prompt(40))
    assert len(state.get(PREFIX_BLOCKS).hashes) == keys
