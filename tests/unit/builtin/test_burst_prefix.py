"""Requests of one window are placed together."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from endpick.api import InferenceRequest, Prompt
from endpick.api.keys import PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, TOKENIZED_PROMPT, PromptTokens
from endpick.api.state import CycleState
from endpick_builtin.producers import burst_prefix
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


async def test_equal_prompts_are_placed_together():
    producer = instance(BurstPrefixCacheProducer, windowDurationMs=HOUR, maxBatchSize=5, blockSizeTokens=1)
    a, b, alone, c, d = await asyncio.gather(*(matches(producer, text) for text in (b"aaaabbbb", b"cccc", b"dddd", b"aaaabbbb", b"cccc")))
    assert a == c == ([2, 0, 0], 2)
    assert b == d == ([0, 1, 0], 1)
    assert alone == ([0, 0, 0], 1)


async def test_windows_end_by_time():
    producer = instance(BurstPrefixCacheProducer, windowDurationMs=1)
    for _ in range(2):
        assert await asyncio.gather(matches(producer, b"x"), matches(producer, b"x")) == [([1, 0, 0], 1)] * 2
    assert producer.plugin.timeout_seconds == 0.301
    sizes = {sample.name: sample.value for family in producer.registry.collect() for sample in family.samples}
    assert sizes["endpick_burst_prefix_window_requests_count"] == 2
    assert sizes["endpick_burst_prefix_window_requests_sum"] == 4


async def test_a_request_without_a_prompt_does_not_wait():
    assert await matches(instance(BurstPrefixCacheProducer, windowDurationMs=HOUR)) == ([0, 0, 0], 0)


async def test_a_cancelled_request_does_not_count():
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


async def test_groups_go_to_common_candidates_by_tokens():
    producer = instance(BurstPrefixCacheProducer, windowDurationMs=HOUR, maxBatchSize=2, balanceBy="tokens")
    first = matches(producer, b"text", tokens=[1, 2])
    second = matches(producer, b"another", [2, 1], tokens=[1, 2])
    assert await asyncio.gather(first, second) == [([0, 1, 0], 1), ([0, 1], 1)]


async def test_prompts_are_compared_up_to_the_limit():
    producer = instance(BurstPrefixCacheProducer, windowDurationMs=HOUR, maxBatchSize=2, blockSizeTokens=1, maxPrefixTokensToMatch=2)
    both = await asyncio.gather(matches(producer, b"aaaabbbbcccc"), matches(producer, b"aaaabbbbdddd"))
    assert both == [([2, 0, 0], 2)] * 2


@pytest.mark.parametrize(("maximum", "ended"), [(19, True), (20, False)])
async def test_the_work_of_a_window_is_bounded(monkeypatch, maximum, ended):
    """A request takes ten steps: three for each endpoint, and one block."""
    monkeypatch.setattr(burst_prefix, "MAX_STEPS", maximum)
    producer = instance(BurstPrefixCacheProducer, windowDurationMs=HOUR)
    waiting = [asyncio.create_task(matches(producer, b"text")) for _ in range(2)]
    for _ in range(2):
        await asyncio.sleep(0)
    assert [one.done() for one in waiting] == [ended] * 2
    await producer.plugin.stop()
    assert await asyncio.gather(*waiting) == [([1, 0, 0], 1)] * 2
