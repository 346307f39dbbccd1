"""Scorers that look at how busy an endpoint is: queue, running and open requests, tokens in flight, KV cache."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    INFLIGHT_REQUESTS,
    INFLIGHT_TOKENS,
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    UNCACHED_REQUEST_TOKENS,
    WAITING_QUEUE_SIZE,
    Category,
    Endpoints,
    FloatArray,
    InferenceRequest,
    Parameters,
    PluginContext,
    Scorer,
    ScoringState,
    Subscriptions,
    ignored,
)


class KVCacheUtilizationScorer(Scorer):
    """Prefer endpoints with a free KV cache.

    score = 1 - usage. An endpoint that has not reported its usage scores 0.
    """

    consumes = (KV_CACHE_USAGE,)
    category = Category.DISTRIBUTION

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        return endpoints.derived(KV_CACHE_USAGE, share_left)


def share_left(usage: FloatArray) -> FloatArray:
    """1 - usage, and 0 where the usage is not known; a usage below 0, which no model server means, counts as 0."""
    return np.fmax(1.0 - np.maximum(usage, 0.0), 0.0)


def smaller_is_better(values: FloatArray) -> FloatArray:
    """(largest - value) / (largest - smallest): 1 for the smallest, 0 for the largest, 1 for all when they are equal; NaN gives 0.

    Infinite values do not occur in columns, nor any beyond 1e300. Shape as `values`, which is not empty.
    """
    largest = values[values.argmax()]
    if np.isnan(largest):  # which `argmax` finds first
        return _among_the_known(values)
    spread = largest - values[values.argmin()]
    return (largest - values) / spread if spread > 0.0 else np.ones(len(values))


def _among_the_known(values: FloatArray) -> FloatArray:
    """The same where some are NaN: twice the work."""
    largest = np.fmax.reduce(values)
    spread = largest - np.fmin.reduce(values)
    if spread > 0.0:
        scores: FloatArray = np.fmax((largest - values) / spread, 0.0)
        return scores
    return np.where(np.isnan(values), 0.0, 1.0)


class QueueScorer(Scorer):
    """Prefer endpoints where few requests wait.

    score = (longest - queue) / (longest - shortest) among the candidates; 1 for all when all queues are equally long. An endpoint that
    has not reported its queue scores 0.
    """

    consumes = (WAITING_QUEUE_SIZE,)
    category = Category.DISTRIBUTION

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        return endpoints.derived(WAITING_QUEUE_SIZE, smaller_is_better)


class RunningRequestsScorer(Scorer):
    """Prefer endpoints that run few requests.

    score = (most - running) / (most - fewest) among the candidates; 1 for all when all run equally many. An endpoint that has not
    reported scores 0.
    """

    consumes = (RUNNING_REQUESTS_SIZE,)
    category = Category.DISTRIBUTION

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        return endpoints.derived(RUNNING_REQUESTS_SIZE, smaller_is_better)


DEFAULT_THRESHOLD = 128


class LoadAwareParameters(Parameters):
    """What counts as overloaded."""

    threshold: Annotated[int, Field(description="Queue length from which on an endpoint scores 0; 0 and less mean 128, as in llm-d.")] = (
        DEFAULT_THRESHOLD
    )


class LoadAwareScorer(Scorer[LoadAwareParameters]):
    """Prefer endpoints whose queue is short against a threshold T.

    score = 0.5 * (1 - min(queue, T) / T), so an empty queue scores 0.5. An endpoint that has not reported its queue scores 0.
    """

    consumes = (WAITING_QUEUE_SIZE,)
    category = Category.DISTRIBUTION

    def __init__(self, name: str, parameters: LoadAwareParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._threshold = parameters.threshold if parameters.threshold > 0 else DEFAULT_THRESHOLD

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        return endpoints.derived(WAITING_QUEUE_SIZE, self._free_share)

    def _free_share(self, queue: FloatArray) -> FloatArray:
        return np.fmax(0.5 - 0.5 / self._threshold * queue, 0.0)


class ActiveRequestParameters(Parameters):
    """When an endpoint counts as idle, and how good a busy one can be."""

    idle_threshold: Annotated[
        int, Field(alias="idleThreshold", description="Up to this many open requests an endpoint counts as idle; below 0 means 0.")
    ] = 0
    max_busy_score: Annotated[
        float, Field(alias="maxBusyScore", description="Score a busy endpoint would have with no open request; outside 0..1 means 1.")
    ] = 1.0
    in_flight_load_producer_name: Annotated[
        str, Field(alias="inFlightLoadProducerName", description="Instance that counts the open requests; empty for the only one.")
    ] = ""
    request_timeout: Annotated[str | None, ignored("requestTimeout", "remove it; a request counts until it ends")] = None


class ActiveRequestScorer(Scorer[ActiveRequestParameters]):
    """Prefer endpoints with few open requests of this picker's.

    score = 1 up to `idleThreshold` open requests, else (most - open) / most * `maxBusyScore`, where most is the largest number among the
    candidates. An endpoint for which no request has been counted yet has no open request.
    """

    consumes = (INFLIGHT_REQUESTS,)
    category = Category.DISTRIBUTION

    @classmethod
    def subscriptions(cls, parameters: ActiveRequestParameters) -> Subscriptions:
        """The open requests, as the named producer counts them."""
        return Subscriptions((INFLIGHT_REQUESTS.from_producer(parameters.in_flight_load_producer_name),))

    def __init__(self, name: str, parameters: ActiveRequestParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._open = INFLIGHT_REQUESTS.from_producer(parameters.in_flight_load_producer_name)
        self._idle = max(parameters.idle_threshold, 0)
        self._max_busy = parameters.max_busy_score if 0.0 <= parameters.max_busy_score <= 1.0 else 1.0

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        requests = np.fmax(endpoints[self._open], 0.0)
        most = requests.max()
        if most <= self._idle:
            return np.ones(len(endpoints))
        return np.where(requests <= self._idle, 1.0, (most - requests) / most * self._max_busy)


DEFAULT_THRESHOLD_TOKENS = 4_194_304


class TokenLoadParameters(Parameters):
    """What counts as overloaded."""

    queue_threshold_tokens: Annotated[
        int,
        Field(
            alias="queueThresholdTokens",
            description=f"Tokens from which on an endpoint scores 0; 0 and less mean {DEFAULT_THRESHOLD_TOKENS}, as in llm-d.",
        ),
    ] = DEFAULT_THRESHOLD_TOKENS
    in_flight_load_producer_name: Annotated[
        str, Field(alias="inFlightLoadProducerName", description="Instance that counts the tokens; empty for the only one.")
    ] = ""


class TokenLoadScorer(Scorer[TokenLoadParameters]):
    """Prefer endpoints with few tokens left to work on, against a threshold T.

    score = 1 - min(t, T) / T, where t is the tokens in flight to the endpoint and those of this request that it has not cached. An endpoint
    that was sent nothing has no tokens in flight; tokens of the request that are not known count as none.
    """

    consumes = (INFLIGHT_TOKENS,)
    consumes_optional = (UNCACHED_REQUEST_TOKENS,)
    category = Category.DISTRIBUTION

    @classmethod
    def subscriptions(cls, parameters: TokenLoadParameters) -> Subscriptions:
        """The tokens, as the named producer counts them."""
        producer = parameters.in_flight_load_producer_name
        return Subscriptions((INFLIGHT_TOKENS.from_producer(producer),), (UNCACHED_REQUEST_TOKENS.from_producer(producer),))

    def __init__(self, name: str, parameters: TokenLoadParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._in_flight = INFLIGHT_TOKENS.from_producer(parameters.in_flight_load_producer_name)
        self._uncached = UNCACHED_REQUEST_TOKENS.from_producer(parameters.in_flight_load_producer_name)
        self._threshold = parameters.queue_threshold_tokens if parameters.queue_threshold_tokens > 0 else DEFAULT_THRESHOLD_TOKENS

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        tokens = np.fmax(endpoints[self._in_flight], 0.0) + np.fmax(state.column(self._uncached, endpoints), 0.0)
        return np.maximum(1.0 - tokens / self._threshold, 0.0)
