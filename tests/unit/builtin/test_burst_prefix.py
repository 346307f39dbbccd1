"""Requests of one window are placed together."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from endpick.api import PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, TOKENIZED_PROMPT, InferenceRequest, Prompt, PromptTokens
from endpick.api.state import CycleState
from endpick_builtin.producers.burst_prefix import BurstPrefixCacheProducer
from unit.scheduling.workbench import access, instance, pool

pytestmark = pytest.mark.asyncio

HOUR = 10_000


async def matches(producer, text=b"", rows=None, tokens=None):
    """The blocks found at each of three endpoints, and how many there are."""
    shared = access()
    view = pool(size=3).view(shared)
    endpoints = view if rows is None else view.take(rows)
    state = CycleState(shared)
    if tokens is not None:
        state.put(TOKENIZED_PROMPT, (PromptTokens(np.array(tokens, dtype=np.uint32)),))
    shared.scope = producer.scope
    await producer.plugin.produce(InferenceRequest("r", "m", prompt=Prompt(lambda: (text,) if text else ())), endpoints, state)
    return state.column(PREFIX_MATCH_BLOCKS, endpoints).tolist(), state.get(PREFIX_BLOCKS).total_blocks


async def test_equal_prompts_meet_and_others_are_left_alone():
    producer = instance(BurstPrefixCacheProducer, windowDurationMs=HOUR, maxBatchSize=5, blockSizeTokens=1)
    a, b, alone, c, d = await asyncio.gather(*(matches(producer, text) for text in (b"aaaabbbb", b"cccc", b"dddd", b"aaaabbbb", b"cccc")))
    assert a == c == ([2, 0, 0], 2)
    assert b == d == ([0, 1, 0], 1)
    assert alone == ([0, 0, 0], 1)


async def test_the_window_ends_by_time_and_the_next_begins_anew():
    producer = instance(BurstPrefixCacheProducer, windowDurationMs=1)
    for _ in range(2):
        assert await asyncio.gather(matches(producer, b"x"), matches(producer, b"x")) == [([1, 0, 0], 1)] * 2
    assert producer.plugin.timeout_seconds == 0.301
    sizes = {sample.name: sample.value for family in producer.registry.collect() for sample in family.samples}
    assert sizes["endpick_burst_prefix_window_requests_count"] == 2
    assert sizes["endpick_burst_prefix_window_requests_sum"] == 4


async def test_a_request_without_a_prompt_waits_for_nobody():
    assert await matches(instance(BurstPrefixCacheProducer, windowDurationMs=HOUR)) == ([0, 0, 0], 0)


async def test_a_request_that_was_given_up_does_not_count():
    producer = instance(BurstPrefixCacheProducer, windowDurationMs=HOUR, maxBatchSize=3)
    given_up = asyncio.create_task(matches(producer, b"x"))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    assert await asyncio.gather(matches(producer, b"x"), matches(producer, b"y")) == [([0, 0, 0], 1)] * 2


async def test_stopping_ends_the_window():
    producer = instance(BurstPrefixCacheProducer, windowDurationMs=HOUR)
    waiting = [asyncio.create_task(matches(producer, b"x")) for _ in range(2)]
    await asyncio.sleep(0)
    await producer.plugin.stop()
    assert await asyncio.gather(*waiting) == [([1, 0, 0], 1)] * 2


async def test_members_go_where_all_of_them_may_and_tokens_count_where_there_are_any():
    producer = instance(BurstPrefixCacheProducer, windowDurationMs=HOUR, maxBatchSize=2, balanceBy="tokens")
    first = matches(producer, b"text", tokens=[1, 2])
    second = matches(producer, b"another", [2, 1], tokens=[1, 2])
    assert await asyncio.gather(first, second) == [([0, 1, 0], 1), ([0, 1], 1)]


async def test_no_more_of_a_prompt_is_looked_at_than_asked_for():
    producer = instance(BurstPrefixCacheProducer, windowDurationMs=HOUR, maxBatchSize=2, blockSizeTokens=1, maxPrefixTokensToMatch=2)
    both = await asyncio.gather(matches(producer, b"aaaabbbbcccc"), matches(producer, b"aaaabbbbdddd"))
    assert both == [([2, 0, 0], 2)] * 2


@pytest.mark.parametrize(
    ("config", "blocks", "ended"),
    [
        ({"maxSteps": 19}, 1, True),  # a request takes ten: three endpoints and a block
        ({"maxSteps": 20}, 1, False),
        ({}, 100_000, True),
        ({"maxSteps": 300_000}, 100_000, False),
    ],
)
async def test_so_many_steps_of_placing_end_the_window(config, blocks, ended, caplog):
    given = {"windowDurationMs": HOUR, "blockSizeTokens": 1, "maxPrefixTokensToMatch": blocks, **config}
    producer = instance(BurstPrefixCacheProducer, **given)
    waiting = [asyncio.create_task(matches(producer, b"x" * 4 * blocks)) for _ in range(2)]
    for _ in range(2):
        await asyncio.sleep(0)
    assert [one.done() for one in waiting] == [ended] * 2
    assert ("raise maxSteps" in caplog.text) is ended
    await producer.plugin.stop()
    assert await asyncio.gather(*waiting) == [([blocks, 0, 0], blocks)] * 2
