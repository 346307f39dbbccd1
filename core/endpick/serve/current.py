"""The deployment that serves now, and how another takes its place: one reference is swapped, and nobody in flight notices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from endpick.api.errors import ConfigurationError
from endpick.datalayer.discovery import DiscoveryTask
from endpick.datalayer.loop import CollectionLoop, CollectionSettings
from endpick.diagnostics import Code, Diagnostic, Span
from endpick.planning.compile import compile_collection, declared_keys
from endpick.plugins.instance import Instance
from endpick.requests.pipeline import Pipeline
from endpick.serve.deployment import Deployment, Ground, left_behind
from endpick.serve.failure import Refused, instance_failed
from endpick.serve.lifecycle import stop_instances

_log = logging.getLogger("endpick.serve")


class Current:
    """Runs the data layer of one deployment and hands its pipeline to requests."""

    def __init__(self, ground: Ground, collection_settings: CollectionSettings, drain_timeout_seconds: float) -> None:
        """Nothing runs until `begin`."""
        self._ground = ground
        self._collection_settings = collection_settings
        self._drain_timeout_seconds = drain_timeout_seconds
        self._deployment: Deployment | None = None
        self._collection: CollectionLoop | None = None
        self._discovery: DiscoveryTask | None = None
        self._retiring: dict[asyncio.Task[None], tuple[Instance, ...]] = {}
        ground.table.on_removed.append(self._forget)

    @property
    def deployment(self) -> Deployment:
        """What serves now; there is one from `begin` on."""
        assert self._deployment is not None
        return self._deployment

    def instances(self) -> Iterable[Instance]:
        """What the deployment that serves now is made of; nothing before `begin`."""
        return () if self._deployment is None else self._deployment.instances.values()

    def pipeline(self) -> Pipeline:
        """What a request begins with now; it keeps it to its end."""
        return self.deployment.pipeline

    async def begin(self, deployment: Deployment, discovery_timeout_seconds: float) -> None:
        """Discover the endpoints and collect their data for the first deployment.

        Raises:
            Refused: there is no discovery, or it reported nothing in time.
        """
        self._deployment = deployment
        self._discovery = self._new_discovery(deployment)
        if self._discovery is None:
            raise Refused(_nobody_discovers(deployment))
        self._discovery.start()
        try:
            await self._discovery.wait_ready(discovery_timeout_seconds)
        except ConfigurationError as problem:
            raise Refused(instance_failed(Code.E0706, self._discovery.instance, f"cannot discover endpoints: {problem}")) from problem
        except TimeoutError as problem:
            what = f"reported no endpoints within {discovery_timeout_seconds:g} s"
            raise Refused(instance_failed(Code.E0703, self._discovery.instance, what)) from problem
        self._collection = self._new_collection(deployment)
        self._collection.start()

    async def replace(self, new: Deployment) -> None:
        """Let `new` serve from the next request on. Requests under way keep their pipeline; what only they need is stopped later."""
        old = self.deployment
        self._ground.table.declare(declared_keys(new.plan))
        self._deployment = new
        await self._replace_collection(new)
        await self._replace_discovery(old, new)
        retired = left_behind(old, new)
        if retired:
            task = asyncio.get_running_loop().create_task(self._retire(retired))
            self._retiring[task] = retired
            task.add_done_callback(lambda done: self._retiring.pop(done, None))

    async def end(self) -> None:
        """Stop the data layer, then every instance, those retired earlier included.

        Raises:
            ExceptionGroup: instances that did not stop.
        """
        for tasks in (self._discovery, self._collection):
            if tasks is not None:
                await tasks.stop()
        waiting = tuple(self._retiring.items())
        for task, _ in waiting:
            task.cancel()
        remaining = [instance for _, instances in waiting for instance in instances]
        if self._deployment is not None:
            remaining += self._deployment.instances.values()
        await stop_instances(remaining)

    async def _retire(self, instances: tuple[Instance, ...]) -> None:
        await asyncio.sleep(self._drain_timeout_seconds)
        try:
            await stop_instances(instances)
        except ExceptionGroup as problems:
            _log.error("instances of an earlier configuration did not stop", exc_info=problems)

    def _new_collection(self, deployment: Deployment) -> CollectionLoop:
        bindings = compile_collection(deployment.plan, deployment.built)
        return CollectionLoop(self._ground.table, bindings, self._collection_settings, self._ground.instruments)

    async def _replace_collection(self, new: Deployment) -> None:
        if self._collection is not None:
            await self._collection.stop()
        self._collection = self._new_collection(new)
        self._collection.start()

    def _new_discovery(self, deployment: Deployment) -> DiscoveryTask | None:
        name = deployment.plan.discovery
        return None if name is None else DiscoveryTask(deployment.instances[name], self._ground.table, self._ground.instruments)

    async def _replace_discovery(self, old: Deployment, new: Deployment) -> None:
        """A carried-over discovery goes on; without one the pool stays as it is."""
        if _discovery_plugin(old) is _discovery_plugin(new):
            return
        if self._discovery is not None:
            await self._discovery.stop()
        self._discovery = self._new_discovery(new)
        if self._discovery is not None:
            self._discovery.start()

    def _forget(self, name: str) -> None:
        for instance in self.instances():
            try:
                instance.plugin.endpoint_removed(name)
            except (Exception, SystemExit) as problem:
                self._ground.instruments.fault(instance, "EndpointRemoved", problem)


def _nobody_discovers(deployment: Deployment) -> Diagnostic:
    return Diagnostic(
        Code.E0806,
        "the configuration names no endpoint discovery, so there is nobody to route to",
        span=Span.start_of(deployment.plan.config.path),
        help="add one under `plugins:` and name it at `dataLayer.discovery`, for example file-discovery",
    )


def _discovery_plugin(deployment: Deployment) -> object:
    name = deployment.plan.discovery
    return None if name is None else deployment.instances[name].plugin
