"""`kubernetes-discovery`: the endpoints of an InferencePool, or of a label selector, followed as they change."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from prometheus_client.metrics import Counter, Gauge

from endpick.api import ConfigurationError, EndpointDiscovery, EndpointRegistry, Limits, PluginContext
from endpick_builtin.kubernetes.access import find_access
from endpick_builtin.kubernetes.client import CLIENT_LIMITS, ApiClient
from endpick_builtin.kubernetes.comeback import Comeback
from endpick_builtin.kubernetes.following import FOLLOWING_LIMITS, Following
from endpick_builtin.kubernetes.parameters import KubernetesDiscoveryParameters
from endpick_builtin.kubernetes.patience import Patience
from endpick_builtin.kubernetes.picture import PoolPicture
from endpick_builtin.kubernetes.replica import Replica


class KubernetesDiscovery(EndpointDiscovery[KubernetesDiscoveryParameters]):
    """Takes the pool from the Kubernetes API: an InferencePool and the Pods that it selects, or Pods by a label selector.

    A Pod is in the pool while its condition `Ready` is true, it has an address and it is not being deleted (`deletionTimestamp`). Each port
    of the pool is an endpoint `namespace/pod-rank-N`, N counting the ports from 0; the annotation `llm-d.ai/active-ports` (or its older
    name in `inference.networking.k8s.io`) names those that are in use. Labels are the Pod's. With a pool, InferenceObjectives give
    requests a priority and InferenceModelRewrites other models, from the group `llm-d.ai` or, where that is not installed,
    `inference.networking.x-k8s.io`.

    Lists once, then watches, over HTTP/2 where the server speaks it: there one that is about to end says so, and one that no longer answers
    is noticed within two `pingInterval`s. A version that the server has forgotten (410), a watch that was silent for `watchTimeout`, or
    what is no event makes it list again, everything else makes it watch on from where it was. While the API server is away the pool stays
    as it is: a model server that dies then is left out by `silent-endpoint-screener`, `tolerance` after its last metrics. A pool that is
    deleted has no endpoints until it is made again. It is ready once Pods have been listed, and objectives and rewrites, as far as they are
    installed and allowed.

    With `leaderElection` replicas agree by a Lease, `epp-<namespace>-<pool>.llm-d.ai`, that one of them leads. The others stand by: health
    says NOT_SERVING, and requests that come all the same are routed, or refused without `populateFollowers`. A leader that ends gives the
    lease back at once, one that cannot renew it for `renewDeadline` stands by, and one that is gone is followed after `leaseDuration`, by
    each replica's own clock.
    """

    publishes_objectives = True

    def __init__(
        self, name: str, parameters: KubernetesDiscoveryParameters, context: PluginContext, patience: Patience | None = None
    ) -> None:
        """`patience`: the times that no parameter gives; the host leaves them as they are."""
        super().__init__(name, parameters, context)
        self._patience = patience or Patience()
        registry = context.registry
        self._steps = Counter(
            "endpick_kubernetes_watches", "Lists and watches that ended, by what ended them.", ("collection", "outcome"), registry=registry
        )
        self._limits = Limits(context, (*CLIENT_LIMITS, *FOLLOWING_LIMITS))
        self._synced = Gauge("endpick_kubernetes_synced", "1 once the collection has been listed.", ("collection",), registry=registry)
        self._leads = Gauge("endpick_leads", "1 while this replica holds the lease; 0 without leader election, too.", registry=registry)
        self._attempts = Counter(
            "endpick_lease_attempts", "Attempts to take, renew or give back the lease.", ("outcome",), registry=registry
        )

    async def start(self) -> None:
        """See whether the parameters go together.

        Raises:
            ConfigurationError: they do not.
        """
        mistake = self.parameters.mistake()
        if mistake:
            raise ConfigurationError(mistake)

    async def run(self, registry: EndpointRegistry) -> None:
        """Follow the pool until cancelled.

        Raises:
            ConfigurationError: there is no API server to ask, or it says that the question is wrong.
        """
        parameters, context = self.parameters, self.context
        access = await asyncio.to_thread(find_access, parameters.kubeconfig, os.environ)
        namespace = parameters.pool_namespace or os.environ.get("NAMESPACE") or access.namespace or "default"
        context.logger.info("asking the API server", extra={"server": access.server, "found_in": access.found_in, "namespace": namespace})
        most = parameters.max_list_bytes, parameters.max_object_bytes
        client = ApiClient(access, self._patience, parameters.ping_interval, self._limits, *most)
        client.open()
        try:
            comeback = Comeback(access.server, context.random)
            seconds = parameters.watch_timeout, parameters.longest_pause
            most = parameters.max_objects, parameters.max_rule_parts
            shared = Following(client, comeback, context.random, context.logger, self._limits, self._steps, *seconds, self._patience, *most)

            def picture(complete: Callable[[], None]) -> PoolPicture:
                return PoolPicture(parameters, namespace, shared, registry, self._synced, complete)

            if parameters.leader_election:
                await Replica(parameters, namespace, shared, registry, picture, self._leads, self._attempts).run()
            else:
                await picture(registry.ready).follow()
        finally:
            await client.close()
