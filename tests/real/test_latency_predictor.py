"""`predicted-latency-producer` with llm-d's own servers that learn and predict, from a copy of their repository."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import aiohttp
import orjson
import pytest

from endpick_builtin.producers.latency_service import MAX_ROWS
from endpick_lab.demo.processes import Children
from integration.serve.gateway import Gateway, running_gateway, until
from real.servers import free_port

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(400)]

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}
- type: predicted-latency-producer
  parameters: {streamingMode: true}
- type: latency-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: latency-scorer, weight: 1}
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
"""
SERVERS = ("--model", "m", "--prefill-ms-per-token", "0.05", "--decode-ms", "2")
SAMPLES = 40
SETTINGS = {
    "LATENCY_RETRAINING_INTERVAL_SEC": "1",
    "LATENCY_MIN_SAMPLES_FOR_RETRAIN_FRESH": "10",
    "LATENCY_MIN_SAMPLES_FOR_RETRAIN": "10",
    "LATENCY_TEST_TRAIN_RATIO": "0",
    "MODEL_SYNC_INTERVAL_SEC": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class Predictors:
    training: str
    prediction: str


@asynccontextmanager
async def predictors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Predictors]:
    """Both servers; skips the test where there is no copy of them, or what they need could not be installed."""
    sources = Path(os.environ.get("ENDPICK_LATENCY_PREDICTOR") or "/nonexistent")
    environment = Path(os.environ.get("ENDPICK_PREDICTOR_VENV") or "/nonexistent")
    python, reason = environment / "bin" / "python", environment / "reason"
    if not (sources / "prediction" / "prediction_server.py").exists():
        pytest.skip("LATENCY_PREDICTOR names no copy of llm-d's latency predictor")
    if not python.exists():
        pytest.skip(f"no environment for the latency predictor: {reason.read_text() if reason.exists() else environment}")
    training, prediction = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    models = folder / "models"
    models.mkdir()
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    for name in ("TTFT_MODEL", "TPOT_MODEL", "TTFT_SCALER", "TPOT_SCALER", "TTFT_GATED_MODEL", "TPOT_GATED_MODEL"):
        monkeypatch.setenv(f"LATENCY_{name}_PATH", str(models / f"trained-{name}"))
        monkeypatch.setenv(f"LOCAL_{name}_PATH", str(models / f"local-{name}"))
    monkeypatch.setenv("TRAINING_SERVER_URL", training)
    monkeypatch.setenv("PREDICTION_SERVER_URL", prediction)
    async with Children(folder) as children, aiohttp.ClientSession() as client:
        for url, application in ((training, "training.training_server:app"), (prediction, "prediction.prediction_server:app")):
            command = (python, "-m", "uvicorn", "--app-dir", sources, "--host", "127.0.0.1", "--port", url.rpartition(":")[2], application)
            child = await children.start(application.split(".")[0], command)

            async def is_healthy(at: str = url) -> bool | None:
                try:
                    async with client.get(f"{at}/healthz") as response:
                        return response.status == 200 or None
                except aiohttp.ClientError:
                    return None

            await child.wait_until_ready(is_healthy, 120)
        yield Predictors(training, prediction)


async def streamed(gateway: Gateway, words: int, **headers: str) -> int:
    """One streamed answer; its status."""
    body = {"model": "m", "prompt": "word " * words, "max_tokens": 5, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    async with gateway.client.post("/v1/completions", json=body, headers=headers) as response:
        await response.read()
        return response.status


async def test_predictor_learns_from_requests(tmp_path, monkeypatch):
    async with predictors(tmp_path, monkeypatch) as servers, running_gateway(tmp_path, CONFIG, server_options=SERVERS) as gateway:
        statuses = [await streamed(gateway, 20 + 37 * number % 1500) for number in range(SAMPLES)]
        assert statuses == [200] * SAMPLES

        async with aiohttp.ClientSession() as client:

            async def has_learnt() -> bool:
                async with client.get(f"{servers.training}/data/status") as response:
                    status = await response.json()
                found = status["training_data"]
                return (found["ttft_samples"], found["tpot_samples"]) == (SAMPLES, SAMPLES) and status["last_retrain"] is not None

            async def is_ready() -> bool:
                async with client.post(f"{servers.prediction}/reload") as response:
                    await response.read()
                async with client.get(f"{servers.prediction}/status") as response:
                    status = await response.json()
                return bool(status["is_ready"])

            await until(has_learnt, "a model of the samples that were sent", 60)
            await until(is_ready, "the model at the server that predicts", 120)
        before = await gateway.sample("llm_d_epp_request_predicted_ttft_seconds_count")
        for words in (20, 1500):
            assert await streamed(gateway, words, **{"x-llm-d-slo-ttft-ms": "1000", "x-llm-d-slo-tpot-ms": "100"}) == 200
        assert await gateway.sample("llm_d_epp_request_predicted_ttft_seconds_count") == before + 2
        ttft = await gateway.sample("llm_d_epp_inference_request_metric", {"type": "predicted_ttft"})
        tpot = await gateway.sample("llm_d_epp_inference_request_metric", {"type": "predicted_tpot"})
        taken = await gateway.sample("llm_d_epp_inference_request_metric", {"type": "ttft_prediction_duration"})
        print(f"predicted: {ttft * 1000:.1f} ms to the first token, {tpot * 1000:.2f} ms for each other; asking took {taken * 1000:.1f} ms")
        assert 0 < ttft < 1
        assert 0 < tpot < 0.1


async def test_servers_take_every_row_that_endpick_sends(tmp_path, monkeypatch):
    """The bounds of their protocol, which refuses a whole question for one row beyond them."""
    row = {
        "kv_cache_percentage": 1.0,
        "input_token_length": 0,
        "num_request_waiting": 0,
        "num_request_running": 0,
        "num_tokens_generated": 1,
        "prefix_cache_score": 1.0,
        "encoder_input_size": 0,
        "encoder_matched_size": 0,
        "pod_type": "",
        "prefill_tokens_in_flight": 0,
        "decode_tokens_in_flight": 0,
    }
    sample = {**row, "actual_ttft_ms": 0.0, "actual_tpot_ms": 0.0, "timestamp": "2026-11-22T21:00:00+00:00"}
    async with predictors(tmp_path, monkeypatch) as servers, aiohttp.ClientSession() as client:
        for role in ("", "prefill", "decode", "both"):
            async with client.post(
                f"{servers.training}/add_training_data_bulk", json={"entries": [sample | {"pod_type": role}]}
            ) as response:
                assert response.status == 202, await response.text()
        for beyond in ({"kv_cache_percentage": 1.01}, {"prefix_cache_score": 1.01}, {"num_request_waiting": -1}):
            async with client.post(f"{servers.prediction}/predict/bulk/strict", json={"requests": [row, row | beyond]}) as response:
                assert response.status == 422
        too_many = BytesIO(orjson.dumps({"requests": [row] * (MAX_ROWS + 1)}))
        headers = {"Content-Type": "application/json"}
        async with client.post(f"{servers.prediction}/predict/bulk/strict", data=too_many, headers=headers) as response:
            assert response.status == 422
