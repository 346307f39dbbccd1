"""`latency-observer-producer-hub`: learns each endpoint's time to first token from its responses."""

from __future__ import annotations

from bisect import insort
from collections import deque
from itertools import islice, takewhile
from operator import attrgetter
from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from endpick.api import (
    ColumnWriter,
    CycleState,
    DataCollector,
    DataProducer,
    Duration,
    Endpoint,
    Endpoints,
    FloatArray,
    InferenceRequest,
    PluginContext,
    PollingSource,
    PreRequest,
    ResponseHead,
    ResponseObserver,
    SchedulingResult,
    Stability,
    Subscriptions,
    UpstreamHeaders,
)
from endpick.api.keys import INFLIGHT_REQUESTS, TTFT_PERCENTILES, TTFTPercentiles
from endpick_builtin.camel_parameters import CamelParameters

_FLOOR = 0.1
_BAND = 0.1
_OK = 200


class ObserverParameters(CamelParameters):
    """Sets the windows of observations, and the percentiles."""

    interval_duration: Annotated[Duration, Field(gt=0, description="How often the percentiles are computed, 50ms or more.")] = 1.0
    max_observation_age: Annotated[Duration, Field(gt=0, description="Age up to which requests count as recent.")] = 180.0
    max_requests: Annotated[int, Field(gt=0, description="Recent requests to use at most.")] = 100
    min_requests: Annotated[int, Field(gt=0, description="Requests from which the percentiles are trusted.")] = 10
    low_percentile: Annotated[float, Field(gt=0, lt=100, description="Percentile that stands for low load.")] = 25.0
    typical_percentile: Annotated[float, Field(gt=0, lt=100, description="Percentile that stands for typical load.")] = 50.0
    window_size: Annotated[int, Field(gt=0, le=100_000, description="Requests to remember per endpoint.")] = 5000
    bucket_duration: Annotated[Duration, Field(gt=0, description="Time for which the history has one entry, the P10 of its requests.")] = (
        60.0
    )
    bucket_history_size: Annotated[int, Field(ge=2, le=100_000, description="Entries of the history; the largest is dropped first.")] = 1000
    in_flight_load_producer_name: Annotated[str, Field(description="Instance that counts the load in flight; empty for the only one.")] = ""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_requests > self.window_size:
            raise ValueError(f"maxRequests must not exceed windowSize, and {self.max_requests} is more than {self.window_size}")
        if self.low_percentile >= self.typical_percentile:
            raise ValueError("lowPercentile must be less than typicalPercentile")
        return self


class Observation(NamedTuple):
    """The time to first token of one streamed response, and the load when its request was sent."""

    at: float
    ttft_seconds: float
    in_flight: float


class _History:
    def __init__(self, parameters: ObserverParameters) -> None:
        self._parameters = parameters
        self._window: deque[Observation] = deque(maxlen=parameters.window_size)
        self._floors: list[float] = []  # ascending
        self._bucket_since: float | None = None
        self._observations = 0

    def add(self, observation: Observation) -> None:
        self._window.append(observation)
        self._observations += 1

    def percentiles(self, now: float) -> TTFTPercentiles:
        parameters = self._parameters
        recent = sorted(islice(self._younger(now, parameters.max_observation_age), parameters.max_requests), key=attrgetter("ttft_seconds"))
        self._close_bucket(now)
        ttft, load = np.array([sample.ttft_seconds for sample in recent]), np.array([sample.in_flight for sample in recent])
        low, typical = parameters.low_percentile / 100.0, parameters.typical_percentile / 100.0
        return TTFTPercentiles(
            percentile(np.array(self._floors), _FLOOR),
            percentile(ttft, _FLOOR),
            percentile(ttft, low),
            percentile(ttft, typical),
            load_around(load, low),
            load_around(load, typical),
            len(recent),
            self._observations,
            parameters.min_requests,
        )

    def _younger(self, now: float, age: float) -> takewhile[Observation]:
        return takewhile(lambda sample: now - sample.at <= age, reversed(self._window))

    def _close_bucket(self, now: float) -> None:
        parameters = self._parameters
        if self._bucket_since is not None and now - self._bucket_since < parameters.bucket_duration:
            return
        bucket = [] if self._bucket_since is None else [sample.ttft_seconds for sample in self._younger(now, parameters.bucket_duration)]
        self._bucket_since = now
        if bucket:
            insort(self._floors, percentile(np.array(sorted(bucket)), _FLOOR))
            del self._floors[parameters.bucket_history_size :]


def percentile(ascending: FloatArray, share: float) -> float:
    """Interpolate linearly at position share * (n - 1) of ascending values; 0 for none."""
    count = len(ascending)
    return float(np.interp(share * (count - 1), np.arange(count), ascending)) if count else 0.0


def load_around(loads: FloatArray, share: float) -> float:
    """Return the mean load from position (share - 0.1) * (n - 1) to (share + 0.1) * (n - 1), ends included; 0 for none."""
    last = len(loads) - 1
    if last < 0:
        return 0.0
    first, end = (round(share_of * last, 9) for share_of in (max(share - _BAND, 0.0), min(share + _BAND, 1.0)))
    return float(loads[int(first) : int(np.ceil(end)) + 1].mean())


class LatencyObserver(
    DataProducer[ObserverParameters],
    PreRequest[ObserverParameters],
    ResponseObserver[ObserverParameters],
    PollingSource[ObserverParameters, TTFTPercentiles],
    DataCollector[ObserverParameters, TTFTPercentiles],
):
    """Measures the time to first token of each endpoint, and the requests in flight when each request was sent.

    Only streamed responses with status 200 count. Every `intervalDuration`: P10, `lowPercentile` and `typicalPercentile` of the latest
    `maxRequests` responses within `maxObservationAge`, with the mean load from 10 percent below to 10 above the latter two; the floor is
    the P10 of a history of one P10 per `bucketDuration`. Sends nothing to endpoints. Listing it under `dataLayer.sources` is optional.
    """

    consumes = (INFLIGHT_REQUESTS,)
    produces = (TTFT_PERCENTILES,)
    stability = Stability.EXPERIMENTAL

    @classmethod
    def subscriptions(cls, parameters: ObserverParameters) -> Subscriptions:
        return Subscriptions((INFLIGHT_REQUESTS.from_producer(parameters.in_flight_load_producer_name),), (), cls.produces)

    def __init__(self, name: str, parameters: ObserverParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.interval_seconds = parameters.interval_duration
        self._load = INFLIGHT_REQUESTS.from_producer(parameters.in_flight_load_producer_name)
        self._histories: dict[str, _History] = {}

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        """Remember the load without this request."""
        if request.streaming:
            state.private["before"] = (endpoints, endpoints[self._load])

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        before, picked = state.private.pop("before", None), result.runs[result.primary].picked
        if picked is None or not isinstance(before, tuple):
            return
        endpoints, loads = before
        endpoint = picked.take([0]).members[0]
        position = endpoints.position(endpoint.name)
        if position is not None:
            state.private["sent"] = (endpoint.name, float(np.nan_to_num(loads[position])), self.context.clock())

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> None:
        if head.status != _OK:
            state.private.pop("sent", None)

    def first_chunk(self, request: InferenceRequest, state: CycleState) -> None:
        sent = state.private.pop("sent", None)
        if isinstance(sent, tuple):
            name, load, sent_at = sent
            now = self.context.clock()
            self._history(name).add(Observation(now, now - sent_at, load))

    async def poll(self, endpoint: Endpoint) -> TTFTPercentiles:
        return self._history(endpoint.name).percentiles(self.context.clock())

    def collect(self, payload: TTFTPercentiles, writer: ColumnWriter) -> None:
        writer.set(TTFT_PERCENTILES, payload)

    def endpoint_removed(self, name: str) -> None:
        self._histories.pop(name, None)

    def _history(self, name: str) -> _History:
        history = self._histories.get(name)
        if history is None:
            history = self._histories[name] = _History(self.parameters)
        return history
