"""`latency-observation-scorer-hub`: rates endpoints by the time to first token expected at their load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    Category,
    Endpoints,
    FloatArray,
    InferenceRequest,
    PluginContext,
    Scorer,
    ScoringState,
    Stability,
    Subscriptions,
)
from endpick.api.keys import INFLIGHT_REQUESTS, TTFT_PERCENTILES, TTFTPercentiles
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.scorers.load import smaller_is_better


class ObservationScorerParameters(CamelParameters):
    """Sets exploration and rounding, and names the producers."""

    exploration_rate: Annotated[
        float, Field(ge=0.0, le=1.0, description="Share of the requests that try an endpoint without trusted numbers.")
    ] = 0.1
    min_inflight_gap: Annotated[
        float, Field(gt=0.0, description="Requests in flight between low and typical load for both to be used.")
    ] = 2.0
    round_ttft_step: Annotated[
        float, Field(alias="roundTTFTStep", ge=0.0, description="Predictions are rounded to multiples of this (seconds); 0: not rounded.")
    ] = 0.0
    ttft_percentiles_producer_name: Annotated[
        str, Field(description="The latency-observer-producer-hub instance; empty for the only one.")
    ] = ""
    in_flight_load_producer_name: Annotated[str, Field(description="Instance that counts the load in flight; empty for the only one.")] = ""


def anchors_of(observed: Sequence[TTFTPercentiles | None]) -> FloatArray:
    """Return a row per endpoint: floor (0 if cold), low, typical, load at low, load at typical, 1 if trusted."""
    rows = []
    for percentiles in (entry or TTFTPercentiles() for entry in observed):
        floor, at = percentiles.trusted_floor, percentiles.inflight_at_typical_load
        trusted = floor > 0.0 and percentiles.recent >= percentiles.threshold and at > 0.0 and percentiles.typical_load > floor
        rows.append((floor, percentiles.low_load, percentiles.typical_load, percentiles.inflight_at_low_load, at, float(trusted)))
    return np.array(rows, dtype=np.float64).reshape(-1, 6)


def expected_ttft(anchors: FloatArray, load: FloatArray, gap: float) -> FloatArray:
    """Return the expected TTFT in seconds: on the curve of trusted endpoints, at the floor of others."""
    floor, low, typical, low_at, typical_at, trusted = anchors.T
    bends = (typical_at - low_at >= gap) & (typical > low) & (low > floor) & (low_at > 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        straight = floor + load * (typical - floor) / typical_at
        below = floor + load * (low - floor) / low_at
        above = low + (load - low_at) * (typical - low) / (typical_at - low_at)
    curve = np.where(bends, np.where(load < low_at, below, above), straight)
    expected: FloatArray = np.where(trusted > 0.0, np.maximum(curve, floor), floor)
    return expected


class LatencyObservationScorer(Scorer[ObservationScorerParameters]):
    """Prefers endpoints with a short expected time to first token at the load they have now.

    The curve has the points A (0, floor), B (load, TTFT at low load) and C (the same at typical load), is linear between them and goes on
    after C. B is used if C is at least `minInflightGap` to its right and above it, and B above A. Endpoints with too few recent requests
    are expected at their floor, those without a floor at the best one.

    score = (max - t) / (max - min), 1 if all are equal. An endpoint whose numbers or load are not trusted gets 1 with probability
    `explorationRate`, else 0 if another one is trusted.
    """

    consumes = (TTFT_PERCENTILES, INFLIGHT_REQUESTS)
    category = Category.BALANCE
    stability = Stability.EXPERIMENTAL

    @classmethod
    def subscriptions(cls, parameters: ObservationScorerParameters) -> Subscriptions:
        observed = TTFT_PERCENTILES.from_producer(parameters.ttft_percentiles_producer_name)
        return Subscriptions((observed, INFLIGHT_REQUESTS.from_producer(parameters.in_flight_load_producer_name)))

    def __init__(self, name: str, parameters: ObservationScorerParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._observed = TTFT_PERCENTILES.from_producer(parameters.ttft_percentiles_producer_name)
        self._load = INFLIGHT_REQUESTS.from_producer(parameters.in_flight_load_producer_name)

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        load = endpoints[self._load]
        anchors = endpoints.gather(endpoints.derived_from_objects(self._observed, anchors_of))
        ttft = expected_ttft(anchors, np.nan_to_num(load), self.parameters.min_inflight_gap)
        step = self.parameters.round_ttft_step
        if step:
            ttft = np.floor(ttft / step + 0.5) * step
        cold = anchors[:, 0] == 0.0
        best = float(ttft[~cold].min(initial=np.inf))
        scores = smaller_is_better(np.where(cold, best, ttft)) if np.isfinite(best) else np.ones(len(endpoints))
        trusted = (anchors[:, 5] > 0.0) & ~np.isnan(load)
        for position in np.flatnonzero(~trusted):
            if self.context.random.random() < self.parameters.exploration_rate:
                scores[position] = 1.0
            elif trusted.any():
                scores[position] = 0.0
        return scores
