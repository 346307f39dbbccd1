"""Scorers of endpoints that each stand for a whole cluster: the same arithmetic, on what the clusters' own pickers report."""

from __future__ import annotations

from dataclasses import replace

from endpick.api import (
    MULTICLUSTER_KV_CACHE_USAGE,
    MULTICLUSTER_QUEUE_SIZE,
    Category,
    Endpoints,
    FloatArray,
    InferenceRequest,
    PluginContext,
    Scorer,
    ScoringState,
    Stability,
    Subscriptions,
)
from endpick_builtin.scorers.affinity import PrefixCacheParameters, PrefixCacheScorer
from endpick_builtin.scorers.load import share_left, smaller_is_better

PREFIX_PRODUCER = "multicluster-approx-prefix-cache-producer"


class MultiClusterQueueScorer(Scorer):
    """Prefer clusters whose model servers have short queues.

    score = (longest - queue) / (longest - shortest) among the candidates; 1 for all when all are equally long. A cluster that has not
    reported its mean queue scores 0; a value stays in force until it is reported anew.
    """

    consumes_optional = (MULTICLUSTER_QUEUE_SIZE,)
    category = Category.DISTRIBUTION
    stability = Stability.EXPERIMENTAL

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        return endpoints.derived(MULTICLUSTER_QUEUE_SIZE, smaller_is_better)


class MultiClusterKVCacheUtilizationScorer(Scorer):
    """Prefer clusters whose model servers have free KV caches.

    score = 1 - usage, at least 0. A cluster that has not reported its mean usage scores 0; a value stays in force until it is reported
    anew.
    """

    consumes_optional = (MULTICLUSTER_KV_CACHE_USAGE,)
    category = Category.DISTRIBUTION
    stability = Stability.EXPERIMENTAL

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        return endpoints.derived(MULTICLUSTER_KV_CACHE_USAGE, share_left)


class MultiClusterPrefixCacheScorer(PrefixCacheScorer):
    """Prefer clusters that were sent a long beginning of the prompt before.

    As `prefix-cache-scorer`, on what `multicluster-approx-prefix-cache-producer` found out unless `prefixMatchInfoProducerName` names
    another instance.
    """

    stability = Stability.EXPERIMENTAL

    @classmethod
    def subscriptions(cls, parameters: PrefixCacheParameters) -> Subscriptions:
        """The matches, as the named producer finds them, or the one for clusters."""
        own = super().subscriptions(_with_producer(parameters))
        if parameters.prefix_match_info_producer_name:
            return own
        return Subscriptions(tuple(replace(key, default_producer=PREFIX_PRODUCER) for key in own.consumes))  # type: ignore[type-var]

    def __init__(self, name: str, parameters: PrefixCacheParameters, context: PluginContext) -> None:
        super().__init__(name, _with_producer(parameters), context)


def _with_producer(parameters: PrefixCacheParameters) -> PrefixCacheParameters:
    named = parameters.prefix_match_info_producer_name or PREFIX_PRODUCER
    return parameters.model_copy(update={"prefix_match_info_producer_name": named})
