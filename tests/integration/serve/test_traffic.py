"""Real traffic through the real Envoy: what clients see, and that load goes where endpick decided."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from integration.serve.gateway import RANDOM, running_gateway, until

LONG_PROMPT = "You are a careful assistant. " * 100


@pytest.mark.asyncio
async def test_completion_is_served_by_the_chosen_endpoint(tmp_path):
    async with running_gateway(tmp_path) as gateway:
        seen: Counter[str] = Counter()
        for n in range(12):
            async with await gateway.chat(f"question {n}", max_tokens=5) as response:
                answer = await response.json()
                assert response.status == 200
                assert answer["object"] == "chat.completion"
                assert answer["usage"]["completion_tokens"] == 5
                seen[response.headers["x-served-by"]] += 1

        decided = Counter()
        for name in gateway.stack.servers:
            labels = {"status": "success", "endpoint_name": name}
            decided[name] = int(await gateway.sample("llm_d_epp_scheduler_attempts_total", labels))

        assert sum(seen.values()) == 12
        assert +decided == +seen
        assert +await gateway.served() == +seen


@pytest.mark.asyncio
async def test_streamed_completion_arrives_as_events_with_usage(tmp_path):
    async with running_gateway(tmp_path, servers=2) as gateway:
        async with await gateway.chat("stream please", max_tokens=7, stream=True, stream_options={"include_usage": True}) as response:
            assert response.status == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line async for line in response.content if line.strip()]

        assert lines[-1] == b"data: [DONE]\n"
        events = [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]
        pieces = [event["choices"][0]["delta"].get("content") for event in events if event["choices"]]
        assert len([piece for piece in pieces if piece]) == 7
        assert events[-1]["usage"]["completion_tokens"] == 7
        assert await gateway.sample("llm_d_epp_request_output_tokens_sum") == 7
        assert await gateway.sample("llm_d_epp_request_ttft_seconds_count", {"streaming": "true"}) == 1
        assert await gateway.sample("llm_d_epp_request_running") == 0


@pytest.mark.asyncio
async def test_same_prefix_hits_the_cache_of_its_endpoint(tmp_path):
    async with running_gateway(tmp_path, servers=4) as gateway:
        served, cached = set(), []
        for n in range(8):
            async with await gateway.chat(f"{LONG_PROMPT} {n}") as response:
                usage = (await response.json())["usage"]
                served.add(response.headers["x-served-by"])
                cached.append(usage["prompt_tokens_details"]["cached_tokens"])

        assert len(served) == 1
        assert cached[0] == 0
        assert min(cached[1:]) > 500


@pytest.mark.asyncio
async def test_request_without_a_body_reaches_a_model_server(tmp_path):
    async with running_gateway(tmp_path, servers=1) as gateway, gateway.client.get("/v1/models") as response:
        assert response.status == 200
        assert [model["id"] for model in (await response.json())["data"]] == ["m"]


@pytest.mark.asyncio
async def test_malformed_json_is_the_clients_fault_and_disturbs_nobody(tmp_path):
    async with running_gateway(tmp_path, servers=1) as gateway:

        async def status_and_text(request) -> tuple[int, str]:
            async with await request as response:
                return response.status, await response.text()

        broken = {"data": b'{"model": "m", "messages": ['}
        good = [status_and_text(gateway.chat(f"fine {n}")) for n in range(5)]
        bad = [status_and_text(gateway.client.post("/v1/chat/completions", **broken)) for _ in range(5)]
        answers = await asyncio.gather(*good, *bad)

    assert [status for status, _ in answers] == [200] * 5 + [400] * 5
    assert all(text.startswith("inference error: BadRequest - ") for _, text in answers[5:])


@pytest.mark.asyncio
async def test_body_over_the_limit_is_refused_with_413(tmp_path):
    async with running_gateway(tmp_path, servers=1, options=("--max-request-body", "10k")) as gateway:
        async with await gateway.chat("x" * 20_000) as response:
            assert response.status == 413
        async with await gateway.chat("x") as response:
            assert response.status == 200


@pytest.mark.asyncio
async def test_empty_pool_is_503_until_an_endpoint_appears(tmp_path):
    async with running_gateway(tmp_path, RANDOM, servers=1) as gateway:
        listed = gateway.endpoints_file.read_text()
        gateway.endpoints_file.write_text("endpoints: []\n")

        async def refused() -> bool:
            async with await gateway.chat("anybody?") as response:
                return response.status == 503 and response.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"

        async def served() -> bool:
            async with await gateway.chat("anybody?") as response:
                return response.status == 200

        await until(refused, "503 for an empty pool")
        gateway.endpoints_file.write_text(listed)
        await until(served, "200 once an endpoint is there")
