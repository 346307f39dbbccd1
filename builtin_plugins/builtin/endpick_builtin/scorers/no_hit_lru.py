"""`no-hit-lru-scorer`: spreads requests with uncached prompts so that all caches grow."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    Category,
    CycleState,
    Endpoint,
    Endpoints,
    FloatArray,
    InferenceRequest,
    Parameters,
    PluginContext,
    PreRequest,
    SchedulingResult,
    Scorer,
    ScoringState,
    Subscriptions,
    UpstreamHeaders,
)
from endpick.api.keys import PREFIX_MATCH_BLOCKS
from endpick.api.plugin import ignored
from endpick_builtin.filters.labels import PerPool
from endpick_builtin.recency import Recency

DEFAULT_LRU_SIZE = 1024
WARM = 0.5


class ColdPicks:
    """Order of the endpoints' last uncached prompts."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._counts: Recency[str, int] = Recency()
        self._by_endpoint = PerPool(self._of)

    def last(self, endpoints: Endpoints) -> FloatArray:
        """Sequence numbers; 0 without a cold request."""
        return endpoints.gather(self._by_endpoint.of(endpoints))

    def touch(self, picked: Endpoints) -> None:
        name = picked.take([0]).members[0].name
        self._count += 1
        self._counts.use(name, self._count)
        self._set(picked, name, self._count)
        for oldest, _ in self._counts.beyond(self._most):
            self._set(picked, oldest, 0)

    def forget(self, name: str) -> None:
        self._counts.pop(name, None)

    def _of(self, pool: tuple[Endpoint, ...]) -> FloatArray:
        return np.array([self._counts.get(endpoint.name, 0) for endpoint in pool], dtype=np.float64)

    def _set(self, endpoints: Endpoints, name: str, count: int) -> None:
        position = endpoints.pool_position(name)
        if position is not None:
            self._by_endpoint.of(endpoints)[position] = count


class NoHitLRUParameters(Parameters):
    """Capacity of the memory, and the producer of matches."""

    lru_size: Annotated[
        int, Field(alias="lruSize", description=f"Endpoints to remember; 0 and less mean {DEFAULT_LRU_SIZE}, as in llm-d.")
    ] = DEFAULT_LRU_SIZE
    prefix_match_info_producer_name: Annotated[
        str, Field(alias="prefixMatchInfoProducerName", description="Instance that provides prefix matches; empty for the only one.")
    ] = ""
    prefix_plugin_type: Annotated[
        str | None,
        ignored("prefixPluginType", "name the producer with prefixMatchInfoProducerName"),
    ] = None
    prefix_plugin_name: Annotated[
        str | None,
        ignored("prefixPluginName", "name the producer with prefixMatchInfoProducerName"),
    ] = None


class NoHitLRUScorer(Scorer[NoHitLRUParameters], PreRequest[NoHitLRUParameters]):
    """For a prompt that no candidate has cached, prefers the endpoint that got such a prompt least recently.

    A request is cold if no candidate is known to have a block of its prompt; others score 0.5. Candidates that never got one rank first, in
    pool order, then the least recent: score = 1 - rank / (candidates - 1), 1 for a single one. A request that was cold in every profile
    counts for each profile's first pick.
    """

    consumes = (PREFIX_MATCH_BLOCKS,)
    category = Category.DISTRIBUTION

    @classmethod
    def subscriptions(cls, parameters: NoHitLRUParameters) -> Subscriptions:
        return Subscriptions((PREFIX_MATCH_BLOCKS.from_producer(parameters.prefix_match_info_producer_name),))

    def __init__(self, name: str, parameters: NoHitLRUParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._matches = PREFIX_MATCH_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._picks = ColdPicks(parameters.lru_size if parameters.lru_size > 0 else DEFAULT_LRU_SIZE)

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        cold = not np.count_nonzero(state.column(self._matches, endpoints) > 0.0)
        state.private["cold"] = cold and state.private.get("cold", True)
        count = len(endpoints)
        if not cold:
            return np.full(count, WARM)
        scores = np.empty(count)
        scores[self._picks.last(endpoints).argsort(kind="stable")] = np.linspace(1.0, 0.0, count)
        return scores

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        if state.private.get("cold"):
            for run in result.runs.values():
                if run.picked is not None:
                    self._picks.touch(run.picked)

    def endpoint_removed(self, name: str) -> None:
        self._picks.forget(name)
