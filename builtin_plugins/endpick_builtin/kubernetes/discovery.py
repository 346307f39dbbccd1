"""`kubernetes-discovery`: the endpoints of an InferencePool, or of a label selector, followed as they change."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Annotated, TypeVar

from prometheus_client import Counter, Gauge
from pydantic import Field

from endpick.api import (
    ConfigurationError,
    Duration,
    Endpoint,
    EndpointDiscovery,
    EndpointRegistry,
    Parameters,
    PluginContext,
)
from endpick_builtin.kubernetes.access import Access, find_access
from endpick_builtin.kubernetes.client import ApiClient
from endpick_builtin.kubernetes.comeback import Comeback
from endpick_builtin.kubernetes.following import Collection, Follower, Following
from endpick_builtin.kubernetes.objects import (
    OLD_POOL_GROUP,
    POOL_GROUP,
    Pod,
    Pool,
    PoolName,
    endpoints_of,
    read_objective,
    read_pod,
    read_pool,
    read_rewrites,
    rules_in_order,
)

T = TypeVar("T")

RULE_GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io")
"""Where objectives and rewrites are; the first group that is installed counts, as in llm-d."""
RULE_VERSION = "v1alpha2"
POOL_VERSIONS = MappingProxyType({POOL_GROUP: "v1", OLD_POOL_GROUP: "v1alpha2"})
MOST_NAMES = 10
"""Of endpoints in one log line."""

Port = Annotated[int, Field(ge=1, le=65535)]


class KubernetesDiscoveryParameters(Parameters):
    """Which pool, and how the API server is asked. Either `poolName` or `endpointSelector` is needed."""

    pool_name: Annotated[str, Field(alias="poolName", description="Name of the InferencePool.", examples=["vllm-pool"])] = ""
    pool_namespace: Annotated[
        str,
        Field(
            alias="poolNamespace",
            description="Namespace of the pool and its Pods; empty for $NAMESPACE, else that of the service account or the kubeconfig, "
            "else `default`.",
        ),
    ] = ""
    pool_group: Annotated[str, Field(alias="poolGroup", description="API group of the InferencePool.", examples=[POOL_GROUP])] = POOL_GROUP
    endpoint_selector: Annotated[
        str,
        Field(
            alias="endpointSelector",
            description="Label selector of the Pods, where there is no InferencePool; as kubectl takes it.",
            examples=["app=vllm,env in (a, b)"],
        ),
    ] = ""
    endpoint_target_ports: Annotated[
        tuple[Port, ...],
        Field(alias="endpointTargetPorts", max_length=8, description="Ports of each Pod; needed with `endpointSelector`."),
    ] = ()
    kubeconfig: Annotated[
        str, Field(description="File that says where the API server is; empty for $KUBECONFIG, else the service account of the Pod.")
    ] = ""
    watch_timeout: Annotated[
        Duration,
        Field(
            alias="watchTimeout",
            ge=1,
            le=600,
            description="After which a watch is begun anew: how long an API server that has fallen silent is believed.",
        ),
    ] = 20.0
    longest_pause: Annotated[
        Duration,
        Field(
            alias="longestPause",
            gt=0,
            le=60,
            description="Longest time between two attempts while the API server answers with errors; 0.5 s while it does not answer.",
        ),
    ] = 5.0


class KubernetesDiscovery(EndpointDiscovery[KubernetesDiscoveryParameters]):
    """Takes the pool from the Kubernetes API: an InferencePool and the Pods that it selects, or Pods by a label selector.

    A Pod is in the pool while its condition `Ready` is true, it has an address and it is not being deleted (`deletionTimestamp`). Each port
    of the pool is an endpoint `namespace/pod-rank-N`, N counting the ports from 0; the annotation `llm-d.ai/active-ports` (or its older
    name in `inference.networking.k8s.io`) names those that are in use. Labels are the Pod's. With a pool, InferenceObjectives give
    requests a priority and InferenceModelRewrites other models, from the group `llm-d.ai` or, where that is not installed,
    `inference.networking.x-k8s.io`.

    Lists once, then watches; a version that the server has forgotten (410), a watch that was silent for `watchTimeout`, or what is no event
    makes it list again, everything else makes it watch on from where it was. While the API server is away the pool stays as it is: a model
    server that dies then is left out by `silent-endpoint-screener`, `tolerance` after its last metrics. A pool that is deleted has no
    endpoints until it is made again. It is ready once Pods have been listed, and objectives and rewrites, as far as they are installed and
    allowed.
    """

    publishes_objectives = True

    def __init__(self, name: str, parameters: KubernetesDiscoveryParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._members: dict[str, Endpoint] = {}
        registry = context.registry
        self._changes = Counter("endpick_pool_changes", "Endpoints that joined, left or changed.", ("change",), registry=registry)
        self._steps = Counter(
            "endpick_kubernetes_watches", "Lists and watches that ended, by what ended them.", ("collection", "outcome"), registry=registry
        )
        self._synced = Gauge("endpick_kubernetes_synced", "1 once the collection has been listed.", ("collection",), registry=registry)

    async def start(self) -> None:
        """See whether the parameters go together.

        Raises:
            ConfigurationError: they do not.
        """
        parameters = self.parameters
        if bool(parameters.pool_name) == bool(parameters.endpoint_selector):
            raise ConfigurationError("give either `poolName` (--pool-name) or `endpointSelector` (--endpoint-selector)")
        if parameters.endpoint_selector and not parameters.endpoint_target_ports:
            raise ConfigurationError("`endpointSelector` needs `endpointTargetPorts` (--endpoint-target-ports): 1 to 8 ports")
        if parameters.pool_name and parameters.pool_group not in POOL_VERSIONS:
            raise ConfigurationError(f"`poolGroup` is {' or '.join(POOL_VERSIONS)}, not '{parameters.pool_group}'")

    async def run(self, registry: EndpointRegistry) -> None:
        """Follow the pool until cancelled.

        Raises:
            ConfigurationError: there is no API server to ask, or it says that the question is wrong.
        """
        access = await asyncio.to_thread(find_access, self.parameters.kubeconfig, os.environ)
        client = ApiClient(access)
        client.open()
        try:
            await _Run(self, access, client, registry).follow()
        finally:
            await client.close()

    def shared(self, access: Access, client: ApiClient) -> Following:
        """What the followers of one run share."""
        parameters, context = self.parameters, self.context
        comeback = Comeback(access.server, context.random)
        return Following(client, comeback, context.random, context.logger, self._steps, parameters.watch_timeout, parameters.longest_pause)

    def report(self, members: dict[str, Endpoint], registry: EndpointRegistry) -> None:
        """Make these the pool: one log line and one count for what changed."""
        before = self._members
        joined, left = members.keys() - before.keys(), before.keys() - members.keys()
        changed = {name for name in members.keys() & before.keys() if not _same(members[name], before[name])}
        if not (joined or left or changed):
            return
        self._members = members
        registry.replace_all(members.values())
        told = {"joined": joined, "left": left, "changed": changed}
        for change, names in told.items():
            self._changes.labels(change).inc(len(names))
        shown = {change: _shortened(names) for change, names in told.items() if names}
        self.context.logger.info("the pool has changed", extra={**shown, "endpoints": len(members)})

    def show_synced(self, title: str, *, synced: bool) -> None:
        """Tell the metrics."""
        self._synced.labels(title).set(synced)


class _Run:
    """One run of the discovery: which collections are followed now, and what follows from them together."""

    def __init__(self, owner: KubernetesDiscovery, access: Access, client: ApiClient, registry: EndpointRegistry) -> None:
        parameters = owner.parameters
        self._owner = owner
        self._registry = registry
        self._shared = owner.shared(access, client)
        self._namespace = parameters.pool_namespace or os.environ.get("NAMESPACE") or access.namespace or "default"
        self._pool_name = PoolName(parameters.pool_group, parameters.pool_name)
        self._pool: Pool | None = None
        self._pods: Follower[Pod] | None = None
        self._pods_task: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ready = False
        by_pool = bool(parameters.pool_name)
        self._pools = self._follower(
            "inferencepools", self._pool_path(), read_pool, self._pool_changed, f"metadata.name={parameters.pool_name}"
        )
        self._objectives = [self._rules("inferenceobjectives", group, read_objective) for group in RULE_GROUPS if by_pool]
        self._rewrites = [self._rules("inferencemodelrewrites", group, read_rewrites) for group in RULE_GROUPS if by_pool]
        owner.context.logger.info(
            "asking the API server", extra={"server": access.server, "found_in": access.found_in, "namespace": self._namespace}
        )

    async def follow(self) -> None:
        """Follow until cancelled, or until a follower says that the configuration is wrong."""
        parameters = self._owner.parameters
        tasks: list[asyncio.Task[None]] = []
        if parameters.pool_name:
            runs = [self._pools.run, *(one.run for one in self._objectives), *(one.run for one in self._rewrites)]
            tasks = [self._start(run) for run in runs]
        else:
            self._select(parameters.endpoint_selector)
        try:
            await self._failed
        finally:
            tasks += [] if self._pods_task is None else [self._pods_task]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, run: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        async def running() -> None:
            try:
                await run()
            except Exception as problem:
                with suppress(asyncio.InvalidStateError):
                    self._failed.set_exception(problem)

        return asyncio.get_running_loop().create_task(running())

    def _follower(
        self, title: str, path: str, read: Callable[..., T | None], changed: Callable[[], None], fields: str = "", labels: str = ""
    ) -> Follower[T]:
        selectors = (("fieldSelector", fields), ("labelSelector", labels))
        query = {name: value for name, value in selectors if value}
        required = title in ("inferencepools", "pods")
        return Follower(Collection(title, path, read, query, required=required), self._shared, changed)

    def _rules(self, plural: str, group: str, read: Callable[..., T | None]) -> Follower[T]:
        path = f"/apis/{group}/{RULE_VERSION}/namespaces/{self._namespace}/{plural}"
        return self._follower(f"{plural}.{group}", path, partial(read, pool=self._pool_name), self._rules_changed)

    def _pool_path(self) -> str:
        group = self._pool_name.group
        return f"/apis/{group}/{POOL_VERSIONS.get(group, '')}/namespaces/{self._namespace}/inferencepools"

    def _pool_changed(self) -> None:
        """Follow other Pods when the selector is another; without a pool there are no endpoints."""
        before, self._pool = self._pool, self._pools.objects.get(self._pool_name.name)
        self._owner.show_synced("inferencepools", synced=self._pools.synced)
        if self._pool is None:
            where = f"InferencePool {self._namespace}/{self._pool_name.name} of {self._pool_name.group}"
            self._owner.context.logger.warning("%s is not there: there are no endpoints until it is made", where)
            self._unselect()
        elif before is None or before.selector != self._pool.selector:
            self._unselect()
            self._select(self._pool.label_selector)
        self._report()

    def _select(self, labels: str) -> None:
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        self._pods = self._follower("pods", path, read_pod, self._report, labels=labels)
        self._pods_task = self._start(self._pods.run)

    def _unselect(self) -> None:
        if self._pods_task is not None:
            self._pods_task.cancel()
        self._pods = self._pods_task = None

    def _rules_changed(self) -> None:
        objectives, rewrites = _installed(self._objectives), _installed(self._rewrites)
        known = [(one.title, one.synced) for one in self._objectives] + [(one.title, one.synced) for one in self._rewrites]
        for title, synced in known:
            self._owner.show_synced(title, synced=synced)
        if objectives is not None:
            self._registry.set_objectives(objectives.objects)
        if rewrites is not None:
            self._registry.set_rewrites(rules_in_order(rewrites.objects))
        self._report()

    def _report(self) -> None:
        """What all collections come to now."""
        pods, parameters = self._pods, self._owner.parameters
        if self._pool is None and parameters.pool_name:
            if self._ready:
                self._owner.report({}, self._registry)
            return
        if pods is None or not pods.synced:
            return  # the Pods of another selector are not known yet
        self._owner.show_synced("pods", synced=True)
        ports = parameters.endpoint_target_ports if self._pool is None else self._pool.ports
        found = endpoints_of(pods.objects.values(), tuple(dict.fromkeys(ports)), self._namespace)
        self._owner.report({endpoint.name: endpoint for endpoint in found}, self._registry)
        rules_known = all(one.synced for one in self._objectives) and all(one.synced for one in self._rewrites)
        if rules_known and not self._ready:
            self._ready = True
            self._registry.ready()


def _installed(followers: list[Follower[T]]) -> Follower[T] | None:
    """The first group that the server has; where it has none, any of the empty ones. None while that is unknown."""
    if not all(follower.synced for follower in followers):
        return None
    return next((follower for follower in followers if follower.installed), followers[0] if followers else None)


def _same(one: Endpoint, other: Endpoint) -> bool:
    return (one.address, one.labels) == (other.address, other.labels)


def _shortened(names: set[str]) -> str:
    shown = sorted(names)[:MOST_NAMES]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
