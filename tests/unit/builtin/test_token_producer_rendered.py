"""Tokens from a renderer, a real server over sockets."""

from __future__ import annotations

import asyncio
import json
import logging

import numpy as np
import pytest
from aiohttp import web

from endpick.api import InferenceRequest, Modality, Unavailable
from endpick.api.keys import TOKENIZED_PROMPT, MediaPlace
from endpick.api.state import CycleState
from endpick.requests.model import Routed
from endpick_builtin.parsers.openai import OpenAIParser
from endpick_builtin.producers import token_producer
from endpick_builtin.producers.prefix_cache import ApproxPrefixCacheProducer
from endpick_builtin.producers.token_producer import TokenProducer
from unit.builtin.pages import serving, started
from unit.requests.stage import Stage
from unit.scheduling.workbench import access, instance, pool

pytestmark = pytest.mark.asyncio

CHAT = {"model": "client-model", "messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function"}], "temperature": 0.5}
PICTURE = {"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]}


class Renderer:
    """Records questions, and returns the given answers in order after the warm-up."""

    def __init__(self, *answers, status=200):
        self.asked = []
        self.authorizations = []
        self.warmed_up = asyncio.Event()
        self.answers = list(answers)
        self.status = status
        self.warm_up_failures = 0

    async def __call__(self, request):
        body = await request.json()
        if body.get("prompt") == "warm up":
            if self.warm_up_failures:
                self.warm_up_failures -= 1
                return web.Response(status=503)
            self.warmed_up.set()
            return web.json_response([{"token_ids": [1]}])
        self.asked.append((request.path, body))
        self.authorizations.append(request.headers.get("Authorization"))
        answer = self.answers.pop(0)
        if answer is None:
            await asyncio.Event().wait()
        return web.Response(body=answer if isinstance(answer, bytes) else json.dumps(answer).encode(), status=self.status)


def request_of(body, path="/v1/chat/completions", headers=None):
    parsed = instance(OpenAIParser).plugin.parse(path, {}, json.dumps(body).encode())
    return InferenceRequest("r", "client-model", path=path, prompt=parsed.prompt, payload=parsed.payload, headers=headers or {})


def producer_at(port, **vllm):
    return instance(TokenProducer, modelName="served", vllm={"url": f"http://127.0.0.1:{port}/base/", **vllm})


async def tokens_of(producer, request):
    shared = access()
    state, endpoints = CycleState(shared), pool().view(shared)
    shared.scope = producer.scope
    await producer.plugin.produce(request, endpoints, state)
    return state.get(TOKENIZED_PROMPT)


def outcomes(producer):
    (family,) = (one for one in producer.registry.collect() if one.name == "endpick_token_producer_requests")
    return {sample.labels["outcome"]: sample.value for sample in family.samples if sample.value}


async def test_chats_are_rendered_with_the_relevant_fields():
    renderer = Renderer({"token_ids": [5, 6, 7]})
    async with serving(renderer) as port, started((producer := producer_at(port)).plugin):
        (prompt,) = await tokens_of(producer, request_of(CHAT, headers={"authorization": "Bearer key"}))
    assert prompt.token_ids.tolist() == [5, 6, 7]
    assert prompt.token_ids.dtype == np.uint32
    expected = {"model": "served", "messages": CHAT["messages"], "tools": CHAT["tools"]}
    assert renderer.asked == [("/base/v1/chat/completions/render", expected)]
    assert renderer.authorizations == ["Bearer key"]
    assert outcomes(producer) == {"rendered": 1}


async def test_prompts_of_a_completion_are_rendered_at_once():
    renderer = Renderer([{"token_ids": [1]}, {"token_ids": [2, 3]}])
    async with serving(renderer) as port, started((producer := producer_at(port)).plugin):
        prompts = await tokens_of(producer, request_of({"model": "m", "prompt": ["a", "b"]}, "/v1/completions"))
    assert [prompt.token_ids.tolist() for prompt in prompts] == [[1], [2, 3]]
    assert renderer.asked == [("/base/v1/completions/render", {"model": "served", "prompt": ["a", "b"]})]


async def test_media_are_placed_by_offset():
    features = {
        "mm_hashes": {"image": ["i1", "i2", "i3"], "audio": ["s1"], "smell": ["x"]},
        "mm_placeholders": {
            "image": [{"offset": 3, "length": 2}, {"offset": 0, "length": 1}, {"offset": 4, "length": 9}],
            "audio": [{"offset": 1, "length": 2}],
            "smell": [{"offset": 0, "length": 1}],
        },
    }
    async with serving(Renderer({"token_ids": [9] * 5, "features": features})) as port, started((producer := producer_at(port)).plugin):
        (prompt,) = await tokens_of(producer, request_of(PICTURE))
    assert prompt.media == (
        MediaPlace(Modality.IMAGE, "i2", 0, 1),
        MediaPlace(Modality.AUDIO, "s1", 1, 2),
        MediaPlace(Modality.IMAGE, "i1", 3, 2),
    )


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"no json", "is no JSON"),
        ([], "without tokens"),
        ({"token_ids": [1, "2"]}, "invalid token id"),
        ({"token_ids": [-1]}, "invalid token id"),
    ],
)
async def test_invalid_answers_are_faults(answer, says):
    async with serving(Renderer(answer)) as port, started((producer := producer_at(port)).plugin):
        with pytest.raises(Unavailable, match=says):
            await tokens_of(producer, request_of(CHAT))
    assert outcomes(producer) == {"failed": 1}


async def test_malformed_features_mean_no_media():
    misplaced = {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": [{"offset": "0", "length": 1}]}}
    answers = [{"token_ids": [1], "features": features} for features in (7, {"mm_hashes": {}}, misplaced)]
    async with serving(Renderer(*answers)) as port, started((producer := producer_at(port)).plugin):
        for _ in answers:
            (prompt,) = await tokens_of(producer, request_of(CHAT))
            assert prompt.media == ()


async def test_errors_name_url_and_status():
    renderer = Renderer({"token_ids": [1]}, status=500)
    async with serving(renderer) as port, started((producer := producer_at(port)).plugin):
        with pytest.raises(Unavailable, match=rf"POST http://127.0.0.1:{port}/base/v1/chat/completions/render answered 500"):
            await tokens_of(producer, request_of(CHAT))


async def test_text_and_parts_have_separate_timeouts():
    async with serving(Renderer(None, None)) as port, started((producer := producer_at(port, timeout="10ms", mmTimeout="20ms")).plugin):
        with pytest.raises(Unavailable, match=r"no answer within 0\.01 s"):
            await tokens_of(producer, request_of(CHAT))
        with pytest.raises(Unavailable, match=r"no answer within 0\.02 s"):
            await tokens_of(producer, request_of(PICTURE))
    assert outcomes(producer) == {"failed": 2}
    assert producer.plugin.timeout_seconds == 0.02
    assert producer_at(1).plugin.timeout_seconds == 30.0


async def test_token_ids_and_other_apis_are_not_rendered():
    async with serving(Renderer()) as port, started((producer := producer_at(port)).plugin):
        (prompt,) = await tokens_of(producer, request_of({"model": "m", "prompt": [7, 8]}, "/v1/completions"))
        assert prompt.token_ids.tolist() == [7, 8]
        assert await tokens_of(producer, request_of({"model": "m", "input": "hi"}, "/v1/responses")) is None
    assert outcomes(producer) == {"sent": 1, "unsupported": 1}


async def test_nothing_is_asked_before_start():
    producer = producer_at(1)
    assert await tokens_of(producer, request_of(CHAT)) is None
    assert outcomes(producer) == {"unsupported": 1}


async def test_warm_up_ends_with_the_first_answer(monkeypatch, caplog):
    monkeypatch.setattr(token_producer, "WARM_UP_SECONDS", 0.01)
    renderer = Renderer()
    renderer.warm_up_failures = 2
    async with serving(renderer) as port:
        producer = producer_at(port)
        with caplog.at_level(logging.INFO, producer.plugin.context.logger.name):
            async with started(producer.plugin):
                await producer.plugin._warming
        assert renderer.warmed_up.is_set()
    assert f"the renderer at http://127.0.0.1:{port}/base answers" in caplog.text


async def test_an_absent_renderer_is_reported_once(monkeypatch, caplog):
    monkeypatch.setattr(token_producer, "WARM_UP_SECONDS", 0.02)
    renderer = Renderer()
    renderer.warm_up_failures = 100
    async with serving(renderer) as port, started((producer := producer_at(port)).plugin):
        await producer.plugin._warming
    assert 100 - 24 <= renderer.warm_up_failures < 100, "on a busy machine a try may end before it is heard"
    (record,) = [one for one in caplog.records if one.name.startswith("endpick")]
    assert "has not answered in 24 tries" in record.message
    assert "answered 503" in record.message or "no answer within" in record.message, "the last try may have come too late"


async def test_prefix_matching_uses_rendered_tokens():
    """Different texts with equal tokens match."""
    tokens = list(range(200))
    renderer = Renderer({"token_ids": tokens}, {"token_ids": tokens}, b"nonsense")
    async with serving(renderer) as port, started((producer := producer_at(port)).plugin):
        prefix = instance(ApproxPrefixCacheProducer)
        stage = Stage(table=pool(size=1), producers=[producer, prefix], pre_request=[prefix])
        for content in ("one", "two", "three"):
            decision = await stage.decide({"model": "m", "messages": [{"role": "user", "content": content}]})
            assert isinstance(decision, Routed)
    ratio = {sample.name: sample.value for family in prefix.registry.collect() for sample in family.samples}
    assert ratio["llm_d_epp_prefix_indexer_hit_ratio_count"] == 3
    assert ratio["llm_d_epp_prefix_indexer_hit_ratio_sum"] == 1
    assert stage.telemetry.faults


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"vllm": {}}, "modelName must be specified"),
        ({"modelName": "m", "estimate": {}}, "one back end"),
        ({"modelName": "m", "vllm": {"url": "localhost:8000"}}, "no URL of a service"),
        ({"modelName": "m", "vllm": {"url": "http://h/?a=1"}}, "query or a fragment"),
        ({"modelName": "m", "vllm": {"url": "http://h", "http": "http://h"}}, "former name of url"),
        ({"udsTokenizerConfig": {"socketFile": "/x"}}, "udsTokenizerConfig is not supported"),
    ],
)
async def test_invalid_parameters_are_refused(parameters, says):
    with pytest.raises(ValueError, match=says):
        instance(TokenProducer, **parameters)


@pytest.mark.parametrize("url", ["http://u:secret@h", "http://h?key=secret", "http://h:secret"])
async def test_a_refused_url_is_not_repeated(url):
    """More people read the log than the configuration."""
    with pytest.raises(ValueError, match="URL") as refused:
        instance(TokenProducer, modelName="m", vllm={"url": url})
    assert "secret" not in "; ".join(each["msg"] for each in refused.value.errors())


async def test_the_former_name_of_the_url_works():
    async with serving(Renderer({"token_ids": [4]})) as port:
        producer = instance(TokenProducer, modelName="m", vllm={"http": f"http://127.0.0.1:{port}"})
        async with started(producer.plugin):
            (prompt,) = await tokens_of(producer, request_of(CHAT))
    assert prompt.token_ids.tolist() == [4]
