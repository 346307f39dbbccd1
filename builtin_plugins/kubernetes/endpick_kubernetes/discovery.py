"""`kubernetes-discovery`: follows an InferencePool or a label selector."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, TypeVar

from prometheus_client.metrics import Counter, Gauge

from endpick.api import ConfigurationError, PluginContext
from endpick.api.discovery import EndpointDiscovery, EndpointRegistry, MetricsAccess
from endpick_kubernetes.election import Election
from endpick_kubernetes.follower import POD, Collection, Connection, Follower, connect, resource
from endpick_kubernetes.leader_label import LeaderLabel
from endpick_kubernetes.metrics_access import MetricsReaders
from endpick_kubernetes.parameters import (
    POOL_VERSIONS,
    DatedRewrites,
    KubernetesDiscoveryParameters,
    Object,
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

RULE_GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io")  # the first one installed counts, as in llm-d
RULE_VERSION = "v1alpha2"
_REPORT_INTERVAL_SECONDS = 0.05  # batches changes: each report looks at all Pods


class PoolFollower:
    """Reports a pool to the endpoint registry."""

    def __init__(
        self,
        parameters: KubernetesDiscoveryParameters,
        connection: Connection,
        registry: EndpointRegistry,
        complete: Callable[[], None],
    ) -> None:
        """`complete` is called once, after the first report."""
        self._connection = connection
        self._registry = registry
        self._complete = complete
        self._selector = parameters.endpoint_selector
        self._ports = parameters.endpoint_target_ports
        self._pool_name = PoolName(parameters.pool_group, parameters.pool_name)
        self._pods: Follower[Pod] | None = None
        self._pods_task: asyncio.Task[None] | None = None
        self._is_complete = False
        self._endpoints_changed, self._rules_changed = asyncio.Event(), asyncio.Event()
        kind = resource(parameters.pool_group, POOL_VERSIONS.get(parameters.pool_group, ""), "InferencePool")
        pools = Collection("inferencepools", kind, read_pool, name=parameters.pool_name)
        self._pools: Follower[Pool] = Follower(pools, connection, self._pool_changed)
        groups = RULE_GROUPS if parameters.pool_name else ()
        self._objectives = [self._rules(group, "InferenceObjective", read_objective) for group in groups]
        self._rewrites = [self._rules(group, "InferenceModelRewrite", read_rewrites) for group in groups]
        self._all_rules: list[Follower[Any]] = [*self._objectives, *self._rewrites]

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._report(self._endpoints_changed, self._report_endpoints))
                self._tasks.create_task(self._report(self._rules_changed, self._report_rules))
                if self._selector:
                    self._follow_pods(self._selector)
                else:
                    self._tasks.create_task(self._pools.run())
                    for follower in self._all_rules:
                        self._tasks.create_task(follower.run())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    def _rules(self, group: str, kind: str, read: Callable[[Object, PoolName], T | None]) -> Follower[T]:
        collection = Collection(
            f"{kind.lower()}s.{group}", resource(group, RULE_VERSION, kind), lambda item: read(item, self._pool_name), required=False
        )
        return Follower(collection, self._connection, self._rules_changed.set)

    def _pool_changed(self) -> None:
        pool = self._pools.objects.get(self._pool_name.name)
        if pool is None:
            where = f"InferencePool {self._connection.namespace}/{self._pool_name.name} of {self._pool_name.group}"
            self._connection.logger.warning("%s does not exist: there are no endpoints until it is created", where)
            self._connection.obstacles[self._pools.title] = f"{where} does not exist"
            self._stop_pods()
            self._selector = ""
        else:
            self._connection.obstacles.pop(self._pools.title, None)
            self._ports = pool.ports
            if pool.label_selector != self._selector:
                self._selector = pool.label_selector
                self._follow_pods(pool.label_selector)
        self._endpoints_changed.set()

    def _follow_pods(self, labels: str) -> None:
        self._stop_pods()
        self._pods = Follower(Collection("pods", POD, read_pod, labels=labels), self._connection, self._endpoints_changed.set)
        self._pods_task = self._tasks.create_task(self._pods.run())

    def _stop_pods(self) -> None:
        if self._pods_task is not None:
            self._pods_task.cancel()
        self._pods = self._pods_task = None

    async def _report(self, changed: asyncio.Event, report: Callable[[], None]) -> None:
        while True:
            await changed.wait()
            changed.clear()
            report()
            is_known = self._pods is not None and self._pods.synced and self._rules_known
            is_reported = not self._endpoints_changed.is_set() and not self._rules_changed.is_set()
            if is_known and is_reported and not self._is_complete:
                self._is_complete = True
                self._complete()
            await asyncio.sleep(_REPORT_INTERVAL_SECONDS)

    def _report_endpoints(self) -> None:
        if self._pods is None:
            self._registry.replace_all(())  # the pool does not exist
        elif self._pods.synced:  # until then the previous endpoints stay
            self._registry.replace_all(endpoints_of(self._pods.objects.values(), self._ports, self._connection.namespace))

    @property
    def _rules_known(self) -> bool:
        return all(follower.synced for follower in self._all_rules)

    def _report_rules(self) -> None:
        if not self._rules_known:
            return
        self._registry.set_objectives(_installed(self._objectives))
        rewrites: dict[str, DatedRewrites] = _installed(self._rewrites)
        self._registry.set_rewrites(rules_in_order(rewrites))


def _installed(followers: list[Follower[T]]) -> dict[str, T]:
    return next((follower.objects for follower in followers if follower.installed), {})


class Replica:
    """Elects a leader. Follows the pool always, or with `populateFollowers: false` only while it leads."""

    def __init__(
        self,
        parameters: KubernetesDiscoveryParameters,
        connection: Connection,
        registry: EndpointRegistry,
        gauge: Gauge,
        attempts: Counter,
    ) -> None:
        self._parameters = parameters
        self._connection = connection
        self._registry = registry
        self._election = Election(parameters, connection, gauge, attempts, self._role_changed)
        self._label = LeaderLabel(parameters.leader_label, connection) if parameters.leader_label else None
        self._changed = asyncio.Event()
        self._is_complete = False
        self._following: asyncio.Task[None] | None = None

    async def run(self) -> None:
        self._report_role()
        electing, ending = asyncio.create_task(self._election.run()), asyncio.create_task(self._registry.until_ending())
        labelling = None if self._label is None else asyncio.create_task(self._label.run())
        try:
            while not ending.done():
                await self._follow_if_due()
                await self._until_changed(electing, ending)
            # Shutdown: another replica can lead while this one drains.
            await _cancel(electing)
            await (asyncio.Event().wait() if self._following is None else self._following)
        except asyncio.CancelledError:
            self._registry.stand_by("")  # the next discovery decides
            raise
        finally:
            for task in (electing, ending, labelling, self._following):
                if task is not None:
                    await _cancel(task)

    async def _until_changed(self, *tasks: asyncio.Task[None]) -> None:
        self._changed.clear()
        changed = asyncio.create_task(self._changed.wait())
        running = [*tasks, *([] if self._following is None else [self._following])]
        try:
            done, _ = await asyncio.wait([changed, *running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        for task in done.intersection(running):
            task.result()

    async def _follow_if_due(self) -> None:
        due = self._parameters.populate_followers or self._election.leads
        if due and self._following is None:
            pool = PoolFollower(self._parameters, self._connection, self._registry, self._completed)
            self._following = asyncio.create_task(pool.run())
        elif not due:
            if self._following is not None:
                await _cancel(self._following)
                self._following = None
            self._is_complete = False
            self._registry.replace_all(())
            self._registry.ready()  # a replica that stands by needs no endpoints
        self._report_role()

    def _completed(self) -> None:
        self._is_complete = True
        self._registry.ready()
        self._report_role()

    def _role_changed(self) -> None:
        self._changed.set()
        self._report_role()

    def _report_role(self) -> None:
        serves = self._election.leads and self._is_complete
        if self._label is not None:
            self._label.put(serves)
        elif serves:
            self._registry.stand_by("")
        else:
            self._registry.stand_by(f"standing by: {self._election.holder or 'no replica'} leads")


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class KubernetesDiscovery(EndpointDiscovery[KubernetesDiscoveryParameters]):
    """Follows an InferencePool and the Pods it selects, or Pods that match a label selector.

    A Pod is in the pool while it is `Ready`, has an address and is not being deleted. Each port of the pool is an endpoint
    `namespace/pod-rank-N`, N counting from 0, unless the annotation `llm-d.ai/active-ports` (or its predecessor in
    `inference.networking.k8s.io`) excludes it. For a pool, InferenceObjectives set priorities and InferenceModelRewrites rewrite models,
    from the group `llm-d.ai` or, if not installed, `inference.networking.x-k8s.io`.

    The discovery lists, then watches; it lists again if the version has expired (410) or after six watches without an event. While the API
    server is away the pool stays; a deleted pool has no endpoints. The discovery is ready once all is listed; objectives and rewrites that
    are not installed or not allowed are skipped.

    With `leaderElection`, replicas elect a leader by the Lease `epp-<namespace>-<pool>.llm-d.ai`. Others report NOT_SERVING (SERVING with
    `leaderLabel`), but route requests unless `populateFollowers` is false. A leader releases the lease at shutdown, stands by if it cannot
    renew it for `renewDeadline`, and is replaced after `leaseDuration` if it dies, by each replica's clock.
    """

    publishes_objectives = True

    def __init__(self, name: str, parameters: KubernetesDiscoveryParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        registry = context.registry
        self._obstacles: dict[str, str] = {}
        self._metrics_readers: MetricsReaders | None = None
        self._steps = Counter(
            "endpick_kubernetes_watches", "Lists and watches that ended, by outcome.", ("collection", "outcome"), registry=registry
        )
        self._synced = Gauge("endpick_kubernetes_synced", "1 once the collection has been listed.", ("collection",), registry=registry)
        self._leads = Gauge("endpick_leads", "1 while this replica holds the lease; 0 without leader election.", registry=registry)
        self._attempts = Counter(
            "endpick_lease_attempts", "Attempts to take, renew or release the lease, by outcome.", ("outcome",), registry=registry
        )

    @property
    def not_ready_because(self) -> str:
        return "; ".join(self._obstacles.values())

    async def start(self) -> None:
        mistake = self.parameters.mistake()
        if mistake:
            raise ConfigurationError(mistake)
        if self.parameters.leader_label and not os.environ.get("POD_NAME"):
            raise ConfigurationError("`leaderLabel` (--ha-leader-label) needs the name of this Pod in $POD_NAME")

    async def metrics_access(self, token: str) -> MetricsAccess:
        if not token:
            return MetricsAccess.UNKNOWN
        if self._metrics_readers is None:
            raise ConnectionError("the API server is not connected")
        return await self._metrics_readers.access(token)

    async def run(self, registry: EndpointRegistry) -> None:
        parameters, context = self.parameters, self.context
        client, server = await asyncio.to_thread(connect, parameters.kubeconfig)
        namespace = parameters.pool_namespace or os.environ.get("NAMESPACE") or client.namespace
        context.logger.info("connecting to the API server", extra={"server": server, "namespace": namespace})
        self._metrics_readers = MetricsReaders(client)
        connection = Connection(
            client,
            namespace,
            context.random,
            context.logger,
            self._steps,
            self._synced,
            parameters.watch_timeout,
            parameters.longest_pause,
            self._obstacles,
        )
        try:
            if parameters.leader_election:
                await Replica(parameters, connection, registry, self._leads, self._attempts).run()
            else:
                await PoolFollower(parameters, connection, registry, registry.ready).run()
        finally:
            self._metrics_readers = None
            await client.close()
