"""Producers that find cached content: media seen by an encoder, and the peer that holds a prefix."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from prometheus_client.registry import CollectorRegistry
from pydantic import Field
from xxhash import xxh64_intdigest

from endpick.api import (
    WAITING_QUEUE_SIZE,
    CycleState,
    DataKey,
    DataProducer,
    Endpoint,
    Endpoints,
    FloatArray,
    InferenceRequest,
    LabelLimit,
    Modality,
    PluginContext,
    PreRequest,
    SchedulingResult,
    Scope,
    Stability,
    Subscriptions,
    UpstreamHeaders,
)
from endpick.api.fast_metrics import Counts, Distributions
from endpick.api.keys import MEDIA_ITEMS, MEDIA_MATCHED, PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, TOKENIZED_PROMPT, PromptTokens
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.producers.prefix_cache import RATIO_BUCKETS
from endpick_builtin.producers.token_estimate import identifier_of

BEST_MATCH = DataKey(
    "endpick/best-match",
    Endpoint,
    Scope.REQUEST,
    doc="An endpoint from which cached blocks of the prompt can be pulled.",
    default_producer="p2p-source-producer",
)
SOURCE_HEADER = "x-kv-cache-source-host-port"
_FNV_OFFSET, _FNV_PRIME, _LOW_32_BITS = 0x811C9DC5, 0x01000193, 0xFFFFFFFF


def fnv32a(text: str) -> int:
    """Return the 32-bit FNV-1a hash of the UTF-8 bytes."""
    value = _FNV_OFFSET
    for byte in text.encode("utf-8", "surrogatepass"):
        value = ((value ^ byte) * _FNV_PRIME) & _LOW_32_BITS
    return value


def drawn_source(cached: FloatArray, waiting: FloatArray, draw: float) -> int | None:
    """Draw the position of a source within one block of the longest match; None if nothing is cached.

    Weighted by 1 / (1 + waiting); NaN is 0. `draw` is in [0, 1).
    """
    held = np.fmax(cached, 0.0)
    most = held.max(initial=0.0)
    if not most > 0:
        return None
    eligible = np.flatnonzero((held > 0) & (held >= most - 1.0))
    ends = np.cumsum(1.0 / (1.0 + np.fmax(waiting[eligible], 0.0)))
    return int(eligible[min(int(np.searchsorted(ends, draw * ends[-1], side="right")), len(eligible) - 1)])


class P2PSourceParameters(CamelParameters):
    """Sets when an endpoint pulls cached blocks, and whose pick computes the prompt."""

    prefix_match_info_producer_name: Annotated[str, Field(description="Producer of prefix matches; empty if there is only one.")] = ""
    min_cached_token_delta: Annotated[int, Field(ge=1, description="Tokens that the source must hold beyond the computing endpoint.")] = 1
    prefill_profile_name: Annotated[str, Field(description="Profile whose pick computes the prompt; the primary if it has none.")] = (
        "prefill"
    )


class P2PSourceProducer(DataProducer[P2PSourceParameters], PreRequest[P2PSourceParameters]):
    """Sets the header `x-kv-cache-source-host-port` to an endpoint from which the prompt's cached prefix can be pulled.

    Sources are drawn among candidates whose cached prefix is at most one block shorter than the longest, weighted by 1 / (1 + waiting
    requests), with FNV-1a-32(request id) / 2**32 as the random number. The source must hold `minCachedTokenDelta` tokens more than the
    endpoint that computes the prompt. The client's header is removed: servers would pull from any address in it.
    """

    stability = Stability.EXPERIMENTAL
    consumes = (PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS)
    consumes_optional = (WAITING_QUEUE_SIZE,)
    produces = (BEST_MATCH,)

    @classmethod
    def subscriptions(cls, parameters: P2PSourceParameters) -> Subscriptions:
        producer = parameters.prefix_match_info_producer_name
        matches = (PREFIX_MATCH_BLOCKS.from_producer(producer), PREFIX_BLOCKS.from_producer(producer))
        return Subscriptions(matches, cls.consumes_optional, cls.produces)

    def __init__(self, name: str, parameters: P2PSourceParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._matches = PREFIX_MATCH_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._blocks = PREFIX_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        cached = state.column(self._matches, endpoints)
        if not np.fmax.reduce(cached, initial=0.0) > 0:
            return
        order = np.array(sorted(range(len(endpoints)), key=[endpoint.name for endpoint in endpoints].__getitem__), dtype=np.intp)
        position = drawn_source(cached[order], endpoints[WAITING_QUEUE_SIZE][order], fnv32a(request.id) / 2**32)
        if position is not None:
            source = int(order[position])
            state.put(BEST_MATCH, endpoints.members[source])
            state.private["cached"] = float(cached[source])

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        source = self._worthwhile(result, state)
        if source is not None:
            headers.set(SOURCE_HEADER, source.address)
        elif SOURCE_HEADER in request.headers:
            headers.set(SOURCE_HEADER, "")

    def _worthwhile(self, result: SchedulingResult, state: CycleState) -> Endpoint | None:
        source, cached, blocks = state.get(BEST_MATCH), state.private.get("cached"), state.get(self._blocks)
        run = result.runs.get(self.parameters.prefill_profile_name)
        if run is None or run.picked is None:
            run = result.runs[result.primary]
        if source is None or not isinstance(cached, float) or blocks is None or run.picked is None:
            return None
        here = max(float(np.nan_to_num(state.column(self._matches, run.picked.take([0]))[0])), 0.0)
        more = (cached - here) * blocks.block_size_tokens
        return source if more >= self.parameters.min_cached_token_delta else None


DEFAULT_CACHE_MB = 4096
ITEM_MB = 2


class MediaCacheParameters(CamelParameters):
    """Sets the assumed size of an endpoint's encoder cache."""

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
    """Return the modality of each distinct media item, by its identifier."""
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
