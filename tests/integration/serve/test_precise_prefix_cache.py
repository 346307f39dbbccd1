"""Precise prefix routing through Envoy: simulated servers publish KV events, evict, and are also used by others."""

from __future__ import annotations

import itertools
import random
import socket

import pytest

from endpick.host.discovery import discover
from integration.serve.gateway import Gateway, running_gateway, samples, until

BLOCK = 16
KV_BLOCKS = 96
SERVERS = ("--model", "m", "--kv-blocks", str(KV_BLOCKS), "--block-size", str(BLOCK), "--max-model-len", "1024")
SPEED = ("--prefill-ms-per-token", "0.001", "--decode-ms", "0.1")
CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {{type: file-discovery, parameters: {{path: endpoints.yaml, watchFile: true}}}}
- type: queue-scorer
- type: prefix-cache-scorer
  parameters: {{prefixMatchInfoProducerName: index}}
- name: index
{index}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: queue-scorer, weight: 1}}
  - {{pluginRef: prefix-cache-scorer, weight: 3}}
dataLayer:
  discovery: {{endpoints: {{pluginRef: file-discovery}}}}
"""
APPROXIMATE = "  type: approx-prefix-cache-producer"
PRECISE = """\
  type: precise-prefix-cache-producer
  parameters:
    tokenProcessorConfig: {{blockSizeTokens: 16, hashAlgorithm: xxh64}}
    kvEventsConfig: {{zmqEndpoint: "{address}", discoverPods: false}}"""
DOCUMENTS = 12
REQUESTS = 150


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def document(number: int) -> str:
    """24 blocks, of which no two documents share one."""
    return "".join(random.Random(number).choices("abcdefghijklmnop ", k=24 * BLOCK * 4))


async def complete(gateway: Gateway, url: str, prompt: str) -> int:
    """One completion; the cached tokens that the server reports."""
    body = {"model": "m", "prompt": prompt, "max_tokens": 16, "ignore_eos": True}
    async with gateway.client.post(url, json=body) as response:
        assert response.status == 200, await response.text()
        return (await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"]


async def hit_rate(gateway: Gateway) -> float:
    """Share of prompt tokens found in caches, of the requests through the gateway; another picker's go to the servers in between."""
    draws, found = random.Random(7), 0
    servers = list(gateway.stack.servers.values())
    for _ in range(REQUESTS):
        await complete(gateway, f"{draws.choice(servers)}/v1/completions", document(draws.randrange(DOCUMENTS)))
        found += await complete(gateway, "/v1/completions", document(draws.randrange(DOCUMENTS)))
    return found / (REQUESTS * 24 * BLOCK)


@pytest.fixture(autouse=True)
def _tokens_can_be_had():
    if "token-producer" not in {one.type for one in discover()}:
        pytest.skip("no token-producer is installed, which precise prefix caching needs")


@pytest.mark.long
@pytest.mark.asyncio
async def test_precise_routing_finds_more_in_evicting_caches(tmp_path):
    (tmp_path / "approximate").mkdir()
    (tmp_path / "precise").mkdir()
    async with running_gateway(tmp_path / "approximate", CONFIG.format(index=APPROXIMATE), server_options=SERVERS + SPEED) as gateway:
        guessed = await hit_rate(gateway)
    address = free_address()
    config = CONFIG.format(index=PRECISE.format(address=address))
    async with running_gateway(tmp_path / "precise", config, server_options=(*SERVERS, *SPEED, "--kv-events", address)) as gateway:
        messages = "llm_d_epp_kv_cache_events_messages_received_total"

        fresh = itertools.count(1000)

        async def all_are_heard() -> bool:
            """Send each server new prompts until it was heard: what is published before is lost, and what is cached not published."""
            for url in gateway.stack.servers.values():
                await complete(gateway, f"{url}/v1/completions", document(next(fresh)))
            pods = {sample.labels["pod_identifier"] for sample in await samples(gateway.stack.metrics) if sample.name == messages}
            return len(pods) == 3

        await until(all_are_heard, "messages of all three servers")
        known = await hit_rate(gateway)
        assert await gateway.sample("llm_d_epp_kv_cache_index_evictions_total") > KV_BLOCKS
        assert await gateway.sample("endpick_kv_events_bad_total") == 0
    print(f"hit rate: guessed {guessed:.3f}, known {known:.3f}")
    assert known > guessed
