"""`k8s-peer-discovery`: follows the Pods of this endpoint picker."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable, Iterator
from typing import Annotated

from prometheus_client.metrics import Counter, Gauge
from pydantic import Field, WithJsonSchema

from endpick.api import ConfigurationError, PluginContext, Stability
from endpick.api.discovery import Peer, PeerDiscovery
from endpick_builtin.camel_parameters import CamelParameters
from endpick_kubernetes.follower import POD, Collection, Connection, Follower, connect
from endpick_kubernetes.parameters import Pod, read_pod

_WATCH_SECONDS = 20.0
_LONGEST_PAUSE_SECONDS = 5.0


class PeerParameters(CamelParameters):
    """Selects the Pods of this deployment."""

    selector: Annotated[
        str, Field(min_length=1, description="Label selector of this deployment's Pods, in kubectl syntax.", examples=["app=my-epp"])
    ]
    port: Annotated[
        int,
        Field(ge=1, le=65535, description="Port on which replicas exchange state, as number or text.", examples=["9002"]),
        WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 65535}, {"type": "string", "pattern": "^[0-9]{1,5}$"}]}),
    ]
    namespace: Annotated[
        str, Field(description="Namespace of the Pods. Must be $NAMESPACE, if set. Default: that, then as `kubernetes-discovery`.")
    ] = ""
    kubeconfig: Annotated[
        str, Field(description="Path of a kubeconfig file. Default: $KUBECONFIG, then the Pod's service account, then ~/.kube/config.")
    ] = ""


class KubernetesPeerDiscovery(PeerDiscovery[PeerParameters]):
    """Follows the ready Pods of this endpoint picker, except its own: that with the address $POD_IP, else with the host's name.

    Nothing uses the peers yet.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: PeerParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        registry = context.registry
        self._steps = Counter(
            "endpick_kubernetes_watches", "Lists and watches that ended, by outcome.", ("collection", "outcome"), registry=registry
        )
        self._synced = Gauge("endpick_kubernetes_synced", "1 once the collection has been listed.", ("collection",), registry=registry)
        count = Gauge("endpick_peers", "Other ready replicas of this endpoint picker.", registry=registry)
        count.set_function(lambda: len(self.peers))
        self._own_ip, self._own_name = os.environ.get("POD_IP", ""), socket.gethostname()
        self._connection: Connection | None = None
        self._pods: Follower[Pod] | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def peers(self) -> tuple[Peer, ...]:
        if self._pods is None or self._connection is None:
            return ()
        others = others_than(self._own_ip, self._own_name, self._pods.objects.values())
        return tuple(sorted(Peer(f"{self._connection.namespace}/{pod.name}", pod.ip, self.parameters.port) for pod in others))

    async def start(self) -> None:
        parameters, context = self.parameters, self.context
        own = os.environ.get("NAMESPACE", "")
        if own and parameters.namespace and own != parameters.namespace:
            raise ConfigurationError(f"`namespace` is '{parameters.namespace}', but this Pod runs in '{own}' ($NAMESPACE): peers are there")
        client, server = await asyncio.to_thread(connect, parameters.kubeconfig)
        namespace = parameters.namespace or own or client.namespace
        context.logger.info("following peers", extra={"server": server, "namespace": namespace})
        self._connection = Connection(
            client, namespace, context.random, context.logger, self._steps, self._synced, _WATCH_SECONDS, _LONGEST_PAUSE_SECONDS
        )
        pods = Collection("peers", POD, read_pod, labels=parameters.selector)
        self._pods = Follower(pods, self._connection, self._changed)
        self._following = asyncio.create_task(self._follow(self._pods))

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._connection is not None:
            await self._connection.client.close()

    async def _follow(self, pods: Follower[Pod]) -> None:
        try:
            await pods.run()
        except ConfigurationError as refused:
            self.context.logger.error("peers are not followed: %s", refused)  # noqa: TRY400 - the message says it all

    def _changed(self) -> None:
        self.context.logger.debug("peers: %s", self.peers)


def others_than(own_ip: str, own_name: str, pods: Iterable[Pod]) -> Iterator[Pod]:
    """Return the Pods with another address or, if the own one is unknown, another name."""
    return (pod for pod in pods if (pod.ip != own_ip if own_ip else pod.name != own_name))
