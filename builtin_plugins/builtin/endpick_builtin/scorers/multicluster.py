"""Scorers for endpoints that each represent a cluster: the same formulas on metrics of the clusters' pickers."""

from __future__ import annotations

from dataclasses import replace

from endpick.api import Category, Endpoints, FloatArray, InferenceRequest, PluginContext, Scorer, ScoringState, Stability, Subscriptions
from endpick.api.keys import MULTICLUSTER_KV_CACHE_USAGE, MULTICLUSTER_QUEUE_SIZE
from endpick_builtin.scorers.affinity import PrefixCacheParameters, PrefixCacheScorer
from endpick_builtin.scorers.load import share_left, smaller_is_better

PREFIX_PRODUCER = "multicluster-approx-prefix-cache-producer"


class MultiClusterQueueScorer(Scorer):
    """Prefers clusters with short queues.

    score = (longest - queue) / (longest - shortest) among the candidates; 1 for all if all are equal. A cluster that has not reported its
    mean queue scores 0. A metric keeps its last value.
    """

    consumes_optional = (MULTICLUSTER_QUEUE_SIZE,)
    category = Category.DISTRIBUTION
    stability = Stability.EXPERIMENTAL

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        return endpoints.derived(MULTICLUSTER_QUEUE_SIZE, smaller_is_better)


class MultiClusterKVCacheUtilizationScorer(Scorer):
    """Prefers clusters with free KV caches: score = 1 - mean usage, at least 0.

    A cluster that has not reported scores 0. A metric keeps its last value.
    """

    consumes_optional = (MULTICLUSTER_KV_CACHE_USAGE,)
    category = Category.DISTRIBUTION
    stability = Stability.EXPERIMENTAL

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        return endpoints.derived(MULTICLUSTER_KV_CACHE_USAGE, share_left)


class MultiClusterPrefixCacheScorer(PrefixCacheScorer):
    """Prefers clusters that were sent a long prefix of the prompt before.

    Like `prefix-cache-scorer`, with matches from `multicluster-approx-prefix-cache-producer` unless `prefixMatchInfoProducerName` names
    another instance.
    """

    stability = Stability.EXPERIMENTAL

    @classmethod
    def subscriptions(cls, parameters: PrefixCacheParameters) -> Subscriptions:
        own = super().subscriptions(_with_producer(parameters))
        if parameters.prefix_match_info_producer_name:
            return own
        return Subscriptions(tuple(replace(key, default_producer=PREFIX_PRODUCER) for key in own.consumes))  # type: ignore[type-var]

    def __init__(self, name: str, parameters: PrefixCacheParameters, context: PluginContext) -> None:
        super().__init__(name, _with_producer(parameters), context)


def _with_producer(parameters: PrefixCacheParameters) -> PrefixCacheParameters:
    named = parameters.prefix_match_info_producer_name or PREFIX_PRODUCER
    return parameters.model_copy(update={"prefix_match_info_producer_name": named})
