"""Requests through the real Envoy and `endpick serve` to two real vLLM servers, told apart by what their own counters say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import aiohttp
import pytest

from integration.serve.gateway import Gateway, running_gateway, samples, until
from real.servers import ADAPTER, BLOCK, BLOCKS, MODEL, Server

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(900)]

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: static-discovery
  parameters:
    endpoints:
    - {{name: a, address: 127.0.0.1, port: {first}}}
    - {{name: b, address: 127.0.0.1, port: {second}}}
- type: queue-scorer
- type: lora-affinity-scorer
- type: prefix-cache-scorer
  parameters: {{prefixMatchInfoProducerName: index}}
- type: token-producer
  parameters: {{modelName: tiny, vllm: {{url: "http://127.0.0.1:{renderer}"}}}}
- name: index
  type: precise-prefix-cache-producer
  parameters:
    selfCheck: true
    tokenProcessorConfig: {{blockSizeTokens: 32, hashAlgorithm: xxh64}}
    kvEventsConfig: {{podDiscoveryConfig: {{askServers: true}}}}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: queue-scorer, weight: 1}}
  - {{pluginRef: lora-affinity-scorer, weight: {lora}}}
  - {{pluginRef: prefix-cache-scorer, weight: 5}}
dataLayer:
  discovery: {{endpoints: {{pluginRef: static-discovery}}}}
"""
RECEIVED, REPLAYED = "llm_d_epp_kv_cache_events_messages_received_total", "llm_d_epp_kv_cache_events_replay_completed_total"
INDEXED, ADMITTED = "endpick_kv_cache_index_blocks", "llm_d_epp_kv_cache_index_admissions_total"
EVICTED, BAD = "llm_d_epp_kv_cache_index_evictions_total", "endpick_kv_events_bad_total"
CHECKS, BROKEN = "endpick_prefix_checks_total", "endpick_prefix_broken_promises_total"
WORDS = ["def", "class", "return", "import", "raise", "while", "lambda", "yield", "assert", "global", "except", "finally"]


def story(seed: int, words: int = 300) -> str:
    """Text that no other story begins with."""
    random = Random(seed)
    return " ".join(random.choice(WORDS) for _ in range(words))


@asynccontextmanager
async def gateway_to(vllm: tuple[Server, Server, Server], folder: Path, lora: int = 1) -> AsyncIterator[Gateway]:
    """Started when the servers have run, and published, for a while: what they hold is known from their replay."""
    first, second, renderer = (server.port for server in vllm)
    config = CONFIG.format(first=first, second=second, renderer=renderer, lora=lora)
    async with running_gateway(folder, config, servers=0) as gateway:

        async def listens() -> bool:
            return await gateway.sample(REPLAYED) == 2 and await gateway.sample("llm_d_epp_kv_cache_events_replay_active") == 0

        await until(listens, "a replay of both servers' events")
        yield gateway


async def complete(client: aiohttp.ClientSession, prompt: str, url: str = "/v1/completions", **more: object) -> dict:
    """The usage of one completion."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "ignore_eos": True, **more}
    async with client.post(url, json=body) as response:
        assert response.status == 200, await response.text()
        return (await response.json())["usage"]


def cached(usage: dict) -> int:
    return (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)


async def served(server: Server) -> float:
    """Requests that the server has answered."""
    return sum(sample.value for sample in await samples(f"{server.url}/metrics") if sample.name == "vllm:request_success_total")


async def reset(server: Server) -> None:
    async with aiohttp.ClientSession() as client, client.post(f"{server.url}/reset_prefix_cache") as response:
        assert response.status == 200, await response.text()


async def test_prompt_goes_to_its_server_after_a_late_start(vllm, tmp_path):
    prompts = {vllm[0]: story(1), vllm[1]: story(2)}
    async with aiohttp.ClientSession() as client:
        for server, prompt in prompts.items():
            await complete(client, prompt, f"{server.url}/v1/completions")
    async with gateway_to(vllm, tmp_path) as gateway:
        assert await gateway.sample(ADMITTED) > 0, "the replay says what is held"
        for _ in range(3):
            for server, prompt in prompts.items():
                before = await served(server)
                usage = await complete(gateway.client, prompt)
                assert await served(server) == before + 1
                assert cached(usage) >= usage["prompt_tokens"] - 2 * BLOCK
        assert await gateway.sample(BAD) == 0
        assert await gateway.sample(CHECKS) == 6
        assert await gateway.sample(BROKEN) == 0
        drift = await gateway.sample("endpick_prefix_drift")
        print("drift", drift, "blocks", await gateway.sample(INDEXED))
        assert abs(drift) < 0.1


async def test_second_picker_finds_prompts_of_the_first(vllm, tmp_path):
    async with gateway_to(vllm, tmp_path) as gateway:
        found = []
        for seed in range(10, 18):
            messages = await gateway.sample(RECEIVED)
            first = await complete(gateway.client, story(seed))

            async def is_told(since: float = messages) -> bool:
                return await gateway.sample(RECEIVED) > since

            await until(is_told, "an event of the blocks that were stored")
            second = await complete(gateway.client, story(seed))
            found.append((cached(first), cached(second), second["prompt_tokens"]))
        print(found)
        assert all(again >= tokens - 2 * BLOCK > once for once, again, tokens in found)
        assert await gateway.sample(BROKEN) == 0


async def test_streamed_chats_report_the_servers_tokens(vllm, tmp_path):
    async with gateway_to(vllm, tmp_path) as gateway:
        question = {"messages": [{"role": "system", "content": story(30)}, {"role": "user", "content": "go"}]}
        body = {"model": MODEL, "max_tokens": 8, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}, **question}
        usages = []
        for _ in range(2):
            messages = await gateway.sample(RECEIVED)
            async with gateway.client.post("/v1/chat/completions", json=body) as response:
                assert response.status == 200
                assert response.headers["content-type"].startswith("text/event-stream")
                events = [line async for line in response.content if line.startswith(b"data: ")]
            assert events[-1].strip() == b"data: [DONE]"
            usages.append(json.loads(events[-2][6:])["usage"])
            if len(usages) == 1:

                async def is_told(since: float = messages) -> bool:
                    return await gateway.sample(RECEIVED) > since

                await until(is_told, "an event of the blocks that were stored")
        print(usages)
        assert cached(usages[1]) >= usages[1]["prompt_tokens"] - 2 * BLOCK
        assert await gateway.sample("endpick_token_producer_requests_total", {"outcome": "rendered"}) == 2
        assert await gateway.sample("llm_d_epp_request_cached_tokens_sum") == cached(usages[0]) + cached(usages[1])


async def test_what_a_server_forgets_is_forgotten(vllm, tmp_path):
    async with gateway_to(vllm, tmp_path) as gateway:
        await complete(gateway.client, story(40))

        async def holds_some() -> bool:
            return await gateway.sample(INDEXED) > 0

        await until(holds_some, "blocks in the index")
        for server in vllm[:2]:
            await reset(server)
        async with aiohttp.ClientSession() as client:
            for server in vllm[:2]:  # events are published with a step of the engine
                await complete(client, "hello", f"{server.url}/v1/completions")

        async def holds_none() -> bool:
            return await gateway.sample(INDEXED) == 0

        await until(holds_none, "the end of what was known, by AllBlocksCleared")
        usage = await complete(gateway.client, story(40))
        assert cached(usage) == 0
        assert await gateway.sample(BROKEN) == 0


async def test_blocks_that_were_evicted_are_known_to_be_gone(vllm, tmp_path):
    async with gateway_to(vllm, tmp_path) as gateway:
        evicted = await gateway.sample(EVICTED)
        url = f"{vllm[0].url}/v1/completions"
        async with aiohttp.ClientSession() as client:
            for seed in range(50, 50 + 2 * BLOCKS // 16):
                await complete(client, story(seed, 400), url)

        async def were_evicted() -> bool:
            return await gateway.sample(EVICTED) > evicted

        await until(were_evicted, "an eviction")
        usage = await complete(gateway.client, story(50, 400))
        print("evicted", await gateway.sample(EVICTED), "blocks", await gateway.sample(INDEXED), usage)
        assert await gateway.sample(INDEXED) <= 2 * BLOCKS
        assert await gateway.sample(BROKEN) == 0
        assert await gateway.sample(BAD) == 0


async def test_requests_for_an_adapter_follow_the_server_that_has_it(vllm, tmp_path):
    """The adapter runs at one server when the other requests come, all of them new prompts."""
    async with gateway_to(vllm, tmp_path, lora=20) as gateway, aiohttp.ClientSession(vllm[1].url) as client:
        body = {"model": ADAPTER, "prompt": "on and on", "max_tokens": 3000, "ignore_eos": True}
        running = asyncio.create_task(client.post("/v1/completions", json=body))
        try:

            async def is_seen() -> bool:
                page = await samples(f"{vllm[1].url}/metrics")
                newest = max((one for one in page if one.name == "vllm:lora_requests_info"), key=lambda one: one.value, default=None)
                return newest is not None and ADAPTER in newest.labels["running_lora_adapters"]

            await until(is_seen, "the adapter among those that run")
            polled = await gateway.sample("endpick_polls_total", {"event": "made"})

            async def is_collected() -> bool:
                return await gateway.sample("endpick_polls_total", {"event": "made"}) >= polled + 8

            await until(is_collected, "four more polls of each server")
            before = await served(vllm[1])
            for seed in range(100, 105):
                await complete(gateway.client, story(seed, 60), model=ADAPTER, max_tokens=1)
            assert await served(vllm[1]) == before + 5
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
