"""`predicted-latency-producer`: asks a predictor for each endpoint's latency, and trains it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    CycleState,
    DataKey,
    DataProducer,
    Endpoints,
    FloatArray,
    InferenceRequest,
    PluginContext,
    PreRequest,
    ResponseEnd,
    ResponseObserver,
    SchedulingResult,
    Stability,
    Subscriptions,
    TerminationCause,
    Unavailable,
    UpstreamHeaders,
)
from endpick.api.keys import (
    INFLIGHT_TOKENS,
    MEDIA_ITEMS,
    MEDIA_MATCHED,
    PREDICTED_TPOT,
    PREDICTED_TTFT,
    PREFIX_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    TOKENIZED_PROMPT,
    TPOT_HEADROOM,
    TTFT_HEADROOM,
)
from endpick.api.plugin import ignored
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.producers.latency_ledger import DecodeLedger, LatencyMetrics, Objectives, Served
from endpick_builtin.producers.latency_service import Features, LatencySettings, Prediction, Predictor, Trainer

_OPTIONAL = (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE)
_PREFILL = "prefill"
_NOT_WHILE_STREAMING = "remove it; nothing is predicted while an answer is streamed"


class PredictedLatencyParameters(CamelParameters):
    """Sets the inputs and the scope of predictions."""

    slo_buffer_factor: Annotated[float, Field(gt=0, le=1000, description="Factor applied to a request's objective per token.")] = 1.0
    context_ttl: Annotated[
        int,
        ignored("contextTTL", "remove it; what is kept of a request goes when the request ends"),
    ] = 300_000_000_000
    streaming_mode: Annotated[bool, Field(description="Whether answers are streamed, so that time per token counts.")] = False
    endpoint_role_label: Annotated[str, Field(description="Label with the endpoint's role for the predictor; empty: none.")] = ""
    predict_in_produce: Annotated[bool, Field(description="Ask for predictions; if false, the predictor is only trained.")] = True
    prefix_match_info_producer_name: Annotated[str, Field(description="Producer of prefix matches; empty if there is only one.")] = ""
    in_flight_load_producer_name: Annotated[str, Field(description="Producer of in-flight load; empty if there is only one.")] = ""
    use_encoder_cache_features: Annotated[bool, Field(description="Send the number of media, and of cached media, to the predictor.")] = (
        False
    )
    encoder_cache_match_info_producer_name: Annotated[str, Field(description="Producer of media matches; empty if there is only one.")] = ""
    sampling_mean: Annotated[float | None, ignored("samplingMean", _NOT_WHILE_STREAMING)] = None
    max_decode_token_samples: Annotated[int | None, ignored("maxDecodeTokenSamplesForPrediction", _NOT_WHILE_STREAMING)] = None


@dataclass(frozen=True, slots=True)
class _Keys:
    matches: DataKey[float]
    load: DataKey[float]
    media: DataKey[int]
    media_matched: DataKey[float]


def _keys(parameters: PredictedLatencyParameters) -> _Keys:
    media = parameters.encoder_cache_match_info_producer_name
    return _Keys(
        PREFIX_MATCH_BLOCKS.from_producer(parameters.prefix_match_info_producer_name),
        INFLIGHT_TOKENS.from_producer(parameters.in_flight_load_producer_name),
        MEDIA_ITEMS.from_producer(media),
        MEDIA_MATCHED.from_producer(media),
    )


class PredictedLatencyProducer(
    DataProducer[PredictedLatencyParameters], PreRequest[PredictedLatencyParameters], ResponseObserver[PredictedLatencyParameters]
):
    """Predicts the time to first token (TTFT) and per output token (TPOT) at each candidate, and the headroom of its objectives.

    Asks `PREDICTION_SERVER_URL` about all candidates, with their load (0 if unknown), the prompt's tokens and its cached share. Without an
    answer there are no predictions.

    ttft-headroom = objective (`x-llm-d-slo-ttft-ms`, 0 if absent) - prediction. With `streamingMode`, tpot-headroom = min(objective,
    strictest objective of requests streaming there) * sloBufferFactor - prediction; else, and in the role `prefill`, 0.

    Latencies of successful requests go to `TRAINING_SERVER_URL`; if a profile named `prefill` picked an endpoint, that one is trained with
    the TTFT, the other with the TPOT.
    """

    stability = Stability.STABLE
    consumes = (PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS, INFLIGHT_TOKENS, TOKENIZED_PROMPT)
    consumes_optional = (*_OPTIONAL, MEDIA_ITEMS, MEDIA_MATCHED)
    produces = (PREDICTED_TTFT, PREDICTED_TPOT, TTFT_HEADROOM, TPOT_HEADROOM)

    @classmethod
    def subscriptions(cls, parameters: PredictedLatencyParameters) -> Subscriptions:
        keys = _keys(parameters)
        blocks = PREFIX_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        media = (keys.media, keys.media_matched) if parameters.use_encoder_cache_features else ()
        return Subscriptions((keys.matches, blocks, keys.load, TOKENIZED_PROMPT, *media), _OPTIONAL, cls.produces)

    def __init__(self, name: str, parameters: PredictedLatencyParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        settings = LatencySettings.from_environment()
        self._keys = _keys(parameters)
        self._blocks = PREFIX_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._flush_seconds = settings.flush_seconds
        self._predictor = Predictor(settings, context.random)
        self._trainer = Trainer(settings, context.random)
        self._metrics = LatencyMetrics(context.registry)
        self._ledger = DecodeLedger()
        self._flushing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._predictor.open()
        self._trainer.open()
        self._flushing = asyncio.create_task(self._flush_forever())

    async def stop(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.gather(self._flushing, return_exceptions=True)
        await self._predictor.close()
        await self._trainer.close()

    async def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        rows = self._rows(endpoints, state)
        state.private["rows"] = dict(zip((endpoint.name for endpoint in endpoints), rows, strict=True))
        if not self.parameters.predict_in_produce or not self._predictor.is_open:
            for key in self.produces:
                state.put_column(key, endpoints, np.full(len(endpoints), np.nan))
            return
        started = self.context.clock()
        predictions = await self._predictor.predict(rows)
        self._metrics.asked(request, self.context.clock() - started)
        ttft = np.array([prediction.ttft for prediction in predictions])
        tpot = np.array([prediction.tpot for prediction in predictions])
        objectives = Objectives.of(request.headers)
        state.private["predictions"] = dict(zip(state.private["rows"], predictions, strict=True))  # type: ignore[call-overload]
        state.put_column(PREDICTED_TTFT, endpoints, ttft)
        state.put_column(PREDICTED_TPOT, endpoints, tpot)
        state.put_column(TTFT_HEADROOM, endpoints, objectives.ttft - ttft)
        state.put_column(TPOT_HEADROOM, endpoints, self._tpot_headroom(objectives, endpoints, tpot))

    def _tpot_headroom(self, objectives: Objectives, endpoints: Endpoints, tpot: FloatArray) -> FloatArray:
        if not self.parameters.streaming_mode:
            return np.zeros(len(endpoints))
        strictest = np.array([self._ledger.strictest(endpoint.name) for endpoint in endpoints])
        budget = np.minimum(objectives.tpot, strictest) * self.parameters.slo_buffer_factor
        prefill = np.array([self._role(endpoints, row) == _PREFILL for row in range(len(endpoints))], dtype=np.bool_)
        return np.where(prefill, 0.0, budget - tpot)

    def _role(self, endpoints: Endpoints, row: int) -> str:
        label = self.parameters.endpoint_role_label
        return endpoints.members[row].labels.get(label, "") if label else ""

    def _rows(self, endpoints: Endpoints, state: CycleState) -> list[Features]:
        """Build a row per endpoint; shares are clipped to 1, above which the predictor refuses them."""
        blocks = state.get(self._blocks)
        total = blocks.total_blocks if blocks is not None else 0
        tokens = sum(len(prompt.token_ids) for prompt in state.get(TOKENIZED_PROMPT) or ())
        cached = _counts(state.column(self._keys.matches, endpoints)) / total if total else np.zeros(len(endpoints))
        media = (0, np.zeros(len(endpoints)))
        if self.parameters.use_encoder_cache_features:
            media = state.get(self._keys.media) or 0, _counts(state.column(self._keys.media_matched, endpoints))
        usage = _counts(endpoints[KV_CACHE_USAGE])
        waiting, running = _whole(endpoints[WAITING_QUEUE_SIZE]), _whole(endpoints[RUNNING_REQUESTS_SIZE])
        prefilling, matched = _whole(endpoints[self._keys.load]), _whole(media[1])
        return [
            {
                "kv_cache_percentage": min(float(usage[row]), 1.0),
                "input_token_length": tokens,
                "num_request_waiting": waiting[row],
                "num_request_running": running[row],
                "num_tokens_generated": 1,
                "prefix_cache_score": min(float(cached[row]), 1.0),
                "encoder_input_size": media[0],
                "encoder_matched_size": min(matched[row], media[0]),
                "pod_type": self._role(endpoints, row),
                "prefill_tokens_in_flight": prefilling[row],
                "decode_tokens_in_flight": self._ledger.tokens(endpoint.name),
            }
            for row, endpoint in enumerate(endpoints)
        ]

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        # Frees memory: there is a row per endpoint.
        picked, rows = result.runs[result.primary].picked, state.private.pop("rows", None)
        predictions = state.private.pop("predictions", None)
        if picked is None or not isinstance(rows, dict):
            return
        name = picked.take([0]).members[0].name
        row = rows.get(name)
        if row is None:
            return
        first = _prefilled_by(result) or name
        prediction = predictions.get(first) if isinstance(predictions, dict) else None
        known = prediction if isinstance(prediction, Prediction) else None
        served = Served(name, row, known, Objectives.of(request.headers), rows.get(first) if first != name else None)
        state.private["served"] = served
        self._ledger.begin(served)
        if served.prediction is not None:
            self._metrics.predicted(request, served.prediction)

    def first_chunk(self, request: InferenceRequest, state: CycleState) -> None:
        served = state.private.get("served")
        if isinstance(served, Served):
            self._ledger.decode(served)

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        served = state.private.get("served")
        if not isinstance(served, Served):
            return
        self._ledger.end(served)
        if end.cause is not TerminationCause.NATURAL or not 200 <= end.status < 300:
            return
        streamed = self.parameters.streaming_mode and end.ttft_seconds is not None
        ttft = end.ttft_seconds if streamed and end.ttft_seconds is not None else end.duration_seconds
        further = end.usage.completion_tokens - 1 if end.usage is not None else 0
        tpot = max(end.duration_seconds - ttft, 0.0) / further if streamed and further > 0 else 0.0
        self._metrics.ended(request, served.objectives, ttft, tpot)
        for sample in served.samples(ttft * 1000, tpot * 1000, datetime.now(UTC).isoformat()):
            self._trainer.add(sample)

    def endpoint_removed(self, name: str) -> None:
        self._ledger.forget(name)

    async def _flush_forever(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(self._flush_seconds)
            try:
                await self._trainer.flush()
            except Unavailable as problem:
                if not failing:
                    self.context.logger.warning("samples are lost until TRAINING_SERVER_URL takes them: %s", problem)
                failing = True
            else:
                failing = False


def _prefilled_by(result: SchedulingResult) -> str:
    run = result.runs.get(_PREFILL)
    picked = run.picked if run is not None and result.primary != _PREFILL else None
    return picked.take([0]).members[0].name if picked is not None else ""


def _counts(values: FloatArray) -> FloatArray:
    return np.fmax(np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0), 0.0)


def _whole(values: FloatArray) -> Sequence[int]:
    counts: Sequence[int] = [math.floor(value) for value in _counts(values).tolist()]
    return counts
