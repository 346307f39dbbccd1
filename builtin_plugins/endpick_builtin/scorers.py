"""Scorers: how good each endpoint would be for a request, from 0 to 1."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    INFLIGHT_REQUESTS,
    KV_CACHE_USAGE,
    LORA_ADAPTERS,
    PREFIX_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    Category,
    Endpoints,
    FloatArray,
    InferenceRequest,
    LoraAdapters,
    Parameters,
    PluginContext,
    Scorer,
    ScoringState,
    Subscriptions,
)


class KVCacheUtilizationScorer(Scorer):
    """Prefer endpoints with a free KV cache.

    score = 1 - usage. An endpoint that has not reported its usage scores 0.
    """

    consumes = (KV_CACHE_USAGE,)
    category = Category.DISTRIBUTION

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        return endpoints.derived(KV_CACHE_USAGE, _share_left)


def _share_left(usage: FloatArray) -> FloatArray:
    return np.fmax(1.0 - usage, 0.0)


def smaller_is_better(values: FloatArray) -> FloatArray:
    """(largest - value) / (largest - smallest): 1 for the smallest, 0 for the largest, 1 for all when they are equal; NaN gives 0.

    Not finite values other than NaN do not occur in columns. Shape as `values`, which is not empty.
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
    request_timeout: Annotated[
        str | None, Field(alias="requestTimeout", description="Ignored, as in llm-d: requests end when they end.")
    ] = None


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


RUNNING = 1.0
ROOM = 0.8
WAITING = 0.6
FULL = 0.0


class LoraAffinityScorer(Scorer):
    """Prefer endpoints that run the requested LoRA adapter.

    score = 1 where the requested model is a running adapter; else 0.8 where fewer adapters run and wait than fit; else 0.6 where it is
    waiting to be loaded; else 0. An endpoint that has not reported adapters scores 0. As in llm-d, a request for a base model is rated
    the same way: no server lists it as an adapter.
    """

    consumes = (LORA_ADAPTERS,)
    category = Category.AFFINITY

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        model = request.model
        return np.array([_affinity(model, adapters) for adapters in endpoints.objects(LORA_ADAPTERS)], dtype=np.float64)


def _affinity(model: str, adapters: LoraAdapters | None) -> float:
    if adapters is None:
        return FULL
    if model in adapters.running:
        return RUNNING
    if len(adapters.running) + len(adapters.waiting) < adapters.max_adapters:
        return ROOM
    return WAITING if model in adapters.waiting else FULL


_IGNORED = "Ignored, as in llm-d: give it to `approx-prefix-cache-producer`."


class PrefixCacheParameters(Parameters):
    """How matches are weighed. The parameters that older configurations put here belong to the producer and do nothing."""

    prefix_match_info_producer_name: Annotated[
        str, Field(alias="prefixMatchInfoProducerName", description="Instance that knows what matches; empty for the only one.")
    ] = ""
    match_length_weight: Annotated[
        float, Field(alias="matchLengthWeight", ge=0.0, le=1.0, description="Share of the score that rates the match's absolute length.")
    ] = 0.0
    match_length_scale_tokens: Annotated[
        int, Field(alias="matchLengthScaleTokens", gt=0, description="Match length in tokens that earns that share in full.")
    ] = 8192
    auto_tune: Annotated[bool | None, Field(alias="autoTune", description=_IGNORED)] = None
    block_size: Annotated[int | None, Field(alias="blockSize", description=_IGNORED)] = None
    block_size_tokens: Annotated[int | None, Field(alias="blockSizeTokens", description=_IGNORED)] = None
    max_prefix_blocks_to_match: Annotated[int | None, Field(alias="maxPrefixBlocksToMatch", description=_IGNORED)] = None
    max_prefix_tokens_to_match: Annotated[int | None, Field(alias="maxPrefixTokensToMatch", description=_IGNORED)] = None
    lru_capacity_per_server: Annotated[int | None, Field(alias="lruCapacityPerServer", description=_IGNORED)] = None


class PrefixCacheScorer(Scorer[PrefixCacheParameters]):
    """Prefer endpoints that have cached a long beginning of the prompt.

    score = w * min(1, matched tokens / scale)**2 + (1 - w) * matched blocks / all blocks, with w = `matchLengthWeight` and
    scale = `matchLengthScaleTokens`. Without a prompt, or for an endpoint nothing is known of, the score is 0.
    """

    consumes = (PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS)
    category = Category.AFFINITY

    @classmethod
    def subscriptions(cls, parameters: PrefixCacheParameters) -> Subscriptions:
        """The matches, as the named producer finds them."""
        producer = parameters.prefix_match_info_producer_name
        return Subscriptions((PREFIX_MATCH_BLOCKS.from_producer(producer), PREFIX_BLOCKS.from_producer(producer)))

    def __init__(self, name: str, parameters: PrefixCacheParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._matches = PREFIX_MATCH_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._blocks = PREFIX_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        ignored = [
            field.alias
            for key, field in type(parameters).model_fields.items()
            if field.description is _IGNORED and key in parameters.model_fields_set
        ]
        if ignored:
            context.logger.warning(
                "%s has no effect on a prefix-cache-scorer: give it to approx-prefix-cache-producer", ", ".join(map(str, ignored))
            )

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        blocks = state.get(self._blocks)
        if blocks is None or not blocks.total_blocks:
            return np.zeros(len(endpoints))
        matched = np.fmax(state.column(self._matches, endpoints), 0.0)
        share = matched / blocks.total_blocks
        weight = self.parameters.match_length_weight
        if not weight:
            return share
        length = np.minimum(matched * (blocks.block_size_tokens / self.parameters.match_length_scale_tokens), 1.0)
        return weight * length**2 + (1.0 - weight) * share
