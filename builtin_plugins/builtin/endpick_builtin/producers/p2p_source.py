"""`p2p-source-producer`: names an endpoint to pull cached blocks from."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    WAITING_QUEUE_SIZE,
    CycleState,
    DataKey,
    DataProducer,
    Endpoint,
    Endpoints,
    FloatArray,
    InferenceRequest,
    Parameters,
    PluginContext,
    PreRequest,
    SchedulingResult,
    Scope,
    Stability,
    Subscriptions,
    UpstreamHeaders,
)
from endpick.api.keys import PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS

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
    """32-bit FNV-1a of the UTF-8 bytes."""
    value = _FNV_OFFSET
    for byte in text.encode("utf-8", "surrogatepass"):
        value = ((value ^ byte) * _FNV_PRIME) & _LOW_32_BITS
    return value


def drawn_source(cached: FloatArray, waiting: FloatArray, draw: float) -> int | None:
    """Position of a random source within one block of the longest match; None if nothing is cached.

    Weighted by 1 / (1 + waiting); NaN is 0. `draw` is in [0, 1).
    """
    held = np.fmax(cached, 0.0)
    most = held.max(initial=0.0)
    if not most > 0:
        return None
    eligible = np.flatnonzero((held > 0) & (held >= most - 1.0))
    ends = np.cumsum(1.0 / (1.0 + np.fmax(waiting[eligible], 0.0)))
    return int(eligible[min(int(np.searchsorted(ends, draw * ends[-1], side="right")), len(eligible) - 1)])


class P2PSourceParameters(Parameters):
    """When to pull."""

    prefix_match_info_producer_name: Annotated[
        str, Field(alias="prefixMatchInfoProducerName", description="Producer of prefix matches; empty if there is only one.")
    ] = ""
    min_cached_token_delta: Annotated[
        int,
        Field(alias="minCachedTokenDelta", ge=1, description="Tokens that the source must hold beyond the computing endpoint."),
    ] = 1
    prefill_profile_name: Annotated[
        str, Field(alias="prefillProfileName", description="Profile whose pick computes the prompt; the primary if it has none.")
    ] = "prefill"


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
