"""Combines an InferencePool, its Pods, objectives and rewrites into the state of the endpoint registry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from endpick.api.discovery import EndpointRegistry
from endpick_kubernetes.connection import resource
from endpick_kubernetes.follower import Collection, Connection, Follower
from endpick_kubernetes.objects import (
    DatedRewrites,
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
from endpick_kubernetes.parameters import POOL_VERSIONS, KubernetesDiscoveryParameters

T = TypeVar("T")

RULE_GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io")  # the first one installed counts, as in llm-d
RULE_VERSION = "v1alpha2"
_REPORT_INTERVAL_SECONDS = 0.05  # thousands of Pods may change at once; each report looks at all of them
_POD = resource("", "v1", "Pod")


class PoolFollower:
    """Follows the collections of a pool and reports their combined state."""

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
        """Follow until cancelled."""
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
            self._stop_pods()
            self._selector = ""
        else:
            self._ports = pool.ports
            if pool.label_selector != self._selector:
                self._selector = pool.label_selector
                self._follow_pods(pool.label_selector)
        self._endpoints_changed.set()

    def _follow_pods(self, labels: str) -> None:
        self._stop_pods()
        self._pods = Follower(Collection("pods", _POD, read_pod, labels=labels), self._connection, self._endpoints_changed.set)
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
        elif self._pods.synced:  # until then the endpoints of the previous selector stay
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
