"""The picture of a pool: which collections are followed, and which endpoints, objectives and rewrites follow from them together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TypeVar

from prometheus_client.metrics import Gauge

from endpick.api import EndpointRegistry
from endpick_builtin.kubernetes.following import Collection, Follower, Following
from endpick_builtin.kubernetes.objects import (
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
from endpick_builtin.kubernetes.parameters import POOL_VERSIONS, KubernetesDiscoveryParameters

T = TypeVar("T")

RULE_GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io")
"""Where objectives and rewrites are; the first group that is installed counts, as in llm-d."""
RULE_VERSION = "v1alpha2"
_REST_PER_REPORT = 9
"""After the pool was brought up to date everything else has so many times as long."""


class PoolPicture:
    """What the collections that are followed now come to together."""

    def __init__(
        self,
        parameters: KubernetesDiscoveryParameters,
        namespace: str,
        shared: Following,
        registry: EndpointRegistry,
        synced: Gauge,
        complete: Callable[[], None],
    ) -> None:
        """`registry` is told the endpoints whenever they may have changed; `complete` is called once, when the first picture is."""
        self._parameters = parameters
        self._namespace = namespace
        self._shared = shared
        self._registry = registry
        self._synced = synced
        self._complete = complete
        self._pool_name = PoolName(parameters.pool_group, parameters.pool_name)
        self._pool: Pool | None = None
        self._pods: Follower[Pod] | None = None
        self._pods_task: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ready = False
        self._report_at = 0.0
        """Not before this moment."""
        self._reporting: asyncio.TimerHandle | None = None
        by_pool = bool(parameters.pool_name)
        self._pools = self._follower(
            "inferencepools", self._pool_path(), read_pool, self._pool_changed, f"metadata.name={parameters.pool_name}"
        )
        self._objectives = [self._rules("inferenceobjectives", group, read_objective) for group in RULE_GROUPS if by_pool]
        self._rewrites = [self._rules("inferencemodelrewrites", group, read_rewrites) for group in RULE_GROUPS if by_pool]

    async def follow(self) -> None:
        """Follow until cancelled, or until a follower says that the configuration is wrong."""
        parameters = self._parameters
        tasks: list[asyncio.Task[None]] = []
        if parameters.pool_name:
            runs = [self._pools.run, *(one.run for one in self._objectives), *(one.run for one in self._rewrites)]
            tasks = [self._start(run) for run in runs]
        else:
            self._select(parameters.endpoint_selector)
        try:
            await self._failed
        finally:
            if self._reporting is not None:
                self._reporting.cancel()
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
        self._synced.labels("inferencepools").set(self._pools.synced)
        if self._pool is None:
            where = f"InferencePool {self._namespace}/{self._pool_name.name} of {self._pool_name.group}"
            self._shared.logger.warning("%s is not there: there are no endpoints until it is made", where)
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
            self._synced.labels(title).set(synced)
        if objectives is not None:
            self._registry.set_objectives(objectives.objects)
        if rewrites is not None:
            self._registry.set_rewrites(rules_in_order(rewrites.objects))
        self._report()

    def _report(self) -> None:
        """Tell what all collections come to, now or, where that takes long and objects change all the time, when it has its share again."""
        if self._reporting is not None:
            return
        seconds = self._report_at - monotonic()
        if seconds > 0:
            self._reporting = asyncio.get_running_loop().call_later(seconds, self._report_now)
        else:
            self._report_now()

    def _report_now(self) -> None:
        self._reporting = None
        began = monotonic()
        self._show()
        now = monotonic()
        self._report_at = now + (now - began) * _REST_PER_REPORT

    def _show(self) -> None:
        """What all collections come to now."""
        pods, parameters = self._pods, self._parameters
        if self._pool is None and parameters.pool_name:
            if self._ready:
                self._registry.replace_all(())
            return
        if pods is None or not pods.synced:
            return  # the Pods of another selector are not known yet
        self._synced.labels("pods").set(1)
        ports = parameters.endpoint_target_ports if self._pool is None else self._pool.ports
        self._registry.replace_all(endpoints_of(pods.objects.values(), tuple(dict.fromkeys(ports)), self._namespace))
        rules_known = all(one.synced for one in self._objectives) and all(one.synced for one in self._rewrites)
        if rules_known and not self._ready:
            self._ready = True
            self._complete()


def _installed(followers: list[Follower[T]]) -> Follower[T] | None:
    """The first group that the server has; where it has none, any of the empty ones. None while that is unknown."""
    if not all(follower.synced for follower in followers):
        return None
    return next((follower for follower in followers if follower.installed), followers[0] if followers else None)
