"""The sidecar of a simulated server that decodes: what it asks of others, and what it does when they fail."""

from __future__ import annotations

from contextlib import AsyncExitStack

import aiohttp
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from endpick_lab.engine import Engine, GenerationRequest
from endpick_lab.server import SimulatedServer, serve
from endpick_lab.settings import EngineSettings, ServerSettings, Timing
from endpick_lab.sidecar import media_of, prefill_request, transfer_offer

CHAT = "/v1/chat/completions"
FAST = EngineSettings(timing=Timing(prefill_seconds_per_token=1e-6, decode_seconds=1e-4))
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}


Answer = tuple[int, dict[str, str], bytes]


async def started(stack: AsyncExitStack, name: str, role: str, model: str = "m") -> SimulatedServer:
    server = await serve(ServerSettings(name=name, model=model, engine=FAST, role=role))
    stack.push_async_callback(server.close)
    return server


async def asked(server: SimulatedServer, headers: dict[str, str], content: object = "Hello", **fields: object) -> Answer:
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 3, "ignore_eos": True, **fields}
    async with aiohttp.ClientSession(f"http://{server.address}") as client, client.post(CHAT, json=body, headers=headers) as response:
        return response.status, {name.lower(): value for name, value in response.headers.items()}, await response.read()


async def counts(server: SimulatedServer) -> dict[tuple[str, str], float]:
    async with aiohttp.ClientSession() as client, client.get(f"http://{server.address}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
        samples = [sample for family in families for sample in family.samples if sample.name == "sim:remote_stages_total"]
    return {(sample.labels["stage"], sample.labels["outcome"]): sample.value for sample in samples}


def generated(server: SimulatedServer) -> int:
    return server.live.metrics().generated_tokens


@pytest.mark.asyncio
async def test_a_prompt_is_prefilled_elsewhere_and_decoded_here() -> None:
    async with AsyncExitStack() as stack:
        decode, prefill = await started(stack, "d", "decode"), await started(stack, "p", "prefill")

        status, headers, body = await asked(decode, {"x-prefiller-host-port": prefill.address})

        assert (status, headers["x-served-by"], headers["x-prefilled-by"]) == (200, "d", "p")
        assert orjson.loads(body)["usage"]["completion_tokens"] == 3
        assert "kv_transfer_params" not in orjson.loads(body)
        assert (generated(prefill), generated(decode)) == (1, 3)
        assert await counts(decode) == {("prefill", "ok"): 1}


@pytest.mark.asyncio
async def test_a_stream_is_prefilled_without_streaming() -> None:
    async with AsyncExitStack() as stack:
        decode, prefill = await started(stack, "d", "decode"), await started(stack, "p", "prefill")

        status, headers, body = await asked(
            decode, {"x-prefiller-host-port": prefill.address}, stream=True, stream_options={"include_usage": True}
        )

        assert (status, headers["x-prefilled-by"]) == (200, "p")
        assert body.endswith(b"data: [DONE]\n\n")
        assert (generated(prefill), generated(decode)) == (1, 3)


def first_token_at(engine: EngineSettings, transferred: int) -> float:
    simulated = Engine(engine)
    simulated.submit(GenerationRequest("r", 500, 1, transferred_tokens=transferred), 0.0)
    return simulated.advance(1000.0)[0].time


def test_transferred_prompt_computes_only_its_last_token() -> None:
    engine = EngineSettings(timing=Timing(prefill_seconds_per_token=0.5, decode_seconds=1.0))

    times = [first_token_at(engine, transferred) for transferred in (0, 100, 499, 500, 9999)]

    assert times == [251.0, 201.0, 1.5, 1.5, 1.5]


@pytest.mark.asyncio
async def test_without_headers_or_role_the_server_does_everything() -> None:
    async with AsyncExitStack() as stack:
        decode, prefill = await started(stack, "d", "decode"), await started(stack, "p", "prefill")

        _, alone, _ = await asked(decode, {})
        _, ignored, _ = await asked(prefill, {"x-prefiller-host-port": decode.address, "x-encoder-hosts-ports": decode.address}, [IMAGE])

        assert not {"x-prefilled-by", "x-encoded-by"} & (alone.keys() | ignored.keys())
        assert (generated(decode), generated(prefill)) == (3, 3)


@pytest.mark.asyncio
async def test_each_medium_is_encoded_once_by_the_encoders_in_turn() -> None:
    async with AsyncExitStack() as stack:
        decode = await started(stack, "d", "encode-prefill-decode")
        encoders = [await started(stack, name, "encode") for name in ("e1", "e2")]
        where = ",".join(encoder.address for encoder in encoders)

        _, headers, _ = await asked(decode, {"x-encoder-hosts-ports": where}, [{"type": "text", "text": "Look"}, IMAGE, SOUND, IMAGE])

        assert headers["x-encoded-by"] == "e1,e2"
        assert [generated(encoder) for encoder in encoders] == [1, 1]
        assert await counts(decode) == {("encode", "ok"): 2}


@pytest.mark.asyncio
async def test_all_three_stages_in_turn() -> None:
    async with AsyncExitStack() as stack:
        decode, prefill, encode = [await started(stack, role, role) for role in ("decode", "prefill", "encode")]

        _, headers, _ = await asked(decode, {"x-encoder-hosts-ports": encode.address, "x-prefiller-host-port": prefill.address}, [IMAGE])

        assert [headers[name] for name in ("x-served-by", "x-prefilled-by", "x-encoded-by")] == ["decode", "prefill", "encode"]


@pytest.mark.asyncio
async def test_a_prefill_that_is_refused_is_the_clients_answer() -> None:
    async with AsyncExitStack() as stack:
        decode, prefill = await started(stack, "d", "decode"), await started(stack, "p", "prefill", model="other")

        status, headers, body = await asked(decode, {"x-prefiller-host-port": prefill.address})

        assert (status, headers["x-served-by"]) == (404, "p")
        assert "does not exist" in orjson.loads(body)["error"]["message"]
        assert generated(decode) == 0
        assert await counts(decode) == {("prefill", "refused"): 1}


@pytest.mark.asyncio
async def test_what_cannot_be_reached_is_done_here() -> None:
    async with AsyncExitStack() as stack:
        decode, gone = await started(stack, "d", "decode"), await serve(ServerSettings(engine=FAST))
        address = gone.address
        await gone.close()

        status, headers, _ = await asked(
            decode, {"x-prefiller-host-port": address, "x-encoder-hosts-ports": f"{address}, {address}"}, [IMAGE]
        )

        assert (status, headers.keys() & {"x-prefilled-by", "x-encoded-by"}) == (200, set())
        assert await counts(decode) == {("prefill", "failed"): 1, ("encode", "failed"): 1}


@pytest.mark.asyncio
async def test_a_rank_of_the_same_host_gets_the_request_as_it_is() -> None:
    async with AsyncExitStack() as stack:
        primary, rank = await started(stack, "primary", "decode"), await started(stack, "rank", "")

        _, headers, _ = await asked(primary, {"x-data-parallel-host-port": rank.address})
        _, own, _ = await asked(primary, {"x-data-parallel-host-port": primary.address})
        status, _, _ = await asked(primary, {"x-data-parallel-host-port": "127.0.0.1:1"})

        assert (headers["x-served-by"], own["x-served-by"], status) == ("rank", "primary", 400)
        assert await counts(primary) == {("rank", "ok"): 1, ("rank", "failed"): 1}


@pytest.mark.asyncio
@pytest.mark.parametrize("body", [b"{", b"[]", b"7", b'{"model": "m"}'])
async def test_invalid_body_is_refused_as_without_a_sidecar(body: bytes) -> None:
    async with AsyncExitStack() as stack:
        decode = await started(stack, "d", "decode")
        headers = {"x-encoder-hosts-ports": "127.0.0.1:1"}
        async with aiohttp.ClientSession() as client, client.post(f"http://{decode.address}{CHAT}", data=body, headers=headers) as response:
            assert response.status == 400


def test_a_prefill_asks_for_one_token_and_for_the_transfer() -> None:
    asked_for = prefill_request(
        {"model": "m", "stream": True, "stream_options": {}, "max_completion_tokens": 99, "min_tokens": 5, "temperature": 0.5}
    )

    transfer = asked_for.pop("kv_transfer_params")
    assert asked_for == {"model": "m", "stream": False, "max_tokens": 1, "max_completion_tokens": 1, "temperature": 0.5}
    assert isinstance(transfer, dict)
    assert (transfer["do_remote_decode"], transfer["do_remote_prefill"]) == (True, False)
    assert {transfer[name] for name in ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")} == {None}


@pytest.mark.parametrize("asked_for", [None, {}, {"do_remote_decode": False}, {"do_remote_decode": "yes"}])
def test_nothing_is_offered_to_those_who_did_not_ask(asked_for) -> None:
    assert transfer_offer(asked_for, "p", "127.0.0.1", 8000, 2) is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.text(max_size=9) | st.sampled_from([IMAGE, SOUND]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["messages", "content", "type"]), inner, max_size=3),
    max_leaves=20,
)


@given(st.dictionaries(st.just("messages"), _JSON | st.lists(st.fixed_dictionaries({"content": st.lists(_JSON)}))))
def test_media_are_found_in_anything_and_each_once(document) -> None:
    found = media_of(document)

    assert all(part["type"] in {"image_url", "video_url", "audio_url", "input_audio"} for part in found)
    assert len({orjson.dumps(part, option=orjson.OPT_SORT_KEYS) for part in found}) == len(found)
