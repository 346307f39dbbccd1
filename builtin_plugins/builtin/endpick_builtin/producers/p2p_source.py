"""`p2p-source-producer`: names the endpoint from which the one that computes a prompt can pull what is cached already."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    PREFIX_BLOCKS,
    PREFIX_MATCH_BLOCKS,
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

BEST_MATCH = DataKey(
    "endpick/best-match",
    Endpoint,
    Scope.REQUEST,
    doc="The endpoint from which cached blocks of the prompt can be pulled, before it is known who computes the prompt.",
    default_producer="p2p-source-producer",
)
SOURCE_HEADER = "x-kv-cache-source-host-port"
_FNV_OFFSET, _FNV_PRIME, _LOW_32_BITS = 0x811C9DC5, 0x01000193, 0xFFFFFFFF


def fnv32a(text: str) -> int:
    """FNV-1a of 32 bits over the UTF-8 bytes."""
    value = _FNV_OFFSET
    for byte in text.encode("utf-8", "surrogatepass"):
        value = ((value ^ byte) * _FNV_PRIME) & _LOW_32_BITS
    return value


def drawn_source(cached: FloatArray, waiting: FloatArray, draw: float) -> int | None:
    """The position of the source; None where nothing is cached anywhere.

    Of those that hold no more than one block less than the most, each is as likely as 1 / (1 + waiting) says.

    Args:
        cached: Blocks of the prompt that each endpoint holds, shape `(endpoints,)`; NaN is 0.
        waiting: Requests in its queue; NaN and negative are 0.
        draw: From 0 to 1, 1 excluded.
    """
    held = np.fmax(cached, 0.0)
    most = held.max(initial=0.0)
    if not most > 0:
        return None
    eligible = np.flatnonzero((held > 0) & (held >= most - 1.0))
    ends = np.cumsum(1.0 / (1.0 + np.fmax(waiting[eligible], 0.0)))
    return int(eligible[min(int(np.searchsorted(ends, draw * ends[-1], side="right")), len(eligible) - 1)])


class P2PSourceParameters(Parameters):
    """When pulling pays."""

    prefix_match_info_producer_name: Annotated[
        str, Field(alias="prefixMatchInfoProducerName", description="Instance that knows what is cached; empty for the only one.")
    ] = ""
    min_cached_token_delta: Annotated[
        int,
        Field(alias="minCachedTokenDelta", ge=1, description="Tokens that the source must hold beyond the endpoint that computes."),
    ] = 1
    prefill_profile_name: Annotated[
        str, Field(alias="prefillProfileName", description="Profile whose pick computes the prompt, where there is one; else the primary.")
    ] = "prefill"


class P2PSourceProducer(DataProducer[P2PSourceParameters], PreRequest[P2PSourceParameters]):
    """Set the header `x-kv-cache-source-host-port` to an endpoint from which the prompt's cached beginning can be pulled.

    The source is drawn among the candidates whose cached beginning is at most one block shorter than the longest, in proportion to
    1 / (1 + waiting requests); the draw is FNV-1a-32(request id) / 2**32, over the candidates in order of their names. The header is
    set where the source holds at least `minCachedTokenDelta` tokens more than the endpoint that computes the prompt. Without matches,
    or with an empty cache everywhere, there is none; an endpoint that has not reported its queue counts as idle. The value that a
    client sends itself is emptied: it would have model servers pull from wherever the client says.
    """

    stability = Stability.EXPERIMENTAL
    consumes = (PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS)
    consumes_optional = (WAITING_QUEUE_SIZE,)
    produces = (BEST_MATCH,)

    @classmethod
    def subscriptions(cls, parameters: P2PSourceParameters) -> Subscriptions:
        """The matches, as the named producer finds them."""
        producer = parameters.prefix_match_info_producer_name
        matches = (PREFIX_MATCH_BLOCKS.from_producer(producer), PREFIX_BLOCKS.from_producer(producer))
        return Subscriptions(matches, cls.consumes_optional, cls.produces)

    def __init__(self, name: str, parameters: P2PSourceParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._matches = PREFIX_MATCH_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._blocks = PREFIX_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        """Draw the source."""
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
        """Compare the source with the endpoint that computes the prompt."""
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
