"""`mm-embeddings-cache-producer`: estimates encoder caches from the media sent there."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from prometheus_client.registry import CollectorRegistry
from pydantic import Field
from xxhash import xxh64_intdigest

from endpick.api import (
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
    SchedulingResult,
    UpstreamHeaders,
)
from endpick.api.fast_metrics import Counts, Distributions
from endpick.api.keys import MEDIA_ITEMS, MEDIA_MATCHED, TOKENIZED_PROMPT, PromptTokens
from endpick_builtin.producers.prefix_cache import RATIO_BUCKETS
from endpick_builtin.producers.token_estimate import identifier_of

DEFAULT_CACHE_MB = 4096
ITEM_MB = 2


class MediaCacheParameters(Parameters):
    """Assumed size of encoder caches."""

    cache_size_in_mb_per_server: Annotated[
        int,
        Field(
            alias="cacheSizeInMBPerServer",
            le=1 << 30,
            description=f"Encoder cache of an endpoint in MiB, {ITEM_MB} per item; 0 and less mean {DEFAULT_CACHE_MB}.",
        ),
    ] = DEFAULT_CACHE_MB
    cache_size_in_mb: Annotated[
        int | None,
        Field(
            alias="cacheSizeInMB",
            le=1 << 30,
            deprecated=True,
            description="Misspelling of `cacheSizeInMBPerServer`, which takes precedence.",
        ),
    ] = None

    @property
    def capacity(self) -> int:
        given = self.cache_size_in_mb_per_server
        misspelt: int | None = self.__dict__["cache_size_in_mb"]
        if misspelt is not None and "cache_size_in_mb_per_server" not in self.model_fields_set:
            given = misspelt
        return max(1, (given if given > 0 else DEFAULT_CACHE_MB) // ITEM_MB)


def media_of(request: InferenceRequest, tokenized: tuple[PromptTokens, ...] | None) -> Mapping[str, Modality]:
    """Distinct media by identifier."""
    if tokenized is not None and any(prompt.media for prompt in tokenized):
        return {place.identifier: place.modality for prompt in tokenized for place in prompt.media}
    return {identifier_of(media): media.modality for media in request.prompt.media}


class _EncoderCacheMetrics:
    def __init__(self, registry: CollectorRegistry | None) -> None:
        prefix = "llm_d_epp_encoder_cache_"
        self._queries = Counts(f"{prefix}queries_total", "Media of requests.", ("modality",), registry)
        self._hits = Counts(f"{prefix}hits_total", "Media sent to an endpoint that holds them.", ("modality", "pod"), registry)
        self._pod = LabelLimit()
        ratio = "Share of a request's media held by the picked endpoint."
        self._ratio = Distributions(f"{prefix}hit_ratio", ratio, (), RATIO_BUCKETS, registry).labels()

    def sent(self, media: Mapping[int, Modality], found: Sequence[int], endpoint: str) -> None:
        for modality, count in Counter(media.values()).items():
            self._queries.labels(modality).value += count
        for modality, count in Counter(media[item] for item in found).items():
            self._hits.labels(modality, self._pod(endpoint)).value += count
        self._ratio.observe(len(found) / len(media))


class MediaCacheProducer(DataProducer[MediaCacheParameters], PreRequest[MediaCacheParameters]):
    """Counts the distinct media of the request that were sent to each candidate before and should still be cached there.

    An endpoint holds the media sent to it, up to the last cacheSizeInMBPerServer / 2, by the token-producer's identifier or xxh64 of link
    or content.
    """

    consumes_optional = (TOKENIZED_PROMPT,)
    produces = (MEDIA_ITEMS, MEDIA_MATCHED)

    def __init__(self, name: str, parameters: MediaCacheParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._held: dict[str, OrderedDict[int, None]] = {}  # by endpoint, the most recent last
        self._capacity = parameters.capacity
        self._metrics = _EncoderCacheMetrics(context.registry)
        self._pool: object = None

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        if endpoints.pool_members is not self._pool:
            self._pool = endpoints.pool_members
            for endpoint in endpoints.pool_members:
                self._held.setdefault(endpoint.name, OrderedDict())
        media = media_of(request, state.get(TOKENIZED_PROMPT))
        items = {xxh64_intdigest(identifier.encode("utf-8", "surrogatepass")): modality for identifier, modality in media.items()}
        matched: FloatArray = np.zeros(len(endpoints))
        if items:
            matched += [sum(map(self._held[endpoint.name].__contains__, items)) for endpoint in endpoints.members]
            state.private["media"] = items
        state.put(MEDIA_ITEMS, len(items))
        state.put_column(MEDIA_MATCHED, endpoints, matched)

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        items: dict[int, Modality] | None = state.private.pop("media", None)  # type: ignore[assignment]
        picked = result.runs[result.primary].picked
        if not items or picked is None:
            return
        name = picked.members[0].name
        held = self._held.get(name)
        if held is None:
            return  # it has left the pool
        self._metrics.sent(items, [item for item in items if item in held], name.rpartition("/")[2])
        for item in reversed(items):
            held[item] = None
            held.move_to_end(item)
        while len(held) > self._capacity:
            held.popitem(last=False)

    def endpoint_removed(self, name: str) -> None:
        self._held.pop(name, None)
        self._pool = None
