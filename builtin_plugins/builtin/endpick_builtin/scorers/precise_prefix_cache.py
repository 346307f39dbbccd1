"""`precise-prefix-cache-scorer`: the precise prefix cache and its scorer in one, as configurations had it before they were two."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from endpick.api import (
    PREFIX_MATCH_SHARE,
    Category,
    CycleState,
    Endpoints,
    FloatArray,
    InferenceRequest,
    PluginContext,
    Scorer,
    ScoringState,
    Subscriptions,
)
from endpick.api.data import AnyKey
from endpick_builtin.producers.precise.parameters import PrecisePrefixCacheParameters
from endpick_builtin.producers.precise_prefix_cache import PrecisePrefixCacheProducer


class PrecisePrefixCacheScorer(Scorer[PrecisePrefixCacheParameters], PrecisePrefixCacheProducer):
    """Prefer endpoints whose engine holds a long beginning of the prompt.

    score = match / full blocks of the prompt, from 0 to 1, with the match of `precise-prefix-cache-producer`. Without parameters it reads
    the match of the configuration's `precise-prefix-cache-producer`, which the host adds where there is none; with any of them it is a
    producer of its own, with those parameters. Without a prompt, without tokens, or for an endpoint that nothing is known of, the score
    is 0.
    """

    category = Category.AFFINITY
    consumes: ClassVar[tuple[AnyKey, ...]] = (PREFIX_MATCH_SHARE,)

    @classmethod
    def subscriptions(cls, parameters: PrecisePrefixCacheParameters) -> Subscriptions:
        if not _hosts(parameters):
            return Subscriptions(cls.consumes)
        return Subscriptions(PrecisePrefixCacheProducer.consumes, (), PrecisePrefixCacheProducer.produces)

    def __init__(self, name: str, parameters: PrecisePrefixCacheParameters, context: PluginContext) -> None:
        self._hosts = _hosts(parameters)
        super().__init__(name, parameters, context)

    async def start(self) -> None:
        if self._hosts:
            await super().start()

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        """Look the prompt up, if no other instance does."""
        if self._hosts:
            super().produce(request, endpoints, state)

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        return np.fmax(state.column(PREFIX_MATCH_SHARE, endpoints), 0.0)


def _hosts(parameters: PrecisePrefixCacheParameters) -> bool:
    """Whether an instance with these parameters is a producer of its own."""
    return bool(parameters.model_fields_set)
