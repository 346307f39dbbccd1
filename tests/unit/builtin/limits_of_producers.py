"""How the limits of producers, and of those who keep sessions and programs apart, are made to act once; see `limits_of_sources`."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from endpick.api import TOKENIZED_PROMPT, InferenceRequest, Limits, Media, Modality, Prompt, Unavailable
from endpick.api.state import CycleState
from endpick_builtin.collection.page_limits import PAGE_LIMITS
from endpick_builtin.flow_control import program_aware
from endpick_builtin.flow_control.program_aware import ProgramAwareFairness
from endpick_builtin.producers import burst_prefix, latency_service, media_tokens, token_producer
from endpick_builtin.producers.burst_prefix import BurstPrefixCacheProducer
from endpick_builtin.producers.latency_service import LATENCY_LIMITS, LatencySettings, Predictor, Trainer
from endpick_builtin.producers.precise import kv_sockets
from endpick_builtin.producers.precise import limits as of_engines
from endpick_builtin.producers.token_producer import TokenProducer
from unit.builtin import test_burst_prefix as bursts
from unit.builtin import test_precise_prefix_cache as precise
from unit.builtin.kv_publisher import Picker, Publisher, endpoint, picking, ports, prompt, stored, until
from unit.builtin.limits_of_sources import acted, context_of
from unit.builtin.pages import serving, started
from unit.builtin.test_flow_control_policies import answer
from unit.builtin.test_token_producer_rendered import CHAT, PICTURE, Renderer, producer_at, request_of, tokens_of
from unit.scheduling.workbench import access, instance, pool


async def never(request):
    await asyncio.Event().wait()


def asked(limited, handler=never, max_rows=latency_service.MOST_ROWS, **settings):
    """A predictor and a trainer that ask a server."""

    async def act(monkeypatch, tmp_path):
        registry = CollectorRegistry()
        async with serving(handler) as port:
            url = f"http://127.0.0.1:{port}"
            limits = Limits(context_of(registry), (*LATENCY_LIMITS, *PAGE_LIMITS))
            given = LatencySettings(url, (url,), **settings)
            predictor, trainer = Predictor(given, Random(1), limits, max_rows), Trainer(given, Random(1), limits)
            predictor.open()
            trainer.open()
            await limited(predictor, trainer, registry)
            await predictor.close()
            await trainer.close()
        return registry

    return act


async def many_rows(predictor, trainer, registry):
    predictions = await asyncio.gather(predictor.predict([{}] * 6), predictor.predict([{}] * 6))
    assert [len(each) for each in predictions] == [6, 6], "nothing is lost"


async def predictions(request):
    rows = (await request.json())["requests"]
    return web.json_response({"predictions": [{"ttft_ms": 1, "tpot_ms": 1}] * len(rows)})


async def two_questions(predictor, trainer, registry):
    asking = [asyncio.ensure_future(predictor.predict([{}])) for _ in range(2)]
    await until(lambda: acted(registry), "a question that waits")
    for each in asking:
        each.cancel()


async def many_waiting(predictor, trainer, registry):
    asking = asyncio.ensure_future(predictor.predict([{}] * 21))  # which is asked, as nothing waits
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="21 rows wait for the predictor"):
        await predictor.predict([{}])
    assert len(await asking) == 21
    assert len(await predictor.predict([{}] * 20)) == 20, "nothing waits any more"


async def late_prediction(predictor, trainer, registry):
    with pytest.raises(Unavailable, match="no answer within"):
        await predictor.predict([{}])


async def two_samples(predictor, trainer, registry):
    trainer.add({"a": 1})
    trainer.add({"a": 2})


def late_renderer(body, **seconds):
    async def act(monkeypatch, tmp_path):
        async with serving(Renderer(None)) as port, started((producer := producer_at(port, **seconds)).plugin):
            with pytest.raises(Unavailable, match="no answer within"):
                await tokens_of(producer, request_of(body))
        return producer.registry

    return act


async def body_parsed_elsewhere(monkeypatch, tmp_path):
    async with serving(Renderer()) as port, started((producer := producer_at(port)).plugin):
        large = InferenceRequest("r", "m", path="/v1/completions", prompt=Prompt(lambda: (b"hi",)), size_bytes=2_000_000)
        assert await tokens_of(producer, large) is None
    return producer.registry


async def endless_film(monkeypatch, tmp_path):
    producer = instance(TokenProducer, estimate={"maxMediaTokens": 7})
    film = Media(Modality.VIDEO, "https://films/1")
    prompt = Prompt(lambda: (b"",), lambda: ((film,),))
    request = InferenceRequest("r", "m", prompt=prompt, headers={media_tokens.VIDEO_DURATION: "1e9"})
    state = CycleState(access())
    producer.plugin.produce(request, pool().view(access()), state)
    assert [len(tokens.token_ids) for tokens in state.get(TOKENIZED_PROMPT)] == [7]
    return producer.registry


async def two_programs(monkeypatch, tmp_path):
    built = instance(ProgramAwareFairness, maxPrograms=1)
    for program in "ab":
        answer(built.plugin, program, 1, 0)
    return built.registry


async def long_prompt(monkeypatch, tmp_path):
    producer = instance(BurstPrefixCacheProducer, windowDurationMs=1, blockSizeTokens=1)
    _, blocks = await bursts.matches(producer, b"x" * 4 * (burst_prefix.MOST_BLOCKS + 1))
    assert blocks == burst_prefix.MOST_BLOCKS
    return producer.registry


async def full_window(monkeypatch, tmp_path):
    producer = instance(BurstPrefixCacheProducer, windowDurationMs=bursts.HOUR, maxBatchSize=2)
    await asyncio.gather(bursts.matches(producer, b"x"), bursts.matches(producer, b"x"))
    return producer.registry


async def long_window(monkeypatch, tmp_path):
    producer = instance(BurstPrefixCacheProducer, windowDurationMs=bursts.HOUR, maxSteps=19)  # of three endpoints and a block each
    await asyncio.gather(bursts.matches(producer, b"x"), bursts.matches(producer, b"x"))
    return producer.registry


@asynccontextmanager
async def followed(replay=False, of_events=(), **parameters):
    """An engine, and a picker that hears it; `of_events` are more parameters of `kvEventsConfig`."""
    publisher = Publisher(replay=replay)
    config = {**ports(publisher), **parameters}
    config["kvEventsConfig"].update(of_events)
    try:
        async with picking([endpoint()], **config) as picker:
            await publisher.found()
            yield publisher, picker
    finally:
        publisher.close()


async def long_message(monkeypatch, tmp_path):
    monkeypatch.setattr(kv_sockets, "CUT_OFF_SECONDS", 0.05)
    async with followed(of_events={"maxMessageBytes": 1024}) as (publisher, picker):
        publisher.send(0, payload=b"x" * 1025)
        await publisher.found()
        publisher.send(1, stored(1))
        await until(lambda: picker.matches(1) == [1.0], "what the engine says later")
        return picker.registry


async def many_events(monkeypatch, tmp_path):
    async with followed(of_events={"maxEvents": 1}) as (publisher, picker):
        publisher.send(0, stored(1), stored(2, parent=1))
        await until(lambda: acted(picker.registry), "a message")
        return picker.registry


def held_messages(parameter, most):
    async def act(monkeypatch, tmp_path):
        publisher = Publisher()
        try:
            config = ports(publisher, replaySocketPort=publisher.port)  # which does not speak the protocol of replays, and says nothing
            config["kvEventsConfig"][parameter] = most
            async with picking([endpoint()], **config) as picker:
                await publisher.found()
                await until(lambda: picker.events("replay_active", "127.0.0.1:8000"), "a replay")
                publisher.send(0, stored(1))
                publisher.send(1, stored(2, parent=1))
                await until(lambda: acted(picker.registry), "two messages")
                return picker.registry
        finally:
            publisher.close()

    return act


async def one_socket(monkeypatch, tmp_path):
    config = {"kvEventsConfig": {"maxSockets": 1, "zmqEndpoint": "tcp://127.0.0.1:0"}}  # whose socket is the only one
    async with picking([endpoint()], **config) as picker:
        await until(lambda: acted(picker.registry), "an endpoint")
        assert picker.matches(1) == [0.0]
        return picker.registry


async def two_replays(monkeypatch, tmp_path):
    publisher = Publisher()
    try:
        config = ports(publisher, replaySocketPort=publisher.port)
        config["kvEventsConfig"]["maxReplays"] = 1
        async with picking([endpoint(), endpoint("pool/b", 8001)], **config) as picker:
            await until(lambda: acted(picker.registry), "a replay that waits")
            return picker.registry
    finally:
        publisher.close()


async def busy_engine(monkeypatch, tmp_path):
    async with followed(maxStoredBlocks=4) as (publisher, picker):
        publisher.send(0, stored(1, count=8))
        await until(lambda: picker.matches(8) == [8.0])
        sent = precise.send(picker, 8, 0)
        publisher.send(1, stored(1, count=6))
        await until(lambda: picker.count("llm_d_epp_kv_cache_index_admissions_total") == 14)
        precise.answer(picker, sent, cached=0, blocks=8)
        return picker.registry


async def many_tiers(monkeypatch, tmp_path):
    async with followed(indexerConfig={"maxTiers": 3}) as (publisher, picker):
        publisher.send(0, *({**stored(number), "medium": f"tier-{number}"} for number in range(1, 5)))
        await until(lambda: acted(picker.registry), "four tiers")
        assert picker.count("endpick_kv_cache_index_blocks") == 3
        return picker.registry


async def new_conversation(monkeypatch, tmp_path):
    picker = Picker(precise.POOL, speculativeIndexing=True, maxSpeculatedBlocks=2, **precise.SILENT)
    precise.send(picker, 3, row=0)
    assert picker.matches(3) == [3.0, 0.0, 0.0], "two that no endpoint held, and the one that came after them"
    return picker.registry


async def new_blocks(monkeypatch, tmp_path):
    unseen = {"hashSeed": "of blocks that no test has seen", "maxNewTokens": 1}
    picker = Picker(precise.POOL, speculativeIndexing=True, tokenProcessorConfig=unseen, **precise.SILENT)
    picker.look_up(prompt(40))
    return picker.registry


async def small_index(monkeypatch, tmp_path):
    async with followed(indexerConfig={"kvBlockIndexConfig": {"inMemoryConfig": {"size": 1}}}) as (publisher, picker):
        publisher.send(0, stored(1, count=2))
        await until(lambda: acted(picker.registry), "two blocks")
        assert picker.count("endpick_kv_cache_index_dropped_total") == 1
        return picker.registry


ACTS = {
    latency_service._MANY_ROWS: asked(many_rows, predictions, max_rows=11),
    latency_service._MANY_WAITING: asked(many_waiting, predictions, max_rows=2),
    latency_service._MANY_QUESTIONS: asked(two_questions, most_questions=1, most_rows=1),
    latency_service._LATE: asked(late_prediction, timeout_seconds=0.05),
    latency_service._MANY_SAMPLES: asked(two_samples, sample_size=1),
    token_producer._TIMEOUT: late_renderer(CHAT, timeout="50ms"),
    token_producer._MM_TIMEOUT: late_renderer(PICTURE, mmTimeout="50ms"),
    token_producer._TOO_LARGE: body_parsed_elsewhere,
    media_tokens.MANY_MEDIA_TOKENS: endless_film,
    program_aware._MANY_PROGRAMS: two_programs,
    burst_prefix._LONG_PROMPT: long_prompt,
    burst_prefix._FULL_WINDOW: full_window,
    burst_prefix._LONG_WINDOW: long_window,
    of_engines.LONG_MESSAGE: long_message,
    of_engines.MANY_EVENTS: many_events,
    of_engines.MANY_HELD: held_messages("maxHeldMessages", 1),
    of_engines.MUCH_HELD: held_messages("maxHeldBytes", 150),
    of_engines.MANY_SOCKETS: one_socket,
    of_engines.MANY_REPLAYS: two_replays,
    of_engines.MANY_RESTORED: busy_engine,
    of_engines.MANY_SPECULATED: new_conversation,
    of_engines.MANY_MADE: new_blocks,
    of_engines.MANY_TIERS: many_tiers,
    of_engines.MANY_BLOCKS: small_index,
}
