"""Scorers by affinity: LoRA adapters, cached prompts and media, labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final, TypeAlias

import numpy as np
from pydantic import Field

from endpick.api import (
    Category,
    Endpoints,
    FloatArray,
    InferenceRequest,
    Parameters,
    PluginContext,
    Scorer,
    ScoringState,
    Stability,
    Subscriptions,
)
from endpick.api.keys import LORA_ADAPTERS, MEDIA_ITEMS, MEDIA_MATCHED, PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, LoraAdapters
from endpick.api.plugin import ignored
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.label_filters import LabelValues

RUNNING = 1.0
ROOM = 0.8
WAITING = 0.6
FULL = 0.0


class LoraAffinityScorer(Scorer):
    """Prefers endpoints that run the requested LoRA adapter.

    score = 1 if the model is a running adapter; else 0.8 if fewer adapters run and wait than fit; else 0.6 if it waits to be loaded; else
    0, as without a report. Base models are rated alike, as in llm-d.
    """

    consumes = (LORA_ADAPTERS,)
    category = Category.AFFINITY

    def __init__(self, name: str, parameters: Parameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._index = AdapterIndex([], None)

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        return endpoints.gather(endpoints.derived_from_objects(LORA_ADAPTERS, self._indexed).scores(request.model))

    def _indexed(self, reported: Sequence[LoraAdapters | None]) -> AdapterIndex:
        self._index = AdapterIndex(reported, self._index)
        return self._index


_NO_ADAPTERS = LoraAdapters()
Holders: TypeAlias = dict[str, set[int]]  # rows by adapter


class AdapterIndex:
    """Finds the endpoints of the pool that run or queue an adapter."""

    def __init__(self, reported: Sequence[LoraAdapters | None], previous: AdapterIndex | None) -> None:
        """Update the changed rows of `previous`: in a large pool some server always reports something new."""
        before = previous if previous is not None and len(previous._reported) == len(reported) else None
        old = [None] * len(reported) if before is None else before._reported
        self._reported: Sequence[LoraAdapters | None] = reported
        self._for_others: FloatArray = np.zeros(len(reported)) if before is None else before._for_others.copy()
        self._running: Holders = {} if before is None else dict(before._running)
        self._waiting: Holders = {} if before is None else dict(before._waiting)
        changed = [row for row, (then, now) in enumerate(zip(old, reported, strict=True)) if then is not now]
        for row in changed:
            self._for_others[row] = _room(reported[row])
        changes = [(row, old[row] or _NO_ADAPTERS, reported[row] or _NO_ADAPTERS) for row in changed]
        _update(self._running, [(row, then.running, now.running) for row, then, now in changes])
        _update(self._waiting, [(row, then.waiting, now.waiting) for row, then, now in changes])
        self._for_others.flags.writeable = False

    def scores(self, model: str) -> FloatArray:
        running, waiting = self._running.get(model), self._waiting.get(model)
        if not running and not waiting:
            return self._for_others
        scores = self._for_others.copy()
        if waiting:
            rows = list(waiting)
            scores[rows] = np.maximum(scores[rows], WAITING)
        if running:
            scores[list(running)] = RUNNING
        return scores


def _update(holders: Holders, changes: Iterable[tuple[int, frozenset[str], frozenset[str]]]) -> None:
    own: set[str] = set()
    for row, had, has in changes:
        for model in had ^ has:
            if model not in own:
                own.add(model)
                holders[model] = set(holders.get(model, ()))
            holders[model] ^= {row}
    for model in own:
        if not holders[model]:
            del holders[model]


def _room(adapters: LoraAdapters | None) -> float:
    fits = adapters is not None and len(adapters.running) + len(adapters.waiting) < adapters.max_adapters
    return ROOM if fits else FULL


_PRODUCERS = "give it to `approx-prefix-cache-producer`"


class PrefixCacheParameters(CamelParameters):
    """Weights; producer parameters of older configurations are ignored."""

    prefix_match_info_producer_name: Annotated[str, Field(description="Instance that provides prefix matches; empty for the only one.")] = (
        ""
    )
    match_length_weight: Annotated[
        float, Field(ge=0.0, le=1.0, description="Share of the score that rates the match's absolute length.")
    ] = 0.0
    match_length_scale_tokens: Annotated[int, Field(gt=0, description="Match length in tokens that earns that share in full.")] = 8192
    auto_tune: Annotated[bool | None, ignored("autoTune", _PRODUCERS)] = None
    block_size: Annotated[int | None, ignored("blockSize", _PRODUCERS)] = None
    block_size_tokens: Annotated[int | None, ignored("blockSizeTokens", _PRODUCERS)] = None
    max_prefix_blocks_to_match: Annotated[int | None, ignored("maxPrefixBlocksToMatch", _PRODUCERS)] = None
    max_prefix_tokens_to_match: Annotated[int | None, ignored("maxPrefixTokensToMatch", _PRODUCERS)] = None
    lru_capacity_per_server: Annotated[int | None, ignored("lruCapacityPerServer", _PRODUCERS)] = None


NOTHING: Final = np.array(0.0)  # numpy compares with an array faster than a number


class PrefixCacheScorer(Scorer[PrefixCacheParameters]):
    """Prefers endpoints that have cached a long prefix of the prompt.

    score = w * min(1, matched tokens / scale)**2 + (1 - w) * matched blocks / all blocks, with w = `matchLengthWeight` and
    scale = `matchLengthScaleTokens`; 0 without a prompt.
    """

    consumes = (PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS)
    category = Category.AFFINITY

    @classmethod
    def subscriptions(cls, parameters: PrefixCacheParameters) -> Subscriptions:
        producer = parameters.prefix_match_info_producer_name
        return Subscriptions((PREFIX_MATCH_BLOCKS.from_producer(producer), PREFIX_BLOCKS.from_producer(producer)))

    def __init__(self, name: str, parameters: PrefixCacheParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._matches = PREFIX_MATCH_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._blocks = PREFIX_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._length_weight = parameters.match_length_weight

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        blocks, matched = state.get(self._blocks), state.column(self._matches, endpoints)
        if blocks is None or not blocks.total_blocks:
            return np.zeros(len(matched))
        known: FloatArray = np.fmax(matched, NOTHING)
        share: FloatArray = known / blocks.total_blocks
        weight = self._length_weight
        if not weight:
            return share
        scale = blocks.block_size_tokens / self.parameters.match_length_scale_tokens
        length = np.minimum(known * scale, 1.0)
        return weight * length**2 + (1.0 - weight) * share


class MediaCacheParameters(CamelParameters):
    """Names the producer of media matches."""

    producer_name: Annotated[str, Field(description="Instance that knows which embeddings are cached; empty for the only one.")] = ""


class MediaCacheScorer(Scorer[MediaCacheParameters]):
    """Prefers endpoints that have cached the embeddings of the request's media: score = matched / all media, 0 without any."""

    consumes = (MEDIA_ITEMS, MEDIA_MATCHED)
    category = Category.AFFINITY

    @classmethod
    def subscriptions(cls, parameters: MediaCacheParameters) -> Subscriptions:
        producer = parameters.producer_name
        return Subscriptions((MEDIA_ITEMS.from_producer(producer), MEDIA_MATCHED.from_producer(producer)))

    def __init__(self, name: str, parameters: MediaCacheParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._items = MEDIA_ITEMS.from_producer(parameters.producer_name)
        self._matched = MEDIA_MATCHED.from_producer(parameters.producer_name)

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        items, matched = state.get(self._items), state.column(self._matched, endpoints)
        return np.clip(np.fmax(matched, 0.0) / items, 0.0, 1.0) if items else np.zeros(len(endpoints))


class HeaderLabelAffinityParameters(CamelParameters):
    """Names the header and the label to compare."""

    header_name: Annotated[str, Field(min_length=1, description="Request header, in any case.", examples=["x-tenant"])]
    label_key: Annotated[str, Field(min_length=1, description="Label of endpoints.", examples=["tenant"])]


class HeaderLabelAffinityScorer(Scorer[HeaderLabelAffinityParameters]):
    """Prefers endpoints with a label equal to a request header: score = 1 if equal, else 0."""

    category = Category.AFFINITY
    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: HeaderLabelAffinityParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._header = parameters.header_name.lower()
        self._labels = LabelValues(parameters.label_key)

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        value = request.headers.get(self._header)
        return np.zeros(len(endpoints)) if value is None else self._labels.equal(endpoints, value).astype(np.float64)
