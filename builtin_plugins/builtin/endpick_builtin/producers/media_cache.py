"""`mm-embeddings-cache-producer`: guesses which pictures, films and sounds each encoder cache holds from what was sent there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from prometheus_client.registry import CollectorRegistry
from pydantic import Field
from xxhash import xxh64_intdigest

from endpick.api import (
    MEDIA_ITEMS,
    MEDIA_MATCHED,
    TOKENIZED_PROMPT,
    CycleState,
    DataProducer,
    Endpoints,
    FloatArray,
    InferenceRequest,
    LabelLimit,
    Modality,
    Parameters,
    PluginContext,
    PreRequest,
    PromptTokens,
    RowArray,
    SchedulingResult,
    UpstreamHeaders,
)
from endpick.api.fast_metrics import Counts, Distributions
from endpick_builtin.producers.item_index import ItemIndex
from endpick_builtin.producers.prefix_cache import RATIO_BUCKETS
from endpick_builtin.producers.token_estimate import identifier_of

DEFAULT_CACHE_MB = 4096
ITEM_MB = 2
"""What one item is taken to need."""


class MediaCacheParameters(Parameters):
    """How much each endpoint is believed to hold."""

    cache_size_in_mb_per_server: Annotated[
        int,
        Field(
            alias="cacheSizeInMBPerServer",
            le=1 << 30,
            description=f"MiB of an endpoint's encoder cache, {ITEM_MB} for each item; 0 and less mean {DEFAULT_CACHE_MB}.",
        ),
    ] = DEFAULT_CACHE_MB
    cache_size_in_mb: Annotated[
        int | None,
        Field(
            alias="cacheSizeInMB",
            le=1 << 30,
            deprecated=True,
            description="A misspelling of `cacheSizeInMBPerServer`, which wins where both are given.",
        ),
    ] = None

    @property
    def capacity(self) -> int:
        """Items an endpoint holds."""
        given = self.cache_size_in_mb_per_server
        misspelt: int | None = self.__dict__["cache_size_in_mb"]
        if misspelt is not None and "cache_size_in_mb_per_server" not in self.model_fields_set:
            given = misspelt
        return max(1, (given if given > 0 else DEFAULT_CACHE_MB) // ITEM_MB)


def media_of(request: InferenceRequest, tokenized: tuple[PromptTokens, ...] | None) -> Mapping[str, Modality]:
    """The different media of a request by what identifies them: as its tokenizer names them, or else by their content."""
    if tokenized is not None and any(prompt.media for prompt in tokenized):
        return {place.identifier: place.modality for prompt in tokenized for place in prompt.media}
    return {identifier_of(media): media.modality for media in request.prompt.media}


class EncoderCacheMetrics:
    """How often media go where they were before."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        prefix = "llm_d_epp_encoder_cache_"
        self._queries = Counts(f"{prefix}queries_total", "Media of requests that were sent.", ("modality",), registry)
        found = "Media that were sent where they had been sent before."
        self._hits = Counts(f"{prefix}hits_total", found, ("modality", "pod"), registry)
        self._pod = LabelLimit()
        ratio = "Share of a request's media that were sent where they had been sent before."
        self._ratio = Distributions(f"{prefix}hit_ratio", ratio, (), RATIO_BUCKETS, registry).labels()

    def sent(self, media: Mapping[int, Modality], found: frozenset[int], endpoint: str) -> None:
        """A request with these media goes to the endpoint, which has those of them that were found."""
        for modality, count in Counter(media.values()).items():
            self._queries.labels(modality).value += count
        for modality, count in Counter(media[item] for item in found).items():
            self._hits.labels(modality, self._pod(endpoint)).value += count
        self._ratio.observe(len(found) / len(media))


@dataclass(frozen=True, slots=True)
class _Looked:
    """The media of one request, and for each of them that is held anywhere the slots that hold it, as bits."""

    items: Mapping[int, Modality]
    holders: Mapping[int, int]


class MediaCacheProducer(DataProducer[MediaCacheParameters], PreRequest[MediaCacheParameters]):
    """Count, for each candidate, the different media of the request that were sent to it before and that it can still hold.

    When a request leaves, its media count as held by the endpoint that serves it; each endpoint holds the last
    cacheSizeInMBPerServer / 2 of them (at least one). Media are told apart as the token-producer's back end names them, without one by
    xxh64 of link or content; a picture that comes twice in one request counts once. A request without media has 0 of them everywhere.
    """

    consumes_optional = (TOKENIZED_PROMPT,)
    produces = (MEDIA_ITEMS, MEDIA_MATCHED)

    def __init__(self, name: str, parameters: MediaCacheParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._held = ItemIndex()
        self._capacity = parameters.capacity
        self._metrics = EncoderCacheMetrics(context.registry)
        self._pool: object = None
        self._slot_of_member: RowArray = np.empty(0, dtype=np.intp)

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        """Look the request's media up."""
        media = media_of(request, state.get(TOKENIZED_PROMPT))
        items = {xxh64_intdigest(identifier.encode("utf-8", "surrogatepass")): modality for identifier, modality in media.items()}
        matched: FloatArray = np.zeros(len(endpoints))
        if items:
            if endpoints.pool_members is not self._pool:
                self._slot_of_member = self._held.slots(endpoint.name for endpoint in endpoints.pool_members)
                self._pool = endpoints.pool_members
            holders = {item: slots for item in items if (slots := self._held.holders(item))}
            matched += endpoints.gather(self._held.held_by_each(holders.values())[self._slot_of_member])
            state.private["media"] = _Looked(items, holders)
        state.put(MEDIA_ITEMS, len(items))
        state.put_column(MEDIA_MATCHED, endpoints, matched)

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        """Remember where the media go."""
        looked = state.private.pop("media", None)  # a request lasts for minutes, and may have a thousand of them
        picked = result.runs[result.primary].picked
        if not isinstance(looked, _Looked) or picked is None:
            return
        name = picked.take([0]).members[0].name
        bit = self._held.bit_of(name)
        found = frozenset(item for item, slots in looked.holders.items() if slots & bit)
        self._metrics.sent(looked.items, found, name.rpartition("/")[2])
        self._held.insert(name, tuple(looked.items), self._capacity)

    def endpoint_removed(self, name: str) -> None:
        """Forget what it held; an endpoint that takes its name begins with an empty cache."""
        self._held.remove(name)
        self._pool = None

    def learnt_bytes(self) -> int:
        """What the index takes."""
        return self._held.size_bytes

    def forget_some(self) -> bool:
        """Of each endpoint, the half of its media that was used least recently, in parts."""
        return self._held.halve()
