"""A simulated server that publishes KV events, and the precise producer that asks it where."""

from __future__ import annotations

import aiohttp
import numpy as np
import pytest

from endpick.api import Endpoint
from endpick.api.keys import PREFIX_MATCH_BLOCKS
from endpick_lab.server import serve
from endpick_lab.settings import EngineSettings, KvEventSettings, ServerSettings, Timing
from unit.builtin.kv_publisher import picking, until

BLOCK = 16
ENGINE = EngineSettings(kv_blocks=16, block_size=BLOCK, max_model_len=256, timing=Timing(decode_seconds=0.0002))
ANY = "tcp://127.0.0.1:*"


def text(blocks, letter):
    return "".join(f"{letter}{number:03}" for number in range(blocks * BLOCK))


@pytest.mark.asyncio
async def test_kv_events_follow_stored_and_evicted_blocks():
    settings = ServerSettings(model="m", engine=ENGINE, kv_events=KvEventSettings(ANY, ANY))
    server = await serve(settings)
    try:
        async with aiohttp.ClientSession(f"http://{server.address}") as client:

            async def complete(prompt):
                body = {"model": "m", "prompt": prompt, "max_tokens": 2, "ignore_eos": True}
                async with client.post("/v1/completions", json=body) as response:
                    return (await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"]

            assert await complete(text(8, "a")) == 0
            config = {"kvEventsConfig": {"podDiscoveryConfig": {"askServers": True}}, "tokenProcessorConfig": {"blockSizeTokens": BLOCK}}
            async with picking([Endpoint("pool/a", "127.0.0.1", server.port)], **config) as picker:

                def held(letter):
                    ids = np.frombuffer(text(8, letter).encode(), dtype="<u4")
                    _, endpoints, state = picker.look_up(ids)
                    return state.column(PREFIX_MATCH_BLOCKS, endpoints).tolist()

                await until(lambda: held("a") == [8.0], "the replay of what came before")
                assert await complete(text(8, "a")) == 7 * BLOCK
                for letter in "bc":
                    await complete(text(8, letter))
                await until(lambda: (held("a"), held("c")) == ([0.0], [8.0]), "the eviction")
                assert await complete(text(8, "a")) == 0
    finally:
        await server.close()


@pytest.mark.asyncio
async def test_an_address_that_is_taken_ends_the_start():
    first = await serve(ServerSettings(kv_events=KvEventSettings(ANY, ANY)))
    try:
        assert first.live.publisher is not None
        taken = first.live.publisher.replay_address
        with pytest.raises(OSError, match="Address already in use"):
            await serve(ServerSettings(kv_events=KvEventSettings(ANY, str(taken))))
    finally:
        await first.close()
