"""What requests hold together, which stage of overload follows, and who acts on it."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from statistics import median

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import PREDICTED_TTFT, TOKENIZED_PROMPT, PromptTokens, Rejection
from endpick.requests.memory import (
    DROP_BYTES,
    EXCHANGE_BYTES,
    STAGE_BOUNDS,
    MemoryAccount,
    MemoryBudget,
    OverloadStage,
    next_stage,
    parsed_size,
)
from endpick.requests.model import CloseCause
from endpick_builtin.parsers import openai_prompts
from unit.requests.stage import CHAT, Stage, admitter_of, async_producer_of, producer_of

NORMAL, RELEASING, SHEDDING, REFUSING, CLOSING = OverloadStage
SHARES = st.floats(0.0, 1.2)


@pytest.mark.parametrize(
    ("stage", "accounted", "resident", "follows"),
    [
        (NORMAL, 0.69, 0.0, NORMAL),
        (NORMAL, 0.70, 0.0, RELEASING),
        (NORMAL, 0.0, 0.85, SHEDDING),
        (NORMAL, 0.0, 1.0, SHEDDING),
        (NORMAL, 0.93, 0.0, REFUSING),
        (NORMAL, 1.1, 0.0, CLOSING),
        (RELEASING, 0.66, 0.0, RELEASING),
        (RELEASING, 0.64, 0.0, NORMAL),
        (SHEDDING, 0.78, 0.0, SHEDDING),
        (SHEDDING, 0.74, 0.0, RELEASING),
        (REFUSING, 0.86, 1.0, REFUSING),
        (REFUSING, 0.84, 1.0, SHEDDING),
        (CLOSING, 0.0, 0.0, NORMAL),
        (CLOSING, 0.87, 0.0, REFUSING),
    ],
)
def test_the_stage_that_follows(stage, accounted, resident, follows):
    assert next_stage(stage, accounted, resident) is follows


@given(st.lists(st.tuples(SHARES, SHARES), min_size=1, max_size=30))
def test_a_stage_begins_and_ends_at_its_bounds_whatever_came_before(usages):
    stage = NORMAL
    for accounted, resident in usages:
        before, stage = stage, next_stage(stage, accounted, resident)
        for each, bounds in STAGE_BOUNDS.items():
            used = max(accounted, resident) if bounds.counts_resident else accounted
            assert stage >= each or used < bounds.begins
            if each is not NORMAL and before >= each > stage:
                assert used < bounds.ends
        assert next_stage(stage, accounted, resident) is stage


def test_what_is_resident_alone_never_has_everything_refused():
    assert next_stage(NORMAL, 0.0, 100.0) is SHEDDING


def test_each_stage_ends_below_its_begin_and_begins_above_the_one_before():
    bounds = list(STAGE_BOUNDS.values())[1:]
    assert all(each.ends < each.begins for each in bounds)
    assert [each.begins for each in bounds] == sorted(each.begins for each in bounds)


def test_a_budget_adds_to_its_account_and_the_account_changes_its_stage_between_measurements():
    account = MemoryAccount(1000, base_bytes=100)
    seen = []
    account.on_stage.append(lambda before, after: seen.append((before, after)))
    one, other = MemoryBudget(10_000, account), MemoryBudget(10_000, account)
    assert one.hold(500)
    assert account.stage is NORMAL
    assert other.hold(101)
    assert account.stage is RELEASING
    account.hold_parsed(250)
    assert (account.stage, account.held_bytes, account.parsed_bytes) == (CLOSING, 851, 250)
    account.hold_parsed(-250)
    one.hold(-500)
    other.hold(-101)
    assert account.stage is CLOSING, "going down waits for the next measurement"
    account.measured(0, 0)
    assert (account.stage, account.held_bytes) == (NORMAL, 0)
    assert seen == [(NORMAL, RELEASING), (RELEASING, CLOSING), (CLOSING, NORMAL)]


def test_what_plugins_have_learnt_counts_until_they_forget_it():
    account = MemoryAccount(1000)
    account.measured(0, 800)
    assert (account.stage, account.held_bytes, account.learnt_bytes) == (SHEDDING, 800, 800)
    account.measured(0, 100)
    assert (account.stage, account.held_bytes, account.learnt_bytes) == (NORMAL, 100, 100)


def chat(content):
    return {"messages": [{"role": "user", "content": content}]}


BODIES = {
    "text": orjson.dumps(chat("x" * 100_000)),
    "text beyond ascii": orjson.dumps(chat("ü€😀" * 30_000)),
    "messages": orjson.dumps({"messages": chat("hi")["messages"] * 5000}),
    "empty parts": orjson.dumps(chat([{}] * 20_000)),
    "parts": orjson.dumps(chat([{"type": "text", "text": "a"}] * 20_000)),
    "few parts": orjson.dumps(chat([{}] * 300)),
    "keys": orjson.dumps({**chat("x"), "x": {f"k{number}": number for number in range(20_000)}}),
    "lists": orjson.dumps({**chat("x"), "x": [[]] * 20_000}),
    "numbers": orjson.dumps({**chat("x"), "x": list(range(100_000))}),
    "short": orjson.dumps(chat("x" * 600)),
    "some messages": orjson.dumps({"messages": chat("hi")["messages"] * 40}),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_parsed_body_takes_about_what_is_accounted_for(body):
    taken = median(memory_taken_by(body) for _ in range(3))
    assert taken / 1.1 < parsed_size(body) < 6 * taken


def memory_taken_by(body):
    """Other threads of the process, such as that of pytest-xdist, may allocate or free something meanwhile."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    payload = orjson.loads(body)
    rendered = openai_prompts.chat(payload)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rendered
    return after - before


def sent(body):
    """As `Stage` sends it."""
    return json.dumps(body).encode()


def test_a_routed_request_is_accounted_for_until_it_is_over():
    stage = Stage()
    account = stage.director._account
    one, other = stage.route().exchange, stage.route(chat("x" * 1000) | {"model": "m"}).exchange
    assert account.parsed_bytes == parsed_size(sent(CHAT)) + parsed_size(sent(chat("x" * 1000) | {"model": "m"})) + 2 * EXCHANGE_BYTES
    one.finish(CloseCause.END)
    one.finish(CloseCause.END)
    other.finish(CloseCause.RESET)
    assert (account.parsed_bytes, account.held_bytes) == (0, 0)


def test_what_producers_make_of_a_request_is_accounted_for_until_it_is_over():
    tokens = np.zeros(1 << 18, np.uint32)

    def produce(request, endpoints, state):
        state.put(TOKENIZED_PROMPT, (PromptTokens(tokens),))
        state.put_column(PREDICTED_TTFT, endpoints, np.zeros(len(endpoints)))

    stage, plain = Stage(producers=[producer_of(produce)]), Stage()
    exchange, other = stage.route().exchange, plain.route().exchange
    held, usual = stage.director._account.held_bytes, plain.director._account.held_bytes
    assert tokens.nbytes < held - usual < tokens.nbytes + 1000
    for one in (exchange, other):
        one.finish(CloseCause.END)
    assert stage.director._account.held_bytes == 0


@pytest.mark.asyncio
async def test_what_producers_made_of_a_request_that_waits_for_another_one_is_accounted_for():
    tokens = np.zeros(1 << 18, np.uint32)
    at_once = producer_of(lambda request, endpoints, state: state.put(TOKENIZED_PROMPT, (PromptTokens(tokens),)), "at-once")
    stage = Stage(producers=[at_once, async_producer_of(lambda *_: asyncio.Event().wait(), timeout_seconds=30.0)])
    deciding = asyncio.ensure_future(stage.decide())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert stage.director._account.held_bytes > tokens.nbytes
    deciding.cancel()
    await asyncio.wait([deciding])
    assert stage.director._account.held_bytes == 0


def test_a_refused_request_is_not_accounted_for():
    stage = Stage(admitters=[admitter_of(lambda request: Rejection("no"))])
    stage.refuse()
    assert stage.director._account.held_bytes == 0


async def waits_for(event):
    stage = Stage(producers=[async_producer_of(lambda *_: event.wait(), timeout_seconds=30.0)])
    deciding = asyncio.ensure_future(stage.decide())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return stage.director._account, deciding


@pytest.mark.asyncio
async def test_a_request_that_waits_is_accounted_for_and_one_whose_client_left_no_more():
    account, deciding = await waits_for(asyncio.Event())
    assert account.parsed_bytes > 0
    deciding.cancel()
    await asyncio.wait([deciding])
    assert account.parsed_bytes == 0


@pytest.mark.asyncio
async def test_a_request_that_has_waited_is_accounted_for_once():
    event = asyncio.Event()
    account, deciding = await waits_for(event)
    waiting = account.parsed_bytes
    event.set()
    routed = await deciding
    assert account.parsed_bytes == waiting
    routed.exchange.finish(CloseCause.END)
    assert account.parsed_bytes == 0


@pytest.mark.parametrize("piece", [b'{"a":[1,2]},', "[ä,{ö}]".encode(), b"no structure"])
def test_the_estimate_of_a_long_body_is_that_of_its_pieces(piece):
    assert parsed_size(1000 * piece) == 1000 * parsed_size(piece)


def test_requests_of_negative_priority_are_shed_when_memory_is_short_and_no_others():
    account = MemoryAccount(1000)
    stage = Stage(objectives={"batch": -1}, account=account)
    account.measured(850, 0)
    refused = stage.refuse(x_llm_d_inference_objective="batch")
    assert (refused.status, refused.reason) == (429, "rejected-overloaded")
    assert account.counts()["request_shed"] == 1
    stage.route().exchange.finish(CloseCause.END)
    account.measured(100, 0)
    stage.route(x_llm_d_inference_objective="batch").exchange.finish(CloseCause.END)


def test_memory_is_given_back_each_time_when_much_less_is_held_than_was():
    account, told = MemoryAccount(), []
    account.on_drop.append(lambda: told.append(account.held_bytes))
    for held in (0, 5 * DROP_BYTES, 4 * DROP_BYTES, 4 * DROP_BYTES - 1, 3 * DROP_BYTES, DROP_BYTES // 2, 0, DROP_BYTES, 1):
        account.held_bytes = held
        account.settle()
    assert told == [4 * DROP_BYTES - 1, DROP_BYTES // 2]
