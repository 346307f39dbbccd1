"""The load generator, against one simulated server and against servers that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import aiohttp
import pytest
from aiohttp import web

from endpick_lab.demo.load import WorkloadSettings, make_workload, run_load
from endpick_lab.demo.runner import parse_stats, read_stats
from endpick_lab.server import serve
from endpick_lab.settings import EngineSettings, ServerSettings, Timing

SETTINGS = WorkloadSettings(0.2, requests_per_second=30, tenants=1, turns=3, system_tokens=64, answer_tokens=8)
WORKLOAD = make_workload(SETTINGS, seed=1)
LIMIT_SECONDS = 30.0
FAST = EngineSettings(timing=Timing(prefill_seconds_per_token=1e-6, decode_seconds=1e-3))


@asynccontextmanager
async def misbehaving(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.asyncio
async def test_each_question_is_measured_with_its_history():
    server = await serve(ServerSettings(name="only", engine=FAST))
    try:
        outcomes = await run_load(f"http://{server.address}", WORKLOAD, "sim-model", LIMIT_SECONDS)
    finally:
        await server.close()
    assert len(outcomes) == 6
    for chat in WORKLOAD:
        turns = [outcome for outcome in outcomes if outcome.chat == chat.name]
        assert [outcome.error for outcome in turns] == [None] * 3
        assert {outcome.served_by for outcome in turns} == {"only"}
        assert all(0 < (outcome.ttft_seconds or 0) < outcome.total_seconds for outcome in turns)
        prompts = [outcome.prompt_tokens for outcome in turns]
        # Each turn adds the answer, its end marker, a header, a question, its end marker and a header to the prompt.
        added = [after - before for before, after in pairwise(prompts)]
        assert added == [8 + 2 + 3 + 48 + 2 + 4] * 2
        assert all(outcome.cached_tokens >= prompt - 16 for outcome, prompt in zip(turns[1:], prompts, strict=False))


@pytest.mark.asyncio
async def test_error_status_is_an_outcome_with_its_text():
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=503, text="no endpoint\n")

    async with misbehaving(refuse) as url:
        outcomes = await run_load(url, WORKLOAD, "m", LIMIT_SECONDS)
    assert {(o.error, o.ttft_seconds, o.served_by) for o in outcomes} == {("503 no endpoint", None, None)}
    assert len(outcomes) == 6


@pytest.mark.asyncio
async def test_truncated_answer_is_an_error_with_ttft():
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"delta": {"content": "one "}}]}\n\n')
        return response

    async with misbehaving(cut) as url:
        outcomes = await run_load(url, WORKLOAD, "m", LIMIT_SECONDS)
    assert {outcome.error for outcome in outcomes} == {"the answer ended before [DONE]"}
    assert all(outcome.ttft_seconds for outcome in outcomes)


@pytest.mark.asyncio
async def test_a_server_that_is_not_there_is_an_error_per_turn(unused_tcp_port: int):
    outcomes = await run_load(f"http://127.0.0.1:{unused_tcp_port}", WORKLOAD, "m", LIMIT_SECONDS)
    assert len(outcomes) == 6
    assert all((outcome.error or "").startswith("ClientConnectorError") for outcome in outcomes)


@pytest.mark.asyncio
async def test_load_ends_at_its_limit_and_counts_unanswered():
    async def answer_never(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with misbehaving(answer_never) as url:
        outcomes = await run_load(url, WORKLOAD, "m", limit_seconds=0.25)
    assert [outcome.error for outcome in outcomes] == ["not answered when the load ended after 0 s"] * 6


@pytest.mark.asyncio
async def test_stats_are_read_from_the_servers_own_metrics():
    server = await serve(ServerSettings(engine=FAST))
    url = f"http://{server.address}"
    async with aiohttp.ClientSession() as client:
        try:
            outcomes = await run_load(url, WORKLOAD, "sim-model", LIMIT_SECONDS)
            stats = await read_stats(client, url)
        finally:
            await server.close()
        gone = await read_stats(client, url)
    assert stats is not None
    assert (stats.requests, stats.running, stats.waiting, stats.kv_cache_usage) == (6, 0, 0, 0.0)
    cached, prompts = sum(o.cached_tokens for o in outcomes), sum(o.prompt_tokens for o in outcomes)
    assert stats.prefix_hit_ratio == cached / prompts
    assert gone is None


def test_a_page_without_the_metrics_reads_as_zero():
    assert parse_stats("# nothing\nother 1\n") == parse_stats("")
