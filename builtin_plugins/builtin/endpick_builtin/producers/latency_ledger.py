"""Objectives, requests in flight and metrics of `predicted-latency-producer`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.registry import CollectorRegistry

from endpick.api import InferenceRequest
from endpick.api.fast_metrics import Counts, Distributions, Levels
from endpick.api.metrics import as_label
from endpick_builtin.producers.latency_service import Features, Prediction

TTFT_HEADERS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TPOT_HEADERS = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")


@dataclass(frozen=True, slots=True)
class Objectives:
    """The latency objectives of a request, in seconds; 0 if absent."""

    ttft: float = 0.0
    tpot: float = 0.0

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Objectives:
        return cls(_milliseconds(headers, TTFT_HEADERS) / 1000, _milliseconds(headers, TPOT_HEADERS) / 1000)


def _milliseconds(headers: Mapping[str, str], names: tuple[str, ...]) -> float:
    text = next((headers[name] for name in names if headers.get(name)), "")
    try:
        value = float(text) if text else 0.0
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and value > 0 else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A request in flight; `prefill_row` belongs to a separate prefill endpoint."""

    endpoint: str
    row: Features
    prediction: Prediction | None
    objectives: Objectives
    prefill_row: Features | None = None

    def samples(self, ttft_ms: float, tpot_ms: float, timestamp: str) -> list[Features]:
        def sample(row: Features, ttft: float, tpot: float) -> Features:
            return {**row, "actual_ttft_ms": ttft, "actual_tpot_ms": tpot, "timestamp": timestamp}

        if self.prefill_row is None:
            return [sample(self.row, ttft_ms, tpot_ms)]
        prefill, decode = sample(self.prefill_row, ttft_ms, 0.0), sample(self.row, 0.0, tpot_ms)
        return [prefill, decode] if tpot_ms > 0 else [prefill]


@dataclass(slots=True)
class _Running:
    requests: dict[Served, int] = field(default_factory=dict)  # prompt tokens once the answer has begun, else 0
    tokens: int = 0
    strictest: float = math.inf


class DecodeLedger:
    """Keeps the requests in flight by endpoint, with their decoding tokens and objectives."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}

    def begin(self, served: Served) -> None:
        running = self._running.setdefault(served.endpoint, _Running())
        running.requests[served] = 0
        running.strictest = min(running.strictest, served.objectives.tpot or math.inf)

    def decode(self, served: Served) -> None:
        running = self._running.get(served.endpoint)
        if running is not None and served in running.requests:
            tokens = int(served.row["input_token_length"])
            running.tokens += tokens - running.requests[served]
            running.requests[served] = tokens

    def end(self, served: Served) -> None:
        running = self._running.get(served.endpoint)
        if running is None or served not in running.requests:
            return
        running.tokens -= running.requests.pop(served)
        if served.objectives.tpot == running.strictest:
            running.strictest = min((request.objectives.tpot or math.inf for request in running.requests), default=math.inf)
        if not running.requests:
            del self._running[served.endpoint]

    def forget(self, endpoint: str) -> None:
        self._running.pop(endpoint, None)

    def tokens(self, endpoint: str) -> int:
        running = self._running.get(endpoint)
        return 0 if running is None else running.tokens

    def strictest(self, endpoint: str) -> float:
        """Return the strictest objective in seconds per output token; infinite without any."""
        running = self._running.get(endpoint)
        return math.inf if running is None else running.strictest


MAX_MODEL_PAIRS = 50  # 200 lines on the page each; clients choose the names
_PREFIX = "llm_d_epp_"
_OTHERS = ("other", "other")
_MODELS = ("model_name", "target_model_name")
_BY_TYPE = (*_MODELS, "type")
# fmt: off
TTFT_BUCKETS = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0,
    180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
)
TPOT_BUCKETS = (
    0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.5, 6.0,
    12.0, 18.0, 24.0, 30.0, 36.0, 48.0, 60.0, 90.0, 120.0, 180.0, 270.0, 360.0,
)
DURATION_BUCKETS = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
# fmt: on


class LatencyMetrics:
    """llm-d's metrics of predicted latencies."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self._pairs: set[tuple[str, str]] = set()
        last = "Last value by type: measured, predicted, and seconds the prediction took."
        self._last = Levels(f"{_PREFIX}inference_request_metric", last, _BY_TYPE, registry)
        violations = "Requests that exceeded their objective."
        self._violations = Counts(f"{_PREFIX}request_slo_violation_total", violations, _BY_TYPE, registry)

        def distributions(name: str, text: str, buckets: tuple[float, ...]) -> Distributions:
            return Distributions(f"{_PREFIX}request_{name}_seconds", text, _MODELS, buckets, registry)

        self._predicted_ttft = distributions("predicted_ttft", "Predicted time to first token.", TTFT_BUCKETS)
        self._predicted_tpot = distributions("predicted_tpot", "Predicted time per output token.", TPOT_BUCKETS)
        duration = "Seconds a prediction took; both times are predicted at once."
        self._ttft_duration = distributions("ttft_prediction_duration", duration, DURATION_BUCKETS)
        self._tpot_duration = distributions("tpot_prediction_duration", duration, DURATION_BUCKETS)

    def _models(self, request: InferenceRequest) -> tuple[str, str]:
        pair = as_label(request.incoming_model), as_label(request.model)
        if pair not in self._pairs:
            if len(self._pairs) >= MAX_MODEL_PAIRS:
                return _OTHERS
            self._pairs.add(pair)
        return pair

    def _set(self, models: tuple[str, str], kind: str, value: float) -> None:
        self._last.labels(*models, kind).value = value

    def asked(self, request: InferenceRequest, seconds: float) -> None:
        models = self._models(request)
        for distribution, kind in ((self._ttft_duration, "ttft"), (self._tpot_duration, "tpot")):
            distribution.labels(*models).observe(seconds)
            self._set(models, f"{kind}_prediction_duration", seconds)

    def predicted(self, request: InferenceRequest, prediction: Prediction) -> None:
        models = self._models(request)
        self._predicted_ttft.labels(*models).observe(prediction.ttft)
        self._predicted_tpot.labels(*models).observe(prediction.tpot)
        self._set(models, "predicted_ttft", prediction.ttft)
        self._set(models, "predicted_tpot", prediction.tpot)

    def ended(self, request: InferenceRequest, objectives: Objectives, ttft: float, tpot: float) -> None:
        models = self._models(request)
        for kind, objective, taken in (("ttft", objectives.ttft, ttft), ("tpot", objectives.tpot, tpot)):
            self._set(models, kind, taken)
            violated = 0 < objective < taken
            self._set(models, f"{kind}_slo_violation", float(violated))
            if violated:
                self._violations.labels(*models, kind).inc()
