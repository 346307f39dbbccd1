"""Predicted latencies with real servers over sockets."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
from aiohttp import web

from endpick.api import (
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    ConfigurationError,
    InferenceRequest,
    ProfileRunResult,
    ResponseEnd,
    SchedulingResult,
    TerminationCause,
    Unavailable,
    Usage,
)
from endpick.api.keys import (
    INFLIGHT_TOKENS,
    PREDICTED_TPOT,
    PREDICTED_TTFT,
    PREFIX_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    TOKENIZED_PROMPT,
    TPOT_HEADROOM,
    TTFT_HEADROOM,
    PrefixBlocks,
    PromptTokens,
)
from endpick.api.state import CycleState
from endpick.requests.headers import HeadersForUpstream
from endpick.testing import make_pool
from endpick_builtin.producers import latency_service
from endpick_builtin.producers.latency_service import LatencySettings
from endpick_builtin.producers.predicted_latency import PredictedLatencyProducer
from unit.builtin.pages import serving, started
from unit.scheduling.workbench import access, instance

pytestmark = pytest.mark.asyncio

COLUMNS = {
    KV_CACHE_USAGE: [0.5, None],
    WAITING_QUEUE_SIZE: [3.0, None],
    RUNNING_REQUESTS_SIZE: [2.0, -1.0],
    INFLIGHT_TOKENS: [100.0, float("nan")],
}


class Sidecar:
    """A predictor and trainer that records its requests."""

    def __init__(self, answer=None):
        self.answer = answer
        self.asked = []
        self.taught = asyncio.Queue()

    async def __call__(self, request):
        body = await request.json()
        if request.path == "/add_training_data_bulk":
            self.taught.put_nowait(body["entries"])
            return web.Response(status=202)
        assert request.path == "/predict/bulk/strict"
        self.asked.append(body["requests"])
        if callable(self.answer):
            return await self.answer(body["requests"])
        if self.answer is not None:
            return web.Response(body=self.answer)
        return web.json_response({"predictions": [{"ttft_ms": 100 * (n + 1), "tpot_ms": 10} for n in range(len(body["requests"]))]})


@pytest.fixture
def producer_at(monkeypatch):
    def make(port, **parameters):
        for variable in ("TRAINING_SERVER_URL", "PREDICTION_SERVER_URL"):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{port}")
        return instance(PredictedLatencyProducer, **parameters)

    return make


class Cycle:
    """One request against two endpoints."""

    def __init__(self, producer, headers=None, labels=()):
        self.producer = producer
        self.request = InferenceRequest("r", "m", "m", headers=headers or {})
        self.access = access()
        self.endpoints = make_pool(COLUMNS, labels=labels).view(self.access)
        self.state = CycleState(self.access)
        self.state.put(PREFIX_BLOCKS, PrefixBlocks(4, 64))
        self.state.put_column(PREFIX_MATCH_BLOCKS, self.endpoints, np.array([1.0, np.nan]))
        self.state.put(TOKENIZED_PROMPT, (PromptTokens(np.arange(250, dtype=np.uint32)),))
        self.access.scope = producer.scope

    async def produce(self):
        await self.producer.plugin.produce(self.request, self.endpoints, self.state)
        return self

    def column(self, key):
        return self.state.column(key, self.endpoints).round(6).tolist()

    def send(self, row=0, prefill=None):
        runs = {"p": ProfileRunResult("p", self.endpoints.take([row]))}
        if prefill is not None:
            runs["prefill"] = ProfileRunResult("prefill", self.endpoints.take([prefill]))
        result = SchedulingResult("p", runs, ("x:1",))
        self.producer.plugin.before_request(self.request, result, HeadersForUpstream({}), self.state)
        return self

    def end(self, cause=TerminationCause.NATURAL, status=200, usage=None, seconds=2.0, ttft=0.5):
        self.producer.plugin.response_ended(self.request, ResponseEnd(cause, status, usage, 9, seconds, ttft), self.state)


async def test_one_question_has_a_row_per_endpoint(producer_at):
    async with serving(sidecar := Sidecar()) as port, started((producer := producer_at(port, endpointRoleLabel="role")).plugin):
        cycle = await Cycle(producer, labels=[{"role": "decode"}]).produce()
    assert sidecar.asked == [
        [
            {
                "kv_cache_percentage": 0.5,
                "input_token_length": 250,
                "num_request_waiting": 3,
                "num_request_running": 2,
                "num_tokens_generated": 1,
                "prefix_cache_score": 0.25,
                "encoder_input_size": 0,
                "encoder_matched_size": 0,
                "pod_type": "decode",
                "prefill_tokens_in_flight": 100,
                "decode_tokens_in_flight": 0,
            },
            {
                "kv_cache_percentage": 0.0,
                "input_token_length": 250,
                "num_request_waiting": 0,
                "num_request_running": 0,
                "num_tokens_generated": 1,
                "prefix_cache_score": 0.0,
                "encoder_input_size": 0,
                "encoder_matched_size": 0,
                "pod_type": "",
                "prefill_tokens_in_flight": 0,
                "decode_tokens_in_flight": 0,
            },
        ]
    ]
    assert cycle.column(PREDICTED_TTFT) == [0.1, 0.2]
    assert cycle.column(PREDICTED_TPOT) == [0.01, 0.01]


@pytest.mark.parametrize(
    ("parameters", "headers", "ttft", "tpot"),
    [
        ({}, {"x-slo-ttft-ms": "150", "x-llm-d-slo-tpot-ms": "1"}, [0.05, -0.05], [0, 0]),
        ({"streamingMode": True}, {"x-slo-tpot-ms": "30"}, [-0.1, -0.2], [0.02, 0.02]),
        ({"streamingMode": True, "sloBufferFactor": 2}, {"x-llm-d-slo-tpot-ms": "30"}, [-0.1, -0.2], [0.05, 0.05]),
        ({"streamingMode": True, "endpointRoleLabel": "role"}, {"x-slo-tpot-ms": "30"}, [-0.1, -0.2], [0, 0.02]),
        ({"streamingMode": True}, {"x-slo-ttft-ms": "nonsense", "x-slo-tpot-ms": "-3"}, [-0.1, -0.2], [-0.01, -0.01]),
    ],
)
async def test_headroom(producer_at, parameters, headers, ttft, tpot):
    async with serving(Sidecar()) as port, started((producer := producer_at(port, **parameters)).plugin):
        cycle = await Cycle(producer, headers, [{"role": "prefill"}]).produce()
    assert cycle.column(TTFT_HEADROOM) == ttft
    assert cycle.column(TPOT_HEADROOM) == tpot


async def test_the_strictest_streaming_request_bounds_headroom(producer_at):
    async with serving(sidecar := Sidecar()) as port, started((producer := producer_at(port, streamingMode=True)).plugin):
        strict = (await Cycle(producer, {"x-slo-tpot-ms": "15"}).produce()).send(0)
        producer.plugin.first_chunk(strict.request, strict.state)
        later = await Cycle(producer, {"x-slo-tpot-ms": "30"}).produce()
        assert later.column(TPOT_HEADROOM) == [0.005, 0.02]
        assert [row["decode_tokens_in_flight"] for row in sidecar.asked[-1]] == [250, 0]
        strict.end()
        strict.end()
        assert (await Cycle(producer, {"x-slo-tpot-ms": "30"}).produce()).column(TPOT_HEADROOM) == [0.02, 0.02]

        left = (await Cycle(producer, {"x-slo-tpot-ms": "1"}).produce()).send(1)
        producer.plugin.endpoint_removed(left.endpoints.members[1].name)
        producer.plugin.first_chunk(left.request, left.state)
        left.end()
        assert (await Cycle(producer, {"x-slo-tpot-ms": "30"}).produce()).column(TPOT_HEADROOM) == [0.02, 0.02]


async def test_simultaneous_questions_are_sent_as_one(producer_at, monkeypatch):
    monkeypatch.setenv("LATENCY_COALESCE_WINDOW_MS", "50")
    async with serving(sidecar := Sidecar()) as port, started((producer := producer_at(port)).plugin):
        first, second = await asyncio.gather(Cycle(producer).produce(), Cycle(producer).produce())
    assert [len(rows) for rows in sidecar.asked] == [4]
    assert first.column(PREDICTED_TTFT) == [0.1, 0.2]
    assert second.column(PREDICTED_TTFT) == [0.3, 0.4]


async def test_shares_are_clamped_to_1(producer_at, monkeypatch):
    monkeypatch.setitem(COLUMNS, KV_CACHE_USAGE, [1.7, 1.0])
    async with serving(sidecar := Sidecar()) as port, started((producer := producer_at(port)).plugin):
        cycle = Cycle(producer)
        cycle.access.scope = None
        cycle.state.put_column(PREFIX_MATCH_BLOCKS, cycle.endpoints, np.array([5.0, 4.0]))
        cycle.access.scope = producer.scope
        await cycle.produce()
    assert [(row["kv_cache_percentage"], row["prefix_cache_score"]) for row in sidecar.asked[0]] == [(1.0, 1.0), (1.0, 1.0)]


@pytest.mark.parametrize(("maximum", "rows"), [(5, [2, 4, 4]), (6, [4, 6])])
async def test_questions_have_a_bounded_number_of_rows(producer_at, monkeypatch, maximum, rows):
    monkeypatch.setenv("LATENCY_COALESCE_WINDOW_MS", "50")
    monkeypatch.setattr(latency_service, "MAX_ROWS", maximum)
    async with serving(sidecar := Sidecar()) as port, started((producer := producer_at(port)).plugin):
        await asyncio.gather(*(Cycle(producer).produce() for _ in range(5)))
    assert sorted(len(asked) for asked in sidecar.asked) == rows


async def test_waiting_rows_are_bounded(producer_at, monkeypatch):
    monkeypatch.setattr(latency_service, "MAX_WAITING_ROWS", 20)
    async with serving(Sidecar()) as port, started((producer := producer_at(port)).plugin):
        predictor = producer.plugin._predictor
        predictor._waiting_rows = 19
        assert await predictor.predict([{}])
        with pytest.raises(Unavailable, match="19 rows wait for the predictor"):
            await predictor.predict([{}] * 2)


async def test_enough_rows_end_the_window(producer_at, monkeypatch):
    monkeypatch.setenv("LATENCY_COALESCE_WINDOW_MS", "999999")
    monkeypatch.setenv("LATENCY_MAX_COALESCED_ROWS", "4")
    async with serving(sidecar := Sidecar()) as port, started((producer := producer_at(port)).plugin):
        await asyncio.gather(Cycle(producer).produce(), Cycle(producer).produce())
    assert [len(rows) for rows in sidecar.asked] == [4]


@pytest.mark.parametrize(
    "answer",
    [
        b"no json",
        b'{"predictions": [{"ttft_ms": 1, "tpot_ms": 1}]}',
        b'{"predictions": [{"ttft_ms": -1, "tpot_ms": 1}, {"ttft_ms": 1, "tpot_ms": 1}]}',
    ],
)
async def test_invalid_answers_are_faults(producer_at, answer):
    async with serving(Sidecar(answer)) as port, started((producer := producer_at(port)).plugin):
        cycle = Cycle(producer)
        with pytest.raises(Unavailable):
            await cycle.produce()
    assert all(math.isnan(value) for value in cycle.column(PREDICTED_TTFT))


async def test_measured_latencies_are_sent_to_the_trainer(producer_at, monkeypatch):
    async with serving(sidecar := Sidecar()) as port:
        producer = producer_at(port, streamingMode=True)
        producer.plugin._flush_seconds = 0.01
        async with started(producer.plugin):
            cycle = (await Cycle(producer, {"x-slo-ttft-ms": "400", "x-slo-tpot-ms": "999"}).produce()).send(0)
            cycle.end(usage=Usage(250, 4))
            for cause, status in ((TerminationCause.ERROR, 200), (TerminationCause.NATURAL, 500)):
                (await Cycle(producer).produce()).send(0).end(cause, status)
            (entry,) = await asyncio.wait_for(sidecar.taught.get(), 10)
    assert entry["actual_ttft_ms"] == 500
    assert entry["actual_tpot_ms"] == 500
    assert entry["input_token_length"] == 250
    assert "T" in entry["timestamp"]
    samples = {
        (sample.name, sample.labels.get("type")): sample.value for family in producer.registry.collect() for sample in family.samples
    }
    assert samples["llm_d_epp_request_slo_violation_total", "ttft"] == 1
    assert ("llm_d_epp_request_slo_violation_total", "tpot") not in samples
    assert samples["llm_d_epp_request_predicted_ttft_seconds_sum", None] == pytest.approx(0.3)
    assert samples["llm_d_epp_request_ttft_prediction_duration_seconds_count", None] == 3
    assert samples["llm_d_epp_inference_request_metric", "ttft"] == 0.5


async def test_prefill_and_decode_are_trained_separately(producer_at):
    async with serving(sidecar := Sidecar()) as port:
        producer = producer_at(port, streamingMode=True, endpointRoleLabel="role")
        producer.plugin._flush_seconds = 0.01
        async with started(producer.plugin):
            labels = [{"role": "decode"}, {"role": "prefill"}]
            (await Cycle(producer, labels=labels).produce()).send(0, prefill=1).end(usage=Usage(250, 4))
            first, further = await asyncio.wait_for(sidecar.taught.get(), 10)
            (await Cycle(producer, labels=labels).produce()).send(0, prefill=1).end(usage=Usage(250, 1))
            (alone,) = await asyncio.wait_for(sidecar.taught.get(), 10)
    assert [
        (one["pod_type"], one["kv_cache_percentage"], one["actual_ttft_ms"], one["actual_tpot_ms"]) for one in (first, further, alone)
    ] == [
        ("prefill", 0.0, 500, 0),
        ("decode", 0.5, 0, 500),
        ("prefill", 0.0, 500, 0),
    ]
    predicted = [one for family in producer.registry.collect() for one in family.samples if one.name.endswith("predicted_ttft_seconds_sum")]
    assert predicted[0].value == pytest.approx(0.4)


async def test_unstreamed_answers_have_no_time_per_token(producer_at):
    async with serving(sidecar := Sidecar()) as port:
        producer = producer_at(port, predictInProduce=False)
        producer.plugin._flush_seconds = 0.01
        async with started(producer.plugin):
            cycle = (await Cycle(producer).produce()).send(0)
            assert all(math.isnan(value) for value in cycle.column(TTFT_HEADROOM))
            cycle.end(usage=Usage(250, 4))
            (entry,) = await asyncio.wait_for(sidecar.taught.get(), 10)
    assert sidecar.asked == []
    assert (entry["actual_ttft_ms"], entry["actual_tpot_ms"]) == (2000, 0)


async def test_samples_are_lost_if_the_trainer_is_away(producer_at, caplog):
    producer = producer_at(1)
    producer.plugin._trainer.open()
    producer.plugin._trainer.add({"kv_cache_percentage": 1})
    with pytest.raises(Unavailable):
        await producer.plugin._trainer.flush()
    assert await producer.plugin._trainer.flush() == 0
    await producer.plugin._trainer.close()


async def test_samples_are_bounded(producer_at, monkeypatch):
    monkeypatch.setenv("LATENCY_MAX_SAMPLE_SIZE", "3")
    async with serving(sidecar := Sidecar()) as port:
        trainer = producer_at(port).plugin._trainer
        trainer.open()
        for number in range(50):
            trainer.add({"input_token_length": number})
        assert await trainer.flush() == 3
        assert len({entry["input_token_length"] for entry in await sidecar.taught.get()}) == 3
        await trainer.close()


async def test_settings_come_from_the_environment():
    settings = LatencySettings.from_environment(
        {"PREDICTION_SERVER_URL": "http://a:1, http://b:2,", "LATENCY_HTTP_TIMEOUT_SEC": "3", "LATENCY_FLUSH_INTERVAL_SEC": "x"}
    )
    assert settings == LatencySettings(prediction_urls=("http://a:1", "http://b:2"), timeout_seconds=3)
    assert LatencySettings.from_environment({}) == LatencySettings()
    with pytest.raises(ConfigurationError, match="the environment variable TRAINING_SERVER_URL: it is no URL"):
        LatencySettings.from_environment({"TRAINING_SERVER_URL": "nowhere"})
