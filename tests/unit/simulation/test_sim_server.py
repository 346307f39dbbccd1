"""The simulated model server, over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import aiohttp
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from endpick_lab.server import SimulatedServer, serve
from endpick_lab.settings import EngineSettings, ServerSettings, Timing

FAST = Timing(prefill_seconds_per_token=1e-6, decode_seconds=1e-4)
SLOW = Timing(prefill_seconds_per_token=1e-6, decode_seconds=60.0)
CHAT = "/v1/chat/completions"

Running = Callable[..., AbstractAsyncContextManager[tuple[SimulatedServer, aiohttp.ClientSession]]]


@pytest.fixture
def running() -> Running:
    @asynccontextmanager
    async def start(
        timing: Timing = FAST, adapters: tuple[str, ...] = (), name: str = "sim", **engine: int
    ) -> AsyncIterator[tuple[SimulatedServer, aiohttp.ClientSession]]:
        shape = EngineSettings(timing=timing, max_loras=2 if adapters else 0, **engine)
        server = await serve(ServerSettings(name=name, adapters=adapters, engine=shape))
        try:
            async with aiohttp.ClientSession(f"http://{server.address}") as client:
                yield server, client
        finally:
            await server.close()

    return start


def chat(content: str, **fields: object) -> dict[str, object]:
    return {"model": "sim-model", "messages": [{"role": "user", "content": content}], **fields}


async def samples(client: aiohttp.ClientSession) -> dict[str, float]:
    async with client.get("/metrics") as response:
        text = await response.text()
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


async def until(server: SimulatedServer, **expected: int) -> None:
    """Wait for counts in the engine, bounded by the test's own timeout."""
    while any(getattr(server.live.metrics(), name) != value for name, value in expected.items()):  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.mark.asyncio
async def test_chat_completion_has_requested_length_and_usage(running: Running):
    async with (
        running(name="sim-7") as (_, client),
        client.post(CHAT, json=chat("tell me" * 10, max_tokens=5, ignore_eos=True), headers={"x-request-id": "abc"}) as response,
    ):
        body = await response.json()
    assert response.status == 200
    assert (response.headers["x-served-by"], response.headers["x-request-id"]) == ("sim-7", "abc")
    (choice,) = body["choices"]
    assert body["object"] == "chat.completion"
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"].split()) == 5
    assert choice["finish_reason"] == "length"
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


@pytest.mark.asyncio
async def test_stream_gives_the_same_answer_and_ends_with_usage(running: Running):
    async with running() as (_, client):
        async with client.post(CHAT, json=chat("hello", max_tokens=4)) as response:
            whole = (await response.json())["choices"][0]["message"]["content"]
        streamed = chat("hello", max_tokens=4, stream=True, stream_options={"include_usage": True})
        async with client.post(CHAT, json=streamed) as response:
            assert response.content_type == "text/event-stream"
            lines = [line for line in (await response.text()).split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    events = [orjson.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    pieces = [event["choices"][0]["delta"]["content"] for event in events[1:-1]]
    assert len(pieces) == 4
    assert "".join(pieces) == whole
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None, None, None, None, "length"]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 4


@pytest.mark.asyncio
async def test_without_the_option_a_stream_carries_no_usage(running: Running):
    async with running() as (_, client), client.post(CHAT, json=chat("hi", max_tokens=2, stream=True)) as response:
        assert "usage" not in await response.text()


@pytest.mark.asyncio
@pytest.mark.parametrize("prompt", ["Once upon a time", ["Once upon a time"], [1, 2, 3, 4]])
async def test_a_text_completion_takes_text_or_token_ids(running: Running, prompt: object):
    async with running() as (_, client):
        request = {"model": "sim-model", "prompt": prompt, "max_tokens": 3}
        async with client.post("/v1/completions", json=request) as response:
            body = await response.json()
        async with client.post("/v1/completions", json={**request, "stream": True}) as response:
            streamed = await response.text()
    assert body["object"] == "text_completion"
    assert body["usage"]["prompt_tokens"] == 4
    assert len(body["choices"][0]["text"].split()) == 3
    assert streamed.count('"text":') == 3


@pytest.mark.asyncio
async def test_next_chat_message_hits_the_prefix_cache(running: Running):
    first = [{"role": "system", "content": "You are terse. " * 20}, {"role": "user", "content": "Hello?"}]
    async with running(block_size=4, kv_blocks=4096) as (_, client):
        async with client.post(CHAT, json={"model": "sim-model", "messages": first, "max_tokens": 16}) as response:
            turn1 = await response.json()
        answer = turn1["choices"][0]["message"]
        second = [*first, answer, {"role": "user", "content": "And then?"}]
        async with client.post(CHAT, json={"model": "sim-model", "messages": second, "max_tokens": 16}) as response:
            usage = (await response.json())["usage"]
        totals = await samples(client)
    conversation = turn1["usage"]["total_tokens"]
    # All of the first turn but its last token, which was never fed back, and the rest of that token's block.
    assert conversation - 4 <= usage["prompt_tokens_details"]["cached_tokens"] < conversation
    assert totals["vllm:prefix_cache_hits_total"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert totals["vllm:prefix_cache_queries_total"] == turn1["usage"]["prompt_tokens"] + usage["prompt_tokens"]


@pytest.mark.asyncio
async def test_an_adapter_does_not_share_the_cache_of_its_base_model(running: Running):
    async with running(adapters=("red",)) as (_, client):
        cached = []
        for model in ("sim-model", "red", "red"):
            async with client.post(CHAT, json=chat("x" * 400, max_tokens=1) | {"model": model}) as response:
                body = await response.json()
                cached.append(body["usage"]["prompt_tokens_details"]["cached_tokens"])
                assert body["model"] == model
    assert cached == [0, 0, 96]


@pytest.mark.asyncio
async def test_models_lists_the_base_model_and_its_adapters(running: Running):
    async with running(adapters=("red", "blue")) as (_, client), client.get("/v1/models") as response:
        cards = (await response.json())["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [
        ("sim-model", None),
        ("red", "sim-model"),
        ("blue", "sim-model"),
    ]


@pytest.mark.asyncio
async def test_health_answers_200(running: Running):
    async with running() as (_, client), client.get("/health") as response:
        assert response.status == 200


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "status", "type_", "param"),
    [
        (b'{"model": ', 400, "BadRequestError", None),
        (b"[]", 400, "BadRequestError", None),
        (b'{"messages": [{"role": "user", "content": "x"}]}', 400, "BadRequestError", "model"),
        (orjson.dumps(chat("x", max_tokens=0)), 400, "BadRequestError", "max_tokens"),
        (orjson.dumps(chat("x", n=2)), 400, "BadRequestError", "n"),
        (orjson.dumps(chat("x") | {"model": "other"}), 404, "NotFoundError", "model"),
        (orjson.dumps(chat("x" * 4 * 16_384)), 400, "BadRequestError", "messages"),
        (orjson.dumps(chat("x", max_tokens=16_384)), 400, "BadRequestError", "max_tokens"),
    ],
)
async def test_a_bad_request_gets_an_openai_error(running: Running, body: bytes, status: int, type_: str, param: str | None):
    async with running(name="sim-1") as (server, client), client.post(CHAT, data=body) as response:
        error = (await response.json())["error"]
        assert server.live.metrics().running == 0
    assert response.status == error["code"] == status
    assert (error["type"], error["param"]) == (type_, param)
    assert error["message"].endswith(".")
    assert response.headers["x-served-by"] == "sim-1"


@pytest.mark.asyncio
async def test_an_unknown_path_gets_an_openai_error(running: Running):
    async with running() as (_, client), client.get("/v1/nothing") as response:
        assert (await response.json())["error"] == {
            "message": "GET /v1/nothing: Not Found.",
            "type": "NotFoundError",
            "param": None,
            "code": 404,
        }


@pytest.mark.asyncio
async def test_metrics_show_queue_batch_cache_and_adapters(running: Running):
    async with running(SLOW, adapters=("red",), max_num_seqs=1, kv_blocks=1024) as (server, client):
        posts = []
        for index, model in enumerate(("sim-model", "red")):
            posts.append(asyncio.create_task(client.post(CHAT, json=chat("x" * 4000) | {"model": model})))
            await until(server, running=1, waiting=index)
        values = await samples(client)
        async with client.get("/metrics") as response:
            families = {family.name: family for family in text_string_to_metric_families(await response.text())}
        for post in posts:
            post.cancel()
        await asyncio.gather(*posts, return_exceptions=True)
        await until(server, running=0, waiting=0, aborted=2)
        after = await samples(client)
    assert (values["vllm:num_requests_running"], values["vllm:num_requests_waiting"]) == (1, 1)
    assert values["vllm:kv_cache_usage_perc"] == 64 / 1024  # 1009 tokens
    (running_sample,) = families["vllm:num_requests_running"].samples
    assert running_sample.labels == {"model_name": "sim-model", "engine": "0"}
    (adapters,) = families["vllm:lora_requests_info"].samples
    assert adapters.labels == {"max_lora": "2", "running_lora_adapters": "", "waiting_lora_adapters": "red"}
    (cache,) = families["vllm:cache_config_info"].samples
    assert (cache.labels["block_size"], cache.labels["num_gpu_blocks"]) == ("16", "1024")
    assert after["vllm:kv_cache_usage_perc"] == 0
    assert after["vllm:request_success_total"] == 2


@pytest.mark.asyncio
async def test_latencies_are_observed_once_per_request_and_token(running: Running):
    async with running() as (_, client):
        for _ in range(2):
            async with client.post(CHAT, json=chat("x", max_tokens=3)) as response:
                assert response.status == 200
        values = await samples(client)
    assert values["vllm:time_to_first_token_seconds_count"] == 2
    assert values["vllm:inter_token_latency_seconds_count"] == 4
    assert values["vllm:e2e_request_latency_seconds_count"] == 2
    assert values["vllm:generation_tokens_total"] == 6


@pytest.mark.asyncio
async def test_a_client_that_hangs_up_mid_stream_frees_its_place(running: Running):
    async with running(Timing(decode_seconds=0.005), max_num_seqs=1) as (server, client):
        async with client.post(CHAT, json=chat("x", stream=True, max_tokens=10_000, ignore_eos=True)) as response:
            await response.content.readline()
            response.close()
        await until(server, running=0, aborted=1)
        async with client.post(CHAT, json=chat("next", max_tokens=1)) as response:
            assert response.status == 200


@pytest.mark.asyncio
async def test_two_servers_give_the_same_answer_to_the_same_prompt(running: Running):
    async with running() as (_, one), running() as (_, other):
        answers = []
        for client in (one, other):
            async with client.post(CHAT, json=chat("same?")) as response:
                answers.append((await response.json())["choices"])
    assert answers[0] == answers[1]
    assert answers[0][0]["finish_reason"] == "stop"


@pytest.mark.asyncio
async def test_a_port_in_use_is_an_error_and_leaves_nothing_running(running: Running):
    async with running() as (server, _):
        with pytest.raises(OSError, match="address already in use"):
            await serve(ServerSettings(port=server.port))


def test_adapters_need_slots():
    with pytest.raises(ValueError, match="max_loras is 0"):
        ServerSettings(adapters=("red",))
