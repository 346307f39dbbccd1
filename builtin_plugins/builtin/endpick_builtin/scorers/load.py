"""Scorers by load; `multicluster-*` scorers rate whole clusters alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
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
from endpick.api.keys import (
    INFLIGHT_REQUESTS,
    INFLIGHT_TOKENS,
    MULTICLUSTER_KV_CACHE_USAGE,
    MULTICLUSTER_QUEUE_SIZE,
    UNCACHED_REQUEST_TOKENS,
)
from endpick.api.plugin import ignored
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.scorers.affinity import PrefixCacheParameters, PrefixCacheScorer


class KVCacheUtilizationScorer(Scorer):
    """Prefers endpoints with a free KV cache: score = 1 - usage. Endpoints that have not reported score 0."""

    consumes = (KV_CACHE_USAGE,)
    category = Category.DISTRIBUTION

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        return endpoints.derived(KV_CACHE_USAGE, share_left)


def share_left(usage: FloatArray) -> FloatArray:
    """Return 1 - usage, clipped to [0, 1]; 0 if unknown."""
    return np.fmax(1.0 - np.maximum(usage, 0.0), 0.0)


def smaller_is_better(values: FloatArray) -> FloatArray:
    """Return (max - value) / (max - min); 0 for NaN, 1 if all are equal. `values` must not be empty."""
    largest = values[values.argmax()]
    if np.isnan(largest):  # argmax finds NaN
        return _among_the_known(values)
    spread = largest - values[values.argmin()]
    return (largest - values) / spread if spread > 0.0 else np.ones(len(values))


def _among_the_known(values: FloatArray) -> FloatArray:
    """Do the same for values with NaN, at twice the cost."""
    largest = np.fmax.reduce(values)
    spread = largest - np.fmin.reduce(values)
    if spread > 0.0:
        scores: FloatArray = np.fmax((largest - values) / spread, 0.0)
        return scores
    return np.where(np.isnan(values), 0.0, 1.0)


class QueueScorer(Scorer):
    """Prefers endpoints with short queues.

    score = (longest - queue) / (longest - shortest) among the candidates; 1 for all if equal, 0 if not reported.
    """

    consumes = (WAITING_QUEUE_SIZE,)
    category = Category.DISTRIBUTION

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        return endpoints.derived(WAITING_QUEUE_SIZE, smaller_is_better)


class RunningRequestsScorer(Scorer):
    """Prefers endpoints that run few requests.

    score = (most - running) / (most - fewest) among the candidates; 1 for all if equal, 0 if not reported.
    """

    consumes = (RUNNING_REQUESTS_SIZE,)
    category = Category.DISTRIBUTION

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        return endpoints.derived(RUNNING_REQUESTS_SIZE, smaller_is_better)


DEFAULT_THRESHOLD = 128


class LoadAwareParameters(CamelParameters):
    """Sets the queue length from which an endpoint is overloaded."""

    threshold: Annotated[int, Field(description="Queue length from which on an endpoint scores 0; 0 and less mean 128, as in llm-d.")] = (
        DEFAULT_THRESHOLD
    )


class LoadAwareScorer(Scorer[LoadAwareParameters]):
    """Prefers endpoints with a short queue: score = 0.5 * (1 - min(queue, T) / T), 0 if not reported."""

    consumes = (WAITING_QUEUE_SIZE,)
    category = Category.DISTRIBUTION

    def __init__(self, name: str, parameters: LoadAwareParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._threshold = parameters.threshold if parameters.threshold > 0 else DEFAULT_THRESHOLD

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        return endpoints.derived(WAITING_QUEUE_SIZE, self._free_share)

    def _free_share(self, queue: FloatArray) -> FloatArray:
        return np.fmax(0.5 - 0.5 / self._threshold * queue, 0.0)


class ActiveRequestParameters(CamelParameters):
    """Sets the load up to which an endpoint is idle, and the best score of a busy one."""

    idle_threshold: Annotated[int, Field(description="Up to this many open requests an endpoint counts as idle; below 0 means 0.")] = 0
    max_busy_score: Annotated[float, Field(description="Score a busy endpoint would have with no open request; outside 0..1 means 1.")] = (
        1.0
    )
    in_flight_load_producer_name: Annotated[str, Field(description="Instance that counts the open requests; empty for the only one.")] = ""
    request_timeout: Annotated[str | None, ignored("requestTimeout", "remove it; a request counts until it ends")] = None


class ActiveRequestScorer(Scorer[ActiveRequestParameters]):
    """Prefers endpoints with few open requests of this picker.

    score = 1 up to `idleThreshold` open requests, else (most - open) / most * `maxBusyScore`, with most among the candidates.
    """

    consumes = (INFLIGHT_REQUESTS,)
    category = Category.DISTRIBUTION

    @classmethod
    def subscriptions(cls, parameters: ActiveRequestParameters) -> Subscriptions:
        return Subscriptions((INFLIGHT_REQUESTS.from_producer(parameters.in_flight_load_producer_name),))

    def __init__(self, name: str, parameters: ActiveRequestParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._open = INFLIGHT_REQUESTS.from_producer(parameters.in_flight_load_producer_name)
        self._idle = max(parameters.idle_threshold, 0)
        self._max_busy = parameters.max_busy_score if 0.0 <= parameters.max_busy_score <= 1.0 else 1.0

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        requests = np.fmax(endpoints[self._open], 0.0)
        most = requests.max()
        if most <= self._idle:
            return np.ones(len(endpoints))
        return np.where(requests <= self._idle, 1.0, (most - requests) / most * self._max_busy)


DEFAULT_THRESHOLD_TOKENS = 4_194_304


class TokenLoadParameters(CamelParameters):
    """Sets the tokens from which an endpoint is overloaded."""

    queue_threshold_tokens: Annotated[
        int, Field(description=f"Tokens from which on an endpoint scores 0; 0 and less mean {DEFAULT_THRESHOLD_TOKENS}, as in llm-d.")
    ] = DEFAULT_THRESHOLD_TOKENS
    in_flight_load_producer_name: Annotated[str, Field(description="Instance that counts the tokens; empty for the only one.")] = ""


class TokenLoadScorer(Scorer[TokenLoadParameters]):
    """Prefers endpoints with few tokens to process: score = 1 - min(t, T) / T.

    t = tokens in flight + uncached tokens of this request, T = `queueThresholdTokens`; unknown numbers are 0.
    """

    consumes = (INFLIGHT_TOKENS,)
    consumes_optional = (UNCACHED_REQUEST_TOKENS,)
    category = Category.DISTRIBUTION

    @classmethod
    def subscriptions(cls, parameters: TokenLoadParameters) -> Subscriptions:
        producer = parameters.in_flight_load_producer_name
        return Subscriptions((INFLIGHT_TOKENS.from_producer(producer),), (UNCACHED_REQUEST_TOKENS.from_producer(producer),))

    def __init__(self, name: str, parameters: TokenLoadParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._in_flight = INFLIGHT_TOKENS.from_producer(parameters.in_flight_load_producer_name)
        self._uncached = UNCACHED_REQUEST_TOKENS.from_producer(parameters.in_flight_load_producer_name)
        self._threshold = parameters.queue_threshold_tokens if parameters.queue_threshold_tokens > 0 else DEFAULT_THRESHOLD_TOKENS

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        tokens = np.fmax(endpoints[self._in_flight], 0.0) + np.fmax(state.column(self._uncached, endpoints), 0.0)
        return np.maximum(1.0 - tokens / self._threshold, 0.0)


PREFIX_PRODUCER = "multicluster-approx-prefix-cache-producer"


class MultiClusterQueueScorer(Scorer):
    """Prefers clusters with short queues.

    score = (longest - queue) / (longest - shortest) among the candidates; 1 for all if equal, 0 if not reported.
    """

    consumes_optional = (MULTICLUSTER_QUEUE_SIZE,)
    category = Category.DISTRIBUTION
    stability = Stability.EXPERIMENTAL

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        return endpoints.derived(MULTICLUSTER_QUEUE_SIZE, smaller_is_better)


class MultiClusterKVCacheUtilizationScorer(Scorer):
    """Prefers clusters with free KV caches: score = 1 - mean usage; 0 if not reported."""

    consumes_optional = (MULTICLUSTER_KV_CACHE_USAGE,)
    category = Category.DISTRIBUTION
    stability = Stability.EXPERIMENTAL

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        return endpoints.derived(MULTICLUSTER_KV_CACHE_USAGE, share_left)


class MultiClusterPrefixCacheScorer(PrefixCacheScorer):
    """Prefers clusters that were sent a long prefix of the prompt before.

    Like `prefix-cache-scorer`, by default with matches from `multicluster-approx-prefix-cache-producer`.
    """

    stability = Stability.EXPERIMENTAL

    @classmethod
    def subscriptions(cls, parameters: PrefixCacheParameters) -> Subscriptions:
        own = super().subscriptions(_with_producer(parameters))
        if parameters.prefix_match_info_producer_name:
            return own
        return Subscriptions(tuple(replace(key, default_producer=PREFIX_PRODUCER) for key in own.consumes))  # type: ignore[type-var]

    def __init__(self, name: str, parameters: PrefixCacheParameters, context: PluginContext) -> None:
        super().__init__(name, _with_producer(parameters), context)


def _with_producer(parameters: PrefixCacheParameters) -> PrefixCacheParameters:
    named = parameters.prefix_match_info_producer_name or PREFIX_PRODUCER
    return parameters.model_copy(update={"prefix_match_info_producer_name": named})
