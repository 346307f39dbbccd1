"""The simulation beside the same servers over HTTP in real time: equal requests take equally long."""

from __future__ import annotations

import asyncio
import json
import time
from random import Random
from statistics import fmean

import aiohttp
import pytest

from endpick_lab.pool import PoolSettings
from endpick_lab.run import Observed, run
from endpick_lab.server import serve
from endpick_lab.settings import EngineSettings, ServerSettings, Timing
from endpick_lab.trace import TraceRequest

ENGINE = EngineSettings(kv_blocks=400, block_size=64, max_model_len=16_384, timing=Timing(0.000_1, 0.02, 0.01))
REQUESTS = 40


def trace() -> list[TraceRequest]:
    """A server at two thirds of its capacity; every third prompt repeats the one three before."""
    random, at, requests = Random(1), 0.0, list[TraceRequest]()
    for number in range(REQUESTS):
        at += random.expovariate(5)
        tokens = random.randrange(200, 2000)
        blocks = tuple(range(number * 100, number * 100 + -(-tokens // 64)))
        if number % 3 == 0 and number:
            tokens, blocks = requests[-3].prompt_tokens, requests[-3].blocks
        requests.append(TraceRequest(at, tokens, random.randrange(2, 20), blocks, 64))
    return requests


async def in_real_time(requests: list[TraceRequest]) -> list[float]:
    """Times to first token over HTTP."""
    server = await serve(ServerSettings(engine=ENGINE))
    async with aiohttp.ClientSession(f"http://{server.address}") as session:

        async def send(request: TraceRequest) -> float:
            await asyncio.sleep(max(start + request.at - time.monotonic(), 0.0))
            body = {"model": "sim-model", "prompt": request.text(), "stream": True, "max_tokens": request.output_tokens}
            began = time.monotonic()
            async with session.post("/v1/completions", data=json.dumps(body)) as response:
                await response.content.readline()
                first = time.monotonic() - began
                await response.read()
            return first

        start = time.monotonic()
        found = await asyncio.gather(*map(send, requests))
    await server.close()
    return found


def first_token(one: Observed) -> float:
    assert one.first_token_at is not None
    return one.first_token_at - one.arrived_at


@pytest.mark.long
@pytest.mark.timeout(60)
def test_first_tokens_come_when_the_simulation_says():
    requests = trace()
    virtual = [first_token(one) for one in run(None, requests, PoolSettings(1, ENGINE), 1).observed]
    real = asyncio.run(in_real_time(requests))
    differences = [one - other for one, other in zip(real, virtual, strict=True)]
    print(f"mean {fmean(virtual):.4f} s in virtual time, {fmean(real):.4f} s over HTTP")
    assert abs(fmean(differences)) < 0.25 * fmean(virtual)
    assert sum(abs(one) < 0.05 for one in differences) > 0.8 * REQUESTS  # a step takes 20 ms; a busy machine delays some
