"""The picture of a pool: which collections are followed, and which endpoints, objectives and rewrites follow from them together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic, perf_counter
from typing import TypeVar

from prometheus_client.metrics import Gauge

from endpick.api import Endpoint, EndpointRegistry, ModelRewrite
from endpick_builtin.kubernetes.following import MANY_OBJECTS, MANY_RULES, MOST_REWRITES, Collection, Follower, Following
from endpick_builtin.kubernetes.objects import (
    DatedRewrites,
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
from endpick_builtin.kubernetes.pages import REST_PER_TURN, Pace
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
        self._made: dict[str, _Made] = {}
        """By Pod: what is the same when it is told again costs little."""
        self._news = asyncio.Event()
        self._rules_are_news = False
        self._are_rules_told = not parameters.pool_name
        """Whether those of all collections have been told; later ones may be news again at any time."""
        by_pool = bool(parameters.pool_name)
        self._pools = self._follower(
            "inferencepools", self._pool_path(), read_pool, self._pool_changed, f"metadata.name={parameters.pool_name}"
        )
        self._objectives = [self._rules("inferenceobjectives", group, read_objective) for group in RULE_GROUPS if by_pool]
        self._rewrites = [self._rules("inferencemodelrewrites", group, read_rewrites) for group in RULE_GROUPS if by_pool]

    async def follow(self) -> None:
        """Follow until cancelled, or until a follower says that the configuration is wrong."""
        parameters = self._parameters
        tasks = [self._start(self._tell)]
        if parameters.pool_name:
            runs = [self._pools.run, *(one.run for one in self._objectives), *(one.run for one in self._rewrites)]
            tasks += [self._start(run) for run in runs]
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
        most = MOST_REWRITES if "rewrites" in title else 0
        only = self._pool_name.name if title == "inferencepools" else ""
        return Follower(Collection(title, path, read, query, required=required, only=only, most=most), self._shared, changed)

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
        known = [(one.title, one.synced) for one in self._objectives] + [(one.title, one.synced) for one in self._rewrites]
        for title, synced in known:
            self._synced.labels(title).set(synced)
        self._rules_are_news = True
        self._report()

    def _report(self) -> None:
        """There is something to tell."""
        self._news.set()

    async def _tell(self) -> None:
        """Tell what all collections come to whenever it may be another; where that takes long, others have most of the time."""
        by_pool = bool(self._parameters.pool_name)
        while True:
            await self._news.wait()
            self._news.clear()
            if self._rules_are_news:
                self._rules_are_news = False
                are_all_known = all(one.synced for one in self._objectives) and all(one.synced for one in self._rewrites)
                await self._show_rules()
                self._are_rules_told = are_all_known
            pool, pods = self._pool, self._pods
            if pool is None and by_pool:
                endpoints: list[Endpoint] = []
                is_known = self._ready
            else:
                is_known = pods is not None and pods.synced  # the Pods of another selector may not be known yet
                endpoints = await self._endpoints(pods, pool) if pods is not None and is_known else []
            began = monotonic()
            if is_known and pool is self._pool and pods is self._pods:
                self._registry.replace_all(endpoints)
                self._complete_if_due(pool is not None or not by_pool)
            await asyncio.sleep((monotonic() - began) * _REST_PER_REPORT)

    async def _endpoints(self, pods: Follower[Pod], pool: Pool | None) -> list[Endpoint]:
        """Those of all Pods, made with turns for everything else: thousands of Pods may come at once."""
        ports = tuple(dict.fromkeys(self._parameters.endpoint_target_ports if pool is None else pool.ports))
        made: dict[str, _Made] = {}
        endpoints: list[Endpoint] = []
        pace, began = Pace(), perf_counter()
        for pod in pods.objects.values():
            before = self._made.get(pod.name)
            if before is None or before.ports != ports or before.pod != pod:
                before = _Made(pod, ports, tuple(endpoints_of((pod,), ports, self._namespace)))
            made[pod.name] = before
            endpoints += before.endpoints
            if len(endpoints) > self._shared.most_objects:
                self._shared.limits.acted(MANY_OBJECTS, about="endpoints")
                break
            await pace.rest(began)
            began = perf_counter()
        self._made = made
        return endpoints

    def _complete_if_due(self, are_pods_known: bool) -> None:
        if are_pods_known:
            self._synced.labels("pods").set(1)
            if self._are_rules_told and not self._ready:
                self._ready = True
                self._complete()

    async def _show_rules(self) -> None:
        """With turns for everything else, of which each of the steps is to leave some."""
        began = monotonic()
        objectives, rewrites = _installed(self._objectives), _installed(self._rewrites)
        if objectives is not None:
            self._registry.set_objectives(objectives.objects)
            await asyncio.sleep((monotonic() - began) * REST_PER_TURN)
        if rewrites is not None:
            began = monotonic()
            rules = told_rules(rewrites.objects, self._shared, rewrites.title)
            await asyncio.sleep((monotonic() - began) * REST_PER_TURN)
            began = monotonic()
            self._registry.set_rewrites(rules)
            await asyncio.sleep((monotonic() - began) * _REST_PER_REPORT)


@dataclass(frozen=True, slots=True)
class _Made:
    """What was made of a Pod."""

    pod: Pod
    ports: tuple[int, ...]
    endpoints: tuple[Endpoint, ...]


def told_rules(rewrites: Mapping[str, DatedRewrites], shared: Following, title: str) -> tuple[ModelRewrite, ...]:
    """The rules of all objects, as far as they are told; `title` is what a message calls them."""
    rules = rules_in_order(rewrites, shared.most_rule_parts)
    if len(rules) < sum(len(each.rules) for each in rewrites.values()):
        shared.limits.acted(MANY_RULES, about=title)
    return rules


def _installed(followers: list[Follower[T]]) -> Follower[T] | None:
    """The first group that the server has; where it has none, any of the empty ones. None while that is unknown."""
    if not all(follower.synced for follower in followers):
        return None
    return next((follower for follower in followers if follower.installed), followers[0] if followers else None)
