"""`mm-embeddings-cache-producer`: estimates each encoder cache from the images, videos and sounds that were sent there."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
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
from endpick_builtin.producers.endpoint_slots import EndpointSlots, chosen
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
        """Items per endpoint."""
        given = self.cache_size_in_mb_per_server
        misspelt: int | None = self.__dict__["cache_size_in_mb"]
        if misspelt is not None and "cache_size_in_mb_per_server" not in self.model_fields_set:
            given = misspelt
        return max(1, (given if given > 0 else DEFAULT_CACHE_MB) // ITEM_MB)


class ItemIndex:
    """Items by endpoint, each bounded by the capacity of its cache."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        """Endpoints that hold an item, as bits of their slots."""
        self._slots = EndpointSlots()
        self._recent: dict[int, OrderedDict[int, None]] = {}

    def slots(self, names: Iterable[str]) -> RowArray:
        """The slots of these endpoints; an endpoint keeps its slot until `remove`."""
        found = [self._slots.of(name) for name in names]
        for slot in found:
            self._recent.setdefault(slot, OrderedDict())
        return np.array(found, dtype=np.intp)

    def holders(self, item: int) -> int:
        """The endpoints that hold the item, as bits of their slots."""
        return self._holders.get(item, 0)

    def bit_of(self, name: str) -> int:
        """The bit of an endpoint's slot; 0 for an unknown one."""
        slot = self._slots.slot_of.get(name)
        return 0 if slot is None else 1 << slot

    def count(self, holders: Iterable[int]) -> FloatArray:
        """How many of the items with these holders each slot holds; shape `(slots,)`."""
        found = np.zeros(self._slots.count)
        for slots in holders:
            found[chosen(slots, len(found))] += 1.0
        return found

    def insert(self, name: str, items: Sequence[int], capacity: int) -> None:
        """Record that the endpoint holds these items, the first as the most recent, and drop the oldest beyond `capacity`.

        Does nothing for an endpoint without a slot, which has left the pool.
        """
        slot = self._slots.slot_of.get(name)
        if slot is None:
            return
        recent, bit = self._recent[slot], 1 << slot
        for item in reversed(items):
            self._holders[item] = self._holders.get(item, 0) | bit
            recent[item] = None
            recent.move_to_end(item)
        while len(recent) > capacity:
            self._drop(recent.popitem(last=False)[0], bit)

    def remove(self, name: str) -> None:
        """Forget an endpoint."""
        slot = self._slots.release(name)
        if slot is not None:
            for item in self._recent.pop(slot):
                self._drop(item, 1 << slot)

    def _drop(self, item: int, bit: int) -> None:
        rest = self._holders[item] ^ bit
        if rest:
            self._holders[item] = rest
        else:
            del self._holders[item]


def media_of(request: InferenceRequest, tokenized: tuple[PromptTokens, ...] | None) -> Mapping[str, Modality]:
    """The distinct media of a request, identified by its tokenizer or else by content."""
    if tokenized is not None and any(prompt.media for prompt in tokenized):
        return {place.identifier: place.modality for prompt in tokenized for place in prompt.media}
    return {identifier_of(media): media.modality for media in request.prompt.media}


class EncoderCacheMetrics:
    """Hits of the estimated encoder caches."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        prefix = "llm_d_epp_encoder_cache_"
        self._queries = Counts(f"{prefix}queries_total", "Media of requests.", ("modality",), registry)
        self._hits = Counts(f"{prefix}hits_total", "Media sent to an endpoint that holds them.", ("modality", "pod"), registry)
        self._pod = LabelLimit()
        ratio = "Share of a request's media held by the picked endpoint."
        self._ratio = Distributions(f"{prefix}hit_ratio", ratio, (), RATIO_BUCKETS, registry).labels()

    def sent(self, media: Mapping[int, Modality], found: Sequence[int], endpoint: str) -> None:
        """Count a request whose picked endpoint holds the `found` of its media."""
        for modality, count in Counter(media.values()).items():
            self._queries.labels(modality).value += count
        for modality, count in Counter(media[item] for item in found).items():
            self._hits.labels(modality, self._pod(endpoint)).value += count
        self._ratio.observe(len(found) / len(media))


@dataclass(frozen=True, slots=True)
class _Lookup:
    items: Mapping[int, Modality]
    holders: Mapping[int, int]


class MediaCacheProducer(DataProducer[MediaCacheParameters], PreRequest[MediaCacheParameters]):
    """Counts the distinct media of the request that were sent to each candidate before and should still be cached there.

    When a request leaves, its media count as held by the picked endpoint, which holds the last cacheSizeInMBPerServer / 2 (at least one).
    Media are identified by the token-producer's back end, or by xxh64 of link or content. Without media the count is 0.
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
        """Look the media up."""
        media = media_of(request, state.get(TOKENIZED_PROMPT))
        items = {xxh64_intdigest(identifier.encode("utf-8", "surrogatepass")): modality for identifier, modality in media.items()}
        matched: FloatArray = np.zeros(len(endpoints))
        if items:
            if endpoints.pool_members is not self._pool:
                self._slot_of_member = self._held.slots(endpoint.name for endpoint in endpoints.pool_members)
                self._pool = endpoints.pool_members
            holders = {item: slots for item in items if (slots := self._held.holders(item))}
            matched += endpoints.gather(self._held.count(holders.values())[self._slot_of_member])
            state.private["media"] = _Lookup(items, holders)
        state.put(MEDIA_ITEMS, len(items))
        state.put_column(MEDIA_MATCHED, endpoints, matched)

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        """Record the media at the picked endpoint."""
        lookup = state.private.pop("media", None)
        picked = result.runs[result.primary].picked
        if not isinstance(lookup, _Lookup) or picked is None:
            return
        name = picked.members[0].name
        bit = self._held.bit_of(name)
        found = [item for item, slots in lookup.holders.items() if slots & bit]
        self._metrics.sent(lookup.items, found, name.rpartition("/")[2])
        self._held.insert(name, tuple(lookup.items), self._capacity)

    def endpoint_removed(self, name: str) -> None:
        """Forget the endpoint; a successor of the same name starts with an empty cache."""
        self._held.remove(name)
        self._pool = None
