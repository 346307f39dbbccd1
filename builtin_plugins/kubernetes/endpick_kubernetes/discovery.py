"""`kubernetes-discovery`: the endpoints of an InferencePool or a label selector, followed as they change."""

from __future__ import annotations

import asyncio
import os

from prometheus_client.metrics import Counter, Gauge

from endpick.api import ConfigurationError, PluginContext
from endpick.api.discovery import EndpointDiscovery, EndpointRegistry
from endpick_kubernetes.connection import connect
from endpick_kubernetes.follower import Connection
from endpick_kubernetes.parameters import KubernetesDiscoveryParameters
from endpick_kubernetes.pool import PoolFollower
from endpick_kubernetes.replica import Replica


class KubernetesDiscovery(EndpointDiscovery[KubernetesDiscoveryParameters]):
    """Follows an InferencePool and the Pods it selects, or Pods that match a label selector.

    A Pod is in the pool while its condition `Ready` is true, it has an address and it is not being deleted. Each port of the pool is an
    endpoint `namespace/pod-rank-N`, with N counting ports from 0. The annotation `llm-d.ai/active-ports` (or its predecessor in
    `inference.networking.k8s.io`) restricts the ports. Labels are those of the Pod. For a pool, InferenceObjectives set priorities and
    InferenceModelRewrites rewrite models; both come from the group `llm-d.ai` or, if that is not installed, from
    `inference.networking.x-k8s.io`.

    The discovery lists once and then watches. It lists again if the version has expired (410) or after six watches without an event.
    While the API server is away the pool stays as it is; `silent-endpoint-screener` leaves out servers that die in the meantime. A deleted
    pool has no endpoints until it is created again. The discovery is ready once Pods, objectives and rewrites have been listed; objectives
    and rewrites that are not installed or not allowed are skipped.

    With `leaderElection`, replicas elect a leader by the Lease `epp-<namespace>-<pool>.llm-d.ai`. The others stand by: health reports
    NOT_SERVING, and requests that arrive anyway are routed, or refused without `populateFollowers`. A leader that shuts down releases the
    lease, one that cannot renew it for `renewDeadline` stands by, and one that dies is replaced after `leaseDuration`, measured by the
    clock of each replica.
    """

    publishes_objectives = True

    def __init__(self, name: str, parameters: KubernetesDiscoveryParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        registry = context.registry
        self._steps = Counter(
            "endpick_kubernetes_watches", "Lists and watches that ended, by outcome.", ("collection", "outcome"), registry=registry
        )
        self._synced = Gauge("endpick_kubernetes_synced", "1 once the collection has been listed.", ("collection",), registry=registry)
        self._leads = Gauge("endpick_leads", "1 while this replica holds the lease; 0 without leader election.", registry=registry)
        self._attempts = Counter(
            "endpick_lease_attempts", "Attempts to take, renew or release the lease, by outcome.", ("outcome",), registry=registry
        )

    async def start(self) -> None:
        """Check the parameters.

        Raises:
            ConfigurationError: The parameters contradict each other.
        """
        mistake = self.parameters.mistake()
        if mistake:
            raise ConfigurationError(mistake)

    async def run(self, registry: EndpointRegistry) -> None:
        """Follow the pool until cancelled.

        Raises:
            ConfigurationError: No API server is configured, or it rejects a request as invalid.
        """
        parameters, context = self.parameters, self.context
        client, server = await asyncio.to_thread(connect, parameters.kubeconfig)
        namespace = parameters.pool_namespace or os.environ.get("NAMESPACE") or client.namespace
        context.logger.info("connecting to the API server", extra={"server": server, "namespace": namespace})
        connection = Connection(
            client,
            namespace,
            context.random,
            context.logger,
            self._steps,
            self._synced,
            parameters.watch_timeout,
            parameters.longest_pause,
        )
        try:
            if parameters.leader_election:
                await Replica(parameters, connection, registry, self._leads, self._attempts).run()
            else:
                await PoolFollower(parameters, connection, registry, registry.ready).run()
        finally:
            await client.close()
