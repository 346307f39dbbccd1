"""Scorers that look at what an endpoint has loaded for a request: LoRA adapters and prompts in its cache."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    LORA_ADAPTERS,
    PREFIX_BLOCKS,
    PREFIX_MATCH_BLOCKS,
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
    ignored,
)

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


_PRODUCERS = "give it to `approx-prefix-cache-producer`"


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
    auto_tune: Annotated[bool | None, ignored("autoTune", _PRODUCERS)] = None
    block_size: Annotated[int | None, ignored("blockSize", _PRODUCERS)] = None
    block_size_tokens: Annotated[int | None, ignored("blockSizeTokens", _PRODUCERS)] = None
    max_prefix_blocks_to_match: Annotated[int | None, ignored("maxPrefixBlocksToMatch", _PRODUCERS)] = None
    max_prefix_tokens_to_match: Annotated[int | None, ignored("maxPrefixTokensToMatch", _PRODUCERS)] = None
    lru_capacity_per_server: Annotated[int | None, ignored("lruCapacityPerServer", _PRODUCERS)] = None


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
